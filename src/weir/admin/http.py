"""HTTP/1.1 over the runtime's network: requests in, responses out, every connection bounded in all it does.

h11 does the protocol; this is the loop around it. A request that cannot be understood gets its status and a closed
connection; one that is too large is refused before it is read.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from ssl import SSLContext
from urllib.parse import parse_qs

import h11

from weir.model.errors import ConnectionLostError, NetworkError
from weir.runtime.interfaces import Connection, Listener, Runtime
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What one server takes on."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 512
    max_head_bytes: int = 32 * 1024
    max_body_bytes: int = 8 * 1024 * 1024
    #: A connection that brings no whole request for so long is closed.
    idle_s: float = 60.0
    #: Connections still busy so long after `close()` are cut.
    drain_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request, whole. `path` is as it came, still percent-encoded; header names are lower-case."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    peer: str
    #: Path and query as they came.
    target: str = ""
    #: Of a client that proved by TLS who it is.
    certificate: bytes | None = None


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """`start`, then `close`."""

    def __init__(
        self, runtime: Runtime, settings: HttpSettings, handler: Handler, *, tls: SSLContext | None = None
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._handler = handler
        self._tls = tls
        self._listener: Listener | None = None
        self._accepting = TaskScope("http-accept")
        self._sessions = TaskScope("http")
        self._closing = asyncio.Event()

    @property
    def host(self) -> str:
        return self._settings.host if self._listener is None else self._listener.host

    @property
    def port(self) -> int:
        return self._settings.port if self._listener is None else self._listener.port

    async def start(self) -> None:
        """Bind the address and serve."""
        self._listener = await self._runtime.net.listen(self._settings.host, self._settings.port, tls=self._tls)
        self._accepting.spawn(self._accept(self._listener), "accept")

    async def close(self) -> None:
        """Take no more; requests under way are answered first, within the time given."""
        self._closing.set()
        if self._listener is not None:
            self._listener.close()
        await self._accepting.close()
        deadline = self._runtime.clock.monotonic() + self._settings.drain_s
        while len(self._sessions) and self._runtime.clock.monotonic() < deadline:
            await self._runtime.clock.sleep(0.01)
        await self._sessions.close()

    async def _accept(self, listener: Listener) -> None:
        while True:
            try:
                connection = await listener.accept()
            except ConnectionLostError:
                return
            if len(self._sessions) >= self._settings.max_connections:
                log.warning("http: too many connections, %s is turned away", connection.peer)
                connection.abort()
                continue
            session = _Session(connection, self._settings, self._handler, self._closing)
            self._sessions.spawn(session.serve(), connection.peer)


class _Session:
    """One connection: requests one after the other."""

    def __init__(
        self, connection: Connection, settings: HttpSettings, handler: Handler, closing: asyncio.Event
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._handler = handler
        self._closing = closing
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=settings.max_head_bytes)

    async def serve(self) -> None:
        try:
            while await self._serve_one():
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as wrong:
            await self._refuse(wrong.error_status_hint, str(wrong))
        except TimeoutError:
            if self._http.our_state is h11.SEND_RESPONSE:
                await self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request did not come to its end")
        except NetworkError:
            pass
        finally:
            self._connection.close()

    async def _serve_one(self) -> bool:
        """Answer one request; whether another may follow on this connection."""
        head = await self._next_event()
        if not isinstance(head, h11.Request):
            return False
        body = await self._body(head)
        if body is None:
            await self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too large")
            return False
        target = head.target.decode("latin-1")
        path, _, query = target.partition("?")
        request = Request(
            head.method.decode("latin-1"),
            path,
            parse_qs(query, keep_blank_values=True),
            {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers},
            body,
            self._connection.peer,
            target,
            self._connection.certificate,
        )
        await self._send(await self._handler(request), with_body=request.method != "HEAD")
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _body(self, head: h11.Request) -> bytes | None:
        """The request's body; None if it is larger than allowed."""
        for name, value in head.headers:
            if name == b"content-length" and int(value) > self._settings.max_body_bytes:
                return None
        if self._http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[]))
        pieces, size = [], 0
        while isinstance(event := await self._next_event(), h11.Data):
            pieces.append(bytes(event.data))
            size += len(event.data)
            if size > self._settings.max_body_bytes:
                return None
        return b"".join(pieces)

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        """The next part of a request. Between requests, the server's end is a good moment to end as well."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            idle = self._http.their_state is h11.IDLE and self._http.trailing_data[0] == b""
            receiving = asyncio.ensure_future(self._connection.receive())
            closing = asyncio.ensure_future(self._closing.wait()) if idle else None
            try:
                async with asyncio.timeout(self._settings.idle_s):
                    waits = [receiving] if closing is None else [receiving, closing]
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if not receiving.done():
                    raise ConnectionLostError("the server closes")
                self._http.receive_data(bytes(receiving.result()))
            finally:
                receiving.cancel()
                if closing is not None:
                    closing.cancel()
        return event  # type: ignore[return-value]

    async def _refuse(self, status: int, why: str) -> None:
        """Answer what could not be served, if the protocol still lets us, and end."""
        log.info("http: %s: %s", self._connection.peer, why)
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        close = {"connection": "close"}
        body = b'{"reason": "%s"}' % why.replace('"', "'").encode("ascii", "replace")
        try:
            await self._send(Response(status, body, headers=close), with_body=True)
        except NetworkError:
            log.debug("http: %s did not wait for its answer", self._connection.peer)

    async def _send(self, response: Response, *, with_body: bool) -> None:
        headers = list(response.headers.items())
        if response.status != HTTPStatus.NO_CONTENT:
            headers.append(("content-length", str(len(response.body))))
        if response.body:
            headers.append(("content-type", response.content_type))
        if self._closing.is_set():
            headers.append(("connection", "close"))
        self._write(h11.Response(status_code=response.status, headers=headers))
        if with_body and response.body:
            self._write(h11.Data(data=response.body))
        self._write(h11.EndOfMessage())
        await self._connection.drain()

    def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._connection.write([data])
