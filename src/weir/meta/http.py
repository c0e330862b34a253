"""HTTP/1.1 as the etcd driver needs it: POST, keep-alive, streamed answers; h11 on `runtime.net`."""

import asyncio
from ssl import SSLContext

import h11

from weir.model.errors import ConnectionLostError, FrameTooLargeError, WireError
from weir.model.ids import Buffer
from weir.runtime import Connection, Network
from weir.wire.etcd import MAX_MESSAGE_BYTES


class Endpoint:
    """A server's address and a few idle connections to it."""

    def __init__(self, net: Network, host: str, port: int, *, tls: SSLContext | None, idle: int = 8) -> None:
        self.address = f"{host}:{port}"
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
        # While idle, someone must listen: or a server that has closed is only noticed after a request was sent,
        # when it is unknown whether it was carried out.
        self._listening: asyncio.Task[Buffer] | None = None

    async def send(self, path: str, body: bytes) -> None:
        """Send a POST."""
        request = h11.Request(
            method="POST",
            target=path,
            headers=[
                ("Host", self._host),
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
            ],
        )
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        try:
            self._raw.write([b"".join(self._http.send(event) or b"" for event in events)])
        except h11.LocalProtocolError as wrong:
            raise ConnectionLostError(f"the connection to {self._host} cannot take a request: {wrong}") from wrong
        await self._raw.drain()

    async def status(self) -> int:
        """The answer's status."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event.status_code
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

    async def body(self, limit: int = MAX_MESSAGE_BYTES) -> bytes:
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
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as wrong:
                raise WireError(f"{self._host} does not speak HTTP as we do: {wrong}") from wrong
            if event is h11.PAUSED:
                raise WireError(f"{self._host} sent more than was asked for")
            if event is not h11.NEED_DATA:
                if isinstance(event, h11.ConnectionClosed):
                    raise ConnectionLostError(f"{self._host} closed the connection")
                return event
            received = await self._receive()
            try:
                self._http.receive_data(bytes(received))
            except h11.RemoteProtocolError as wrong:
                raise WireError(f"{self._host} does not speak HTTP as we do: {wrong}") from wrong

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
            return b""  # read as the end of the stream by whoever asks

    def leave_idle(self) -> bool:
        """Whether the connection still stands."""
        if self._listening is not None and self._listening.done():
            self.close()  # closed by the server, or it spoke unasked
            return False
        return True

    def close(self) -> None:
        """Break the connection off."""
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
        self._raw.abort()
