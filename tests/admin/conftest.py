"""An admin server on the real network with any routes, and a whole Weir with all of them."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from weir.model.errors import NotAuthenticatedError
from weir.rest.http import HttpSettings, Request
from weir.rest.routes import Route
from weir.rest.server import AdminServer
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.testing.loop_thread import LoopThread

Talk = Callable[[bytes], Awaitable[bytes]]


@dataclass
class Served:
    server: AdminServer

    async def raw(self, data: bytes) -> bytes:
        """Send bytes, end the stream, and read to the end."""
        reader, writer = await asyncio.open_connection(self.server.host, self.server.port)
        writer.write(data)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return answer

    async def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "host: x", "connection: close", f"content-length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        answer = await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        head, _, content = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(content) if content else None


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[Served]]]:
    servers: list[AdminServer] = []

    async def start(routes: list[Route], *, role: str = "anyone", token: str = "", **settings: Any) -> Served:
        async def authenticate(request: Request) -> str:
            if token and request.headers.get("authorization") != token:
                raise NotAuthenticatedError("who are you?")
            return role

        server = AdminServer(real_runtime(), HttpSettings(**settings), routes, authenticate)
        await server.start()
        servers.append(server)
        return Served(server)

    yield start
    for server in servers:
        await server.close()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


class Weir:
    """A whole Weir on a thread of its own, asked over HTTP."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self._loop = LoopThread()
        config = load(
            assignments=[
                f"data={folder}",
                "listeners.pulsar=127.0.0.1:0",
                "listeners.kafka=",
                "listeners.amqp=",
                "listeners.rocketmq=",
                "listeners.http=127.0.0.1:0",
                "storage.low_water_bytes=0",
                "storage.journal_file_bytes=4MiB",
                *settings,
            ]
        ).config
        self.up = BrokerNode(real_runtime(), config)
        self.run(self.up.start)

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return self._loop.call(work, 60)

    def stop(self) -> None:
        self.run(self.up.close)
        self._loop.stop()

    @property
    def http(self) -> str:
        return f"http://{self.up.addresses['http']}"

    @property
    def url(self) -> str:
        return f"pulsar://{self.up.addresses['pulsar']}"

    def ask(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> Answer:
        """One request; paths that begin with no slash are below `/admin/v2`."""
        address = self.up.addresses["http"]
        connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        if body is not None:
            headers["content-type"] = "application/json"
        target = path if path.startswith("/") else f"/admin/v2/{path}"
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        connection.close()
        return answer

    def do(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """One request that is served: what is answered, as JSON."""
        answer = self.ask(method, path, body, **more)
        assert answer.status in (200, 201, 204), f"{method} {path}: {answer.status} {answer.body[:300]!r}"
        return answer.json


@pytest.fixture(scope="session")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    """One that lets everybody do everything."""
    node = Weir(tmp_path_factory.mktemp("weir"))
    yield node
    node.stop()


@pytest.fixture(scope="module")
def start_weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Weir]]:
    nodes: list[Weir] = []

    def start(*settings: str) -> Weir:
        nodes.append(Weir(tmp_path_factory.mktemp("weir"), *settings))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"n{uuid4().hex[:12]}"


@pytest.fixture
def client(weir: Weir, tmp_path: Path) -> Iterator[pulsar.Client]:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(tmp_path / "client.log"))
    client = pulsar.Client(weir.url, operation_timeout_seconds=60, logger=quiet)
    yield client
    with suppress(pulsar.AlreadyClosed):
        client.close()
