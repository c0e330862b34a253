"""`weir up` for RocketMQ's own Python client."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from weir.testing.rocketmq.python_client import load_quietly

load_quietly()
from rocketmq import (  # noqa: E402
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

from weir.testing.processes.up import UpProcess  # noqa: E402

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One `weir up` for all tests of a module."""
    up = UpProcess(tmp_path_factory.mktemp("weir"))
    up.start()
    yield up
    up.close()


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"n-{uuid4().hex}"


class Clients:
    """Makes clients, and shuts them down in the end."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._made: list[Any] = []
        self._loop = asyncio.new_event_loop()

    def configuration(self, *, credentials: Credentials | None = None, namespace: str = "") -> ClientConfiguration:
        return ClientConfiguration(self.endpoint, credentials or Credentials(), namespace, request_timeout=30)

    def producer(self, *topics: str, checker: Any = None, **how: Any) -> Producer:
        return self.started(Producer(self.configuration(**how), topics, checker))

    def consumer(
        self, group: str, topic: str, *, wait_s: int = 20, expression: FilterExpression | None = None, **how: Any
    ) -> SimpleConsumer:
        wanted = {topic: expression or FilterExpression()}
        return self.started(SimpleConsumer(self.configuration(**how), group, wanted, wait_s))

    def started(self, client: Any) -> Any:
        # Its telemetry asks this thread for an event loop, of which `asyncio.run` in a test before has left none.
        asyncio.set_event_loop(self._loop)
        client.startup()
        self._made.append(client)
        return client

    def stop(self, client: Any) -> None:
        self._made.remove(client)
        client.shutdown()

    def ask(self, weir: UpProcess, path: str) -> Any:
        """What the admin API says."""
        with urllib.request.urlopen(weir.http_url + path, timeout=TIMEOUT_S) as answer:
            return json.load(answer)

    def close(self) -> None:
        for client in self._made:
            client.shutdown()
        asyncio.set_event_loop(None)
        self._loop.close()


@pytest.fixture(scope="module")
def clients(weir: UpProcess) -> Iterator[Clients]:
    found = Clients(weir.rocketmq)
    yield found
    found.close()


def message(topic: str, body: bytes = b"hello", **fields: Any) -> Message:
    made = Message()
    made.topic, made.body = topic, body
    for field, value in fields.items():
        if field == "properties":
            for key, text in value.items():
                made.add_property(key, text)
        else:
            setattr(made, field, value)
    return made


@pytest.fixture(scope="session")
def make() -> Callable[..., Message]:
    return message


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], Any]], Any]:
    """Waits for something, however slow the machine is; not for ever."""

    def wait(true: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := true()):
            assert time.monotonic() < deadline, "it did not come true"
            time.sleep(0.005)
        return found

    return wait
