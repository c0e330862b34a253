"""A client of gRPC on one connection of any runtime's, as small as the simulation needs it: one call at a time."""

import asyncio
from typing import Any

from weir.gateway.rocketmq.call import SERVICE
from weir.model.errors import ConnectionLostError
from weir.runtime.interfaces import Connection, Runtime
from weir.wire.http2 import frames, grpc, hpack
from weir.wire.rocketmq import rocketmq_pb2 as api

PORT = 8081
_WINDOW = 1 << 24
_MOST_BYTES = 1 << 24


class GrpcLink:
    """A connection. What fails on it ends it: NetworkError, or TimeoutError, and nobody knows what became of the
    call."""

    def __init__(self, connection: Connection, client_id: str) -> None:
        self._connection = connection
        self._client_id = client_id.encode()
        self._stream = -1
        self._rest = b""
        self._readers: dict[int, grpc.MessageReader] = {}
        self._messages: dict[int, list[bytes]] = {}
        self._ended: set[int] = set()

    @classmethod
    async def open(cls, runtime: Runtime, host: str, client_id: str, port: int = PORT) -> "GrpcLink":
        link = cls(await runtime.net.connect(host, port, timeout_s=5.0), client_id)
        settings = frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: _WINDOW})
        link._connection.write([frames.PREFACE, settings, frames.window_update(0, _WINDOW)])
        return link

    async def call(self, method: str, request: Any, wait_s: float = 5.0) -> list[Any]:
        """The messages of the answer."""
        stream = self.begin(method, request, ends=True)
        answer = getattr(api, f"{method}Response")
        async with asyncio.timeout(wait_s):
            while stream not in self._ended:
                await self._hear()
        self._ended.discard(stream)
        self._readers.pop(stream)
        found = self._messages.pop(stream)
        if not found:
            raise ConnectionLostError(f"{method} had no answer")
        return [answer.FromString(one) for one in found]

    def begin(self, method: str, request: Any, *, ends: bool = False, deadline: bytes = b"") -> int:
        """Send the first message of a call: its stream. `deadline`: as `grpc-timeout` has it."""
        self._stream += 2
        stream = self._stream
        block = hpack.encode(
            [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", f"/{SERVICE}/{method}".encode()),
                (b":authority", b"weir"),
                (b"content-type", b"application/grpc"),
                (b"x-mq-client-id", self._client_id),
                (b"x-mq-language", b"JAVA"),
                *([(b"grpc-timeout", deadline)] if deadline else []),
            ]
        )
        body = grpc.message(request.SerializeToString())
        self._readers[stream] = grpc.MessageReader(_MOST_BYTES)
        self._messages[stream] = []
        self._connection.write(
            [
                frames.frame_head(len(block), frames.HEADERS, frames.END_HEADERS, stream) + block,
                frames.frame_head(len(body), frames.DATA, frames.END_STREAM if ends else 0, stream) + body,
            ]
        )
        return stream

    async def next(self, stream: int, kind: Any) -> Any:
        """The next message of a conversation."""
        while not self._messages[stream]:
            if stream in self._ended:
                raise ConnectionLostError("the conversation has ended")
            await self._hear()
        return kind.FromString(self._messages[stream].pop(0))

    async def _hear(self) -> None:
        data = await self._connection.receive()
        if not data:
            raise ConnectionLostError("the broker hung up")
        data = self._rest + bytes(data)
        at = 0
        while len(data) - at >= frames.HEADER_BYTES:
            size, kind, flags, stream = frames.read_head(data, at)
            body = data[at + frames.HEADER_BYTES : at + frames.HEADER_BYTES + size]
            if len(body) < size:
                break
            at += frames.HEADER_BYTES + size
            self._on_frame(kind, flags, stream, body)
        self._rest = data[at:]

    def _on_frame(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == frames.DATA and stream in self._readers:
            self._messages[stream] += map(bytes, self._readers[stream].feed(body))
            self._connection.write([frames.window_update(0, max(1, len(body)))])
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._connection.write([frames.frame_head(0, frames.SETTINGS, frames.ACK, 0)])
        elif kind == frames.RST_STREAM:
            self._ended.add(stream)
        if kind in (frames.DATA, frames.HEADERS) and flags & frames.END_STREAM:
            self._ended.add(stream)

    def close(self) -> None:
        self._connection.abort()
