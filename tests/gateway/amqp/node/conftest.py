"""A whole Weir in this process, on a thread of its own, for RabbitMQ's clients to talk to."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from weir.gateway.amqp.settings import AmqpSettings
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.testing.loop_thread import Call, LoopThread

TIMEOUT_S = 60.0


class Node:
    """Starts and stops a broker; everything of it runs on the loop of one thread."""

    def __init__(self, folder: Path, *settings: str, **limits: Any) -> None:
        self._folder = folder
        self._settings = settings
        self._limits = limits
        self._loop = LoopThread()
        self._address = "127.0.0.1:0"

    def call(self, work: Call, timeout_s: float = TIMEOUT_S) -> Any:
        """Run a coroutine on the broker's loop, and wait for it."""
        return self._loop.call(work, timeout_s)

    def start(self) -> None:
        self.call(self._start)

    async def _start(self) -> None:
        config = load(
            assignments=[
                f"data={self._folder}",
                f"listeners.amqp={self._address}",
                "listeners.kafka=",
                "listeners.pulsar=",
                "listeners.rocketmq=",
                "listeners.http=",
                "storage.low_water_bytes=0",
                "storage.journal_file_bytes=4MiB",
                "storage.high_water_bytes=0",
                "storage.sync=periodic:1",
                *self._settings,
            ]
        ).config
        self.up = BrokerNode(real_runtime(), config, adjust_amqp=self._adjust)
        await self.up.start()
        self._address = str(self.up.addresses["amqp"])

    def _adjust(self, settings: AmqpSettings) -> AmqpSettings:
        limits = replace(settings.limits, **self._limits)
        return replace(settings, limits=limits, sweep_interval_s=0.05)

    def stop(self) -> None:
        self.call(self.up.close)
        self._loop.stop()

    def restart(self) -> None:
        """It goes down and comes back on the same port; what was stored is there."""
        self.call(self.up.close)
        self.call(self._start)

    @property
    def port(self) -> int:
        return self.up.addresses["amqp"].port

    def sessions(self) -> list[Any]:
        return list(self.up.amqp_servers["amqp"].sessions)

    def connect(self, **options: Any) -> pika.BlockingConnection:
        """A connection of pika's."""
        user, password = options.pop("user", "guest"), options.pop("password", "guest")
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                options.pop("port", self.port),
                credentials=options.pop("credentials", None) or pika.PlainCredentials(user, password),
                **options,
            )
        )


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One Weir for all tests of a module."""
    node = Node(tmp_path_factory.mktemp("weir"))
    node.start()
    yield node
    node.stop()


@pytest.fixture
def start_weir(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts a Weir for one test alone: with settings as for `weir up --set`, and limits of its sessions."""
    nodes: list[Node] = []

    def start(*settings: str, **limits: Any) -> Node:
        node = Node(tmp_path / f"node{len(nodes)}", *settings, **limits)
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def connection(weir: Node) -> Iterator[pika.BlockingConnection]:
    made = weir.connect()
    yield made
    if made.is_open:
        made.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"n-{uuid4().hex}"


def until(true: Callable[[], Any], connection: pika.BlockingConnection | None = None) -> Any:
    """Wait for something, however slow the machine is; not for ever. What it was."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := true()):
        assert time.monotonic() < deadline, "it did not come true"
        if connection is not None:
            connection.process_data_events(time_limit=0.01)
        else:
            time.sleep(0.005)
    return found
