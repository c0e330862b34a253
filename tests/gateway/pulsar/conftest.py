"""A whole Weir in this process, on a thread of its own, for the official client to talk to."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from ssl import SSLContext
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from weir.broker.api import Owner
from weir.broker.broker import Broker
from weir.broker.registry import Registry
from weir.gateway.pulsar import PulsarServer
from weir.model.policies import Policies
from weir.model.topics import TopicName
from weir.runtime.real import real_runtime
from weir.server import config_parts
from weir.server.config_load import load
from weir.server.schema_port import GuardedSchemas
from weir.server.standalone import Standalone

TIMEOUT_MS = 20_000
Call = Callable[[], Coroutine[Any, Any, Any]]


class Composed(Standalone):
    """As `weir up` composes it, with its parts in reach, and limits of our own."""

    limits: dict[str, Any]
    broker: Broker
    registry: Registry
    servers: dict[str, PulsarServer]

    async def _serve_pulsar(
        self, broker: Broker, schemas: GuardedSchemas, registry: Registry, tls: SSLContext | None
    ) -> None:
        self.broker, self.registry, self.servers = broker, registry, {}
        for name in ("pulsar", "pulsar_tls"):
            bound = self._bound.get(name)
            if bound is None:
                continue
            secure = name == "pulsar_tls"
            settings = config_parts.pulsar_settings(self._config, bound, secure=secure)
            limits = replace(settings.limits, linger_s=0.1, **self.limits)
            server = PulsarServer(
                self._runtime,
                broker,
                replace(settings, limits=limits, sweep_interval_s=0.05),
                schemas=schemas,
                lists=registry,
                tls=tls if secure else None,
            )
            await server.start()
            self._started.push_async_callback(server.close)
            self.servers[name] = server


class Node:
    """Starts and stops a broker; everything of it runs on the loop of one thread."""

    def __init__(self, folder: Path, *settings: str, **limits: Any) -> None:
        self._folder = folder
        self._settings = settings
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._address = "127.0.0.1:0"

    def call(self, work: Call, timeout_s: float = 30) -> Any:
        """Run a coroutine on the broker's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(timeout_s)

    def start(self) -> None:
        self.call(self._start)

    async def _start(self) -> None:
        config = load(
            assignments=[
                f"data={self._folder}",
                f"listeners.pulsar={self._address}",
                "listeners.http=127.0.0.1:0",
                "storage.low_water_bytes=0",
                *self._settings,
            ]
        ).config
        self.up = Composed(real_runtime(), config)
        self.up.limits = self._limits
        await self.up.start()
        self._address = str(self.up.addresses["pulsar"])

    def stop(self) -> None:
        self.call(self.up.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def restart(self) -> None:
        """It goes down and comes back on the same port; what was stored is there."""
        self.call(self.up.close)
        self.call(self._start)

    def cut(self) -> None:
        """Break every connection."""

        async def cut() -> None:
            for session in list(self.up.servers["pulsar"]._sessions):
                session.abort()

        self.call(cut)

    @property
    def url(self) -> str:
        return self.up.servers["pulsar"].service_url

    @property
    def broker(self) -> Broker:
        return self.up.broker

    @property
    def registry(self) -> Registry:
        return self.up.registry

    def partition(self, topic: str, count: int) -> None:
        self.call(lambda: self.registry.topics.create(TopicName.parse(topic), partitions=count))

    def set_policies(self, topic: str, policies: Policies) -> None:
        """Make a topic with policies of its own."""
        name = TopicName.parse(topic)

        async def make() -> None:
            await self.registry.topics.create(name)
            await self.registry.change_policies(name, lambda _: policies)

        self.call(make)

    def send_elsewhere(self, topic: str, owner: Owner) -> None:
        """Another broker serves the topic."""
        ask = self.broker.owner

        async def answer(name: TopicName, *, role: str) -> Owner:
            return owner if name == TopicName.parse(topic) else await ask(name, role=role)

        self.broker.owner = answer  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def weir_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"))
    node.start()
    yield node
    node.stop()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts brokers for one test alone: with settings as for `weir up --set`, and limits of their sessions."""
    nodes: list[Node] = []

    def start(*settings: str, **limits: Any) -> Node:
        node = Node(tmp_path / f"node{len(nodes)}", *settings, **limits)
        node.start()
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., pulsar.Client]]:
    """Makes clients of a broker, and closes them."""
    clients: list[pulsar.Client] = []

    def make(node: Node, **options: Any) -> pulsar.Client:
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(tmp_path / "client.log"))
        url = options.pop("url", node.url)
        client = pulsar.Client(url, operation_timeout_seconds=20, logger=quiet, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        with suppress(pulsar.AlreadyClosed):
            client.close()


@pytest.fixture
def client(weir_broker: Node, connect: Callable[..., pulsar.Client]) -> pulsar.Client:
    return connect(weir_broker)


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"persistent://public/default/t-{uuid4().hex}"


class Talk:
    """What tests say again and again."""

    @staticmethod
    def send(producer: pulsar.Producer, payloads: list[bytes], **more: Any) -> list[Any]:
        """Send without waiting for each, then for all; their ids."""
        results: list[Any] = []
        for payload in payloads:
            producer.send_async(payload, lambda result, at: results.append((result, at)), **more)
        producer.flush()
        assert [result for result, _ in results] == [pulsar.Result.Ok] * len(payloads)
        return [at for _, at in results]

    @staticmethod
    def receive(consumer: pulsar.Consumer, count: int, *, ack: bool = True) -> list[bytes]:
        found = []
        for _ in range(count):
            message = consumer.receive(TIMEOUT_MS)
            found.append(message.data())
            if ack:
                consumer.acknowledge(message)
        return found

    @staticmethod
    def read(reader: pulsar.Reader, count: int) -> list[bytes]:
        return [reader.read_next(TIMEOUT_MS).data() for _ in range(count)]

    @staticmethod
    def drain(consumer: pulsar.Consumer, wait_ms: int = 300) -> list[pulsar.Message]:
        """Everything that comes until nothing does for a while."""
        found = []
        with suppress(pulsar.Timeout):
            while True:
                found.append(consumer.receive(wait_ms))
        return found

    @staticmethod
    def nothing_more(consumer: pulsar.Consumer) -> None:
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)

    @staticmethod
    def numbered(count: int, size: int = 0) -> list[bytes]:
        return [b"%06d" % at + b"." * size for at in range(count)]


@pytest.fixture(scope="session")
def talk() -> Talk:
    return Talk()
