"""The one HTTP/1.1 client, for etcd and the admin REST: keep-alive, whole answers and streams, by h11."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from ssl import SSLContext

import h11

from weir.model.errors import ConnectionLostError, FrameTooLargeError, WireError, WrongPortError
from weir.model.ids import Buffer
from weir.runtime.interfaces import Connection, Network
from weir.wire.first_bytes import HTTP, TLS, protocol_of

#: Methods that are safe to send again after an unknown outcome.
_REPEATABLE = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A server's answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpEndpoint:
    """A server's address and a few idle connections to it."""

    def __init__(self, net: Network, host: str, port: int, *, tls: SSLContext | None, idle: int = 8) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._net = net
        self._host = host
        self._port = port
        self._tls = tls
        self._limit = idle
        self._idle: list[HttpConnection] = []

    async def connect(self, *, timeout_s: float) -> "HttpConnection":
        """A connection that was idle and still stands, or a new one; ConnectFailedError if none can be made."""
        while self._idle:
            connection = self._idle.pop()
            if connection.leave_idle():
                return connection
        raw = await self._net.connect(self._host, self._port, timeout_s=timeout_s, tls=self._tls)
        return HttpConnection(raw, self.address)

    def give_back(self, connection: "HttpConnection") -> None:
        """Keep the connection for the next request, if it can take one."""
        if len(self._idle) < self._limit and connection.be_idle():
            self._idle.append(connection)
        else:
            connection.close()

    async def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        max_bytes: int,
        connect_timeout_s: float,
    ) -> HttpAnswer:
        """Send a request and wait for the whole answer. A kept connection may end just at its reuse; then the
        client repeats a repeatable request on a fresh connection."""
        while True:
            connection = await self.connect(timeout_s=connect_timeout_s)
            fresh = not connection.used
            try:
                await connection.send(method, target, headers=headers, body=body)
                status, told = await connection.head()
                answer = HttpAnswer(status, told, await connection.body(max_bytes))
            except ConnectionLostError:
                connection.close()
                if fresh or method not in _REPEATABLE:
                    raise
            except BaseException:
                connection.close()
                raise
            else:
                self.give_back(connection)
                return answer

    def close(self) -> None:
        """Keep no connection from here on."""
        self._limit = 0
        while self._idle:
            self._idle.pop().close()


class HttpConnection:
    """One connection: a request, its answer, and again. One task uses it at a time."""

    def __init__(self, raw: Connection, host: str) -> None:
        self._raw = raw
        self._host = host
        self._http = h11.Connection(h11.CLIENT)
        #: Of the first answer.
        self._first = b""
        #: Whether it took a request before.
        self.used = False
        # An idle connection keeps reading: otherwise the client would notice a close by the server only after it
        # has sent a request, when the outcome of the request is unknown.
        self._listening: asyncio.Task[Buffer] | None = None

    async def send(
        self, method: str, target: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> None:
        """Send a request."""
        told = [("Host", self._host), *(headers or {}).items()]
        if body is not None or method in ("POST", "PUT"):
            told.append(("Content-Length", str(len(body or b""))))
        events = (h11.Request(method=method, target=target, headers=told), h11.Data(data=body or b""))
        self.used = True
        try:
            self._raw.write([b"".join(self._http.send(event) or b"" for event in (*events, h11.EndOfMessage()))])
        except h11.LocalProtocolError as wrong:
            raise ConnectionLostError(f"the connection to {self._host} cannot take a request: {wrong}") from wrong
        await self._raw.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """The answer's status and headers."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event.status_code, {
                    name.decode().lower(): value.decode("latin-1") for name, value in event.headers
                }
            if not isinstance(event, h11.InformationalResponse):
                raise WireError(f"{self._host} answered with {type(event).__name__} before a status")

    async def data(self) -> bytes:
        """The next piece of the answer's body; empty at its end."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                if event.data:
                    return bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return b""
            else:
                raise WireError(f"{self._host} sent {type(event).__name__} amid an answer")

    async def body(self, limit: int) -> bytes:
        """The whole of the answer's body."""
        parts = []
        size = 0
        while part := await self.data():
            parts.append(part)
            size += len(part)
            if size > limit:
                raise FrameTooLargeError(f"an answer of {self._host} has more than {limit} bytes")
        return b"".join(parts)

    async def _next(self) -> object:
        ended = False
        while True:
            try:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    received = bytes(await self._receive())
                    self._first = self._first or received[:64]
                    ended = not received
                    self._http.receive_data(received)
                    continue
            except h11.RemoteProtocolError as wrong:
                if ended:  # an end amid an answer is not bad grammar
                    raise ConnectionLostError(f"{self._host} closed the connection") from wrong
                raise self._no_http(wrong) from wrong
            if event is h11.PAUSED:
                raise WireError(f"{self._host} sent data after its answer")
            if isinstance(event, h11.ConnectionClosed):
                raise ConnectionLostError(f"{self._host} closed the connection")
            return event

    def _no_http(self, wrong: h11.RemoteProtocolError) -> WireError:
        """The answer cannot be parsed: of another protocol, if its first bytes are known."""
        found = protocol_of(self._first)
        if found in (None, HTTP):
            return WireError(f"the answer of {self._host} is not HTTP: {wrong}")
        hint = "use https://" if found == TLS else "name the HTTP port of the server"
        protocol = found if found == TLS else f"the {found} protocol"
        return WrongPortError(f"{self._host} answered with {protocol}, not with HTTP", hint=hint)

    async def _receive(self) -> Buffer:
        if self._listening is None:
            return await self._raw.receive()
        listening, self._listening = self._listening, None
        try:
            return await listening
        except asyncio.CancelledError:
            listening.cancel()
            raise

    def be_idle(self) -> bool:
        """Wait for the next request; false if this connection cannot take one."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._listening = asyncio.get_running_loop().create_task(self._receive_quietly(), name="http-idle")
        return True

    async def _receive_quietly(self) -> Buffer:
        try:
            return await self._raw.receive()
        except ConnectionLostError:
            return b""  # the next reader treats it as the end of the stream

    def leave_idle(self) -> bool:
        """Whether the connection still stands."""
        if self._listening is not None and self._listening.done():
            self.close()  # the server closed it, or sent data without a request
            return False
        return True

    def close(self) -> None:
        """End an idle connection, break off a busy one."""
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
            self._raw.close()
        else:
            self._raw.abort()
