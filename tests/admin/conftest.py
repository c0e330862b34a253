"""An admin server on the real network, and a plain HTTP client."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from weir.admin.http import HttpSettings
from weir.admin.routing import Route
from weir.admin.server import AdminServer
from weir.runtime.real import real_runtime

Talk = Callable[[bytes], Awaitable[bytes]]


@dataclass
class Served:
    server: AdminServer

    async def raw(self, data: bytes) -> bytes:
        """Send bytes, end the stream, and read to the end."""
        reader, writer = await asyncio.open_connection(self.server.host, self.server.port)
        writer.write(data)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 10)
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

    async def start(routes: list[Route], *, role: str = "anyone", **settings: Any) -> Served:
        async def authenticate(request: object) -> str:
            return role

        server = AdminServer(real_runtime(), HttpSettings(**settings), routes, authenticate)
        await server.start()
        servers.append(server)
        return Served(server)

    yield start
    for server in servers:
        await server.close()
