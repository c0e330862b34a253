"""The HTTP client against a scripted server: what it sends, what it makes of answers, and what it survives."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest

from weir.client.access import ClientSettings
from weir.client.admin import AdminClient, topic_path
from weir.model.errors import (
    BrokerError,
    ConfigError,
    ConnectFailedError,
    ConnectionLostError,
    NotAllowedError,
    NotAuthenticatedError,
    NotAuthorisedError,
    WireError,
)
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime

Scripted = Callable[..., "Server"]


class Server:
    """Answers each request with the next of its answers; `None` breaks the connection instead."""

    def __init__(self, answers: list[bytes | None]) -> None:
        self._answers = answers
        self.requests: list[bytes] = []
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                self.requests.append(head + body)
                answer = self._answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture
async def scripted() -> AsyncIterator[Callable[..., "asyncio.Future[Server]"]]:
    servers: list[asyncio.Server] = []

    async def start(*answers: bytes | None) -> Server:
        server = Server(list(answers))
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        servers.append(listening)
        server.port = listening.sockets[0].getsockname()[1]
        return server

    yield start  # type: ignore[misc]
    for listening in servers:
        listening.close()


def client(runtime: Runtime, server: Server, **settings: object) -> AdminClient:
    return AdminClient(runtime, f"http://127.0.0.1:{server.port}", ClientSettings(**settings))  # type: ignore[arg-type]


async def test_json_goes_both_ways_over_one_kept_connection(scripted, runtime: Runtime) -> None:
    server = await scripted(answer(200, b'{"partitions": 4}'), answer(204))
    async with client(runtime, server, token="secret") as admin:
        path = topic_path(TopicName.parse("persistent://a/b/c d"), "partitions")
        assert await admin.get(path) == {"partitions": 4}
        assert await admin.put(path, 8, {"force": True}) is None
    assert server.connections == 1
    first, second = server.requests
    assert first.startswith(b"GET /admin/v2/persistent/a/b/c%20d/partitions HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret\r\n" in first
    assert second.startswith(b"PUT /admin/v2/persistent/a/b/c%20d/partitions?force=true HTTP/1.1\r\n")
    assert second.endswith(b"\r\n\r\n8")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, NotAuthenticatedError),
        (403, NotAuthorisedError),
        (404, BrokerError),
        (409, NotAllowedError),
        (412, NotAllowedError),
        (500, BrokerError),
    ],
)
async def test_a_refusal_is_an_error_with_the_servers_reason(
    status: int, error: type[Exception], scripted, runtime: Runtime
) -> None:
    server = await scripted(answer(status, json.dumps({"reason": "because"}).encode()))
    async with client(runtime, server) as admin:
        with pytest.raises(error, match="because"):
            await admin.get("clusters")


async def test_a_kept_connection_that_the_server_closed_is_replaced(scripted, runtime: Runtime) -> None:
    server = await scripted(answer(200, b"1"), None, answer(200, b"2"))
    async with client(runtime, server) as admin:
        assert await admin.get("x") == 1
        assert await admin.get("x") == 2
    assert server.connections == 2


async def test_a_change_is_never_sent_twice(scripted, runtime: Runtime) -> None:
    server = await scripted(answer(200, b"1"), None, answer(200, b"2"))
    async with client(runtime, server) as admin:
        assert await admin.get("x") == 1
        with pytest.raises(ConnectionLostError):
            await admin.post("x")
    assert len(server.requests) == 2


async def test_connection_close_is_obeyed(scripted, runtime: Runtime) -> None:
    server = await scripted(answer(200, b"1", "Connection: close"), answer(200, b"2"))
    async with client(runtime, server) as admin:
        assert [await admin.get("x"), await admin.get("x")] == [1, 2]
    assert server.connections == 2


async def test_a_redirect_is_followed_with_the_same_request(scripted, runtime: Runtime) -> None:
    other = await scripted(answer(200, b"5"))
    server = await scripted(answer(307, b"", f"Location: http://127.0.0.1:{other.port}/admin/v2/y?z=1"))
    async with client(runtime, server) as admin:
        assert await admin.put("x", [1]) == 5
    assert other.requests[0].startswith(b"PUT /admin/v2/y?z=1 ")
    assert other.requests[0].endswith(b"[1]")


@pytest.mark.parametrize("garbage", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"])
async def test_what_is_not_http_is_said_to_be_so(garbage: bytes, scripted, runtime: Runtime) -> None:
    server = await scripted(garbage)
    async with client(runtime, server) as admin:
        with pytest.raises(WireError, match=r"is not HTTP|answered with the SSH protocol, not with HTTP"):
            await admin.get("x")


async def test_an_answer_that_is_not_json_is_said_to_be_so(scripted, runtime: Runtime) -> None:
    server = await scripted(answer(200, b"<html>"))
    async with client(runtime, server) as admin:
        with pytest.raises(WireError, match="not JSON"):
            await admin.get("x")


async def test_nobody_there_and_wrong_urls(runtime: Runtime) -> None:
    async with AdminClient(runtime, "http://127.0.0.1:1") as admin:
        with pytest.raises(ConnectFailedError):
            await admin.get("x")
    for url in ("pulsar://127.0.0.1:6650", "http://", "http://host/path", "ftp://host"):
        with pytest.raises(ConfigError):
            AdminClient(runtime, url)


async def test_an_address_for_a_topic_is_looked_up(scripted, runtime: Runtime) -> None:
    server = await scripted(answer(200, b'{"brokerUrl": "pulsar://h:1"}'), answer(200, b'{"brokerUrl": ""}'))
    async with client(runtime, server) as admin:
        assert await admin.broker_url(TopicName.parse("t"), secure=False) == "pulsar://h:1"
        with pytest.raises(ConfigError, match="names no address"):
            await admin.broker_url(TopicName.parse("t"), secure=False)
    assert server.requests[0].startswith(b"GET /lookup/v2/topic/persistent/public/default/t ")
