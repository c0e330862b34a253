"""The HTTP/1.1 server: connections that serve requests one after the other, each bounded in size and time.

h11 implements the protocol; this module is the I/O loop around it. Before authentication the server reads only the
head of a request. It reads the body when the budget of all listeners has capacity for it, and refuses a body that
is too large without reading it. After a malformed request it sends the error status and closes the connection.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from ssl import SSLContext
from urllib.parse import parse_qs

import h11

from weir.model.errors import (
    ConnectionLostError,
    NetworkError,
    TooManyError,
    TopicClosedError,
    WeirError,
    WrongPortError,
)
from weir.model.ids import Buffer
from weir.runtime.adjustable_clock import liveness
from weir.runtime.budgets import FREE_BYTES, RequestBudget, RequestShare
from weir.runtime.interfaces import Clock, Connection, Runtime
from weir.runtime.server import Server, ServingSettings
from weir.runtime.tasks import Turns
from weir.wire.first_bytes import ServedPort, answer_to


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Address and limits of one server."""

    host: str = "127.0.0.1"
    port: int = 0
    #: This listener's entry among the ports of the process, to answer clients of other protocols.
    served: ServedPort = field(default_factory=lambda: ServedPort("http"))
    max_connections: int = 512
    #: Size of the request line and headers, all that the server reads before authentication.
    max_head_bytes: int = 16 * 1024
    max_body_bytes: int = 8 * 1024 * 1024
    #: Bytes of requests in receipt or in service, over all connections; a budget shared by all listeners overrides
    #: it.
    max_received_bytes: int = 256 * 1024 * 1024
    #: Timeout for a connection without a complete request, and for a client that does not read its response.
    idle_s: float = 60.0
    #: Timeout for the first head of a connection, and for any later head from its first byte on.
    head_s: float = 10.0
    #: How long the server reads and discards the rest of a refused request, so that the client reads the refusal.
    linger_s: float = 2.0
    #: Connections that are still busy after this time are aborted by `close()`.
    drain_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request; its body is empty until it is admitted and read. `path` is still percent-encoded; header names
    are lower-case."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    peer: str
    #: Path and query, still percent-encoded.
    target: str = ""
    #: The client's certificate, if it authenticated by TLS.
    certificate: bytes | None = None
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    #: A streamed body instead of `body`; it ends with the generator or with the connection.
    stream: AsyncGenerator[bytes, None] | None = None


Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Admission:
    """A request with a body that the server may read, and the function that answers it."""

    max_body_bytes: int
    answer: Answer


#: Authenticates and routes a request by its head alone. A response refuses it.
Admit = Callable[[Request], Awaitable[Admission | Response]]

log = logging.getLogger(__name__)


class HttpSession:
    """Serves one connection until it ends."""

    def __init__(
        self, connection: Connection, settings: HttpSettings, admit: Admit, share: RequestShare, clock: Clock
    ) -> None:
        """`share`: this connection's share of the request bytes that all connections may have in memory."""
        self._connection = connection
        self._settings = settings
        self._admit = admit
        self._share = share
        self._clock = liveness(clock)
        self._turns = Turns(clock)
        self._heard_at = self._clock.monotonic()
        #: Received bytes that h11 has not parsed yet: the server checks a head before it feeds more.
        self._received: Buffer = b""
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: When the pending request must be complete, or the client must have read the response.
        self._deadline = 0.0
        self._sending = False
        self._is_first = True
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=settings.max_head_bytes)

    @property
    def peer(self) -> str:
        return self._connection.peer

    async def run(self) -> None:
        """Answer requests until either side closes; none if `end` was called before."""
        self._task = asyncio.current_task()
        try:
            if self._closing.is_set():
                self._connection.abort()
                return
            await self._serve()
        except NetworkError:
            pass
        finally:
            self._share.close()
            self._connection.close()

    async def _serve(self) -> None:
        try:
            self._deadline = self._loop.time() + self._settings.head_s
            while await self._serve_one():
                self._http.start_next_cycle()
                await self._turns.next()  # with pipelined requests and cached answers, the loop would never wait
                self._deadline = self._loop.time() + self._settings.idle_s
        except WrongPortError as wrong:
            log.warning("connection of %s is refused: %s", self._connection.peer, wrong)
            answer = answer_to(self._received, wrong)
            if answer:
                self._connection.write([answer])
            else:
                await self._refuse(HTTPStatus.BAD_REQUEST, str(wrong))
            await self._throw_away()
        except h11.RemoteProtocolError as wrong:
            await self._refuse(wrong.error_status_hint, str(wrong))
        except TimeoutError:
            if self._http.our_state is h11.SEND_RESPONSE or self._http.trailing_data[0]:
                await self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request was not complete in time")
        if self._http.their_state in (h11.SEND_BODY, h11.ERROR):
            await self._throw_away()

    async def _throw_away(self) -> None:
        """Read and discard for a while: closing a connection with unread bytes may lose the response."""
        self._received = b""
        with suppress(TimeoutError, ConnectionLostError):
            async with asyncio.timeout(self._settings.linger_s):
                while await self._connection.receive():
                    pass

    def end(self, why: WeirError) -> None:
        """Close after the response to the current request."""
        self._closing.set()

    def abort(self) -> None:
        """Close immediately."""
        self._connection.abort()
        if self._task is not None:
            self._task.cancel()

    def overdue(self, now: float) -> str | None:
        """The reason to abort this session, or None. A late request gets a 408 from `_serve` instead."""
        if self._sending and self._loop.time() > self._deadline:
            return "the client does not read its response"
        if self._share.late(now, self._heard_at):
            return "other clients wait for memory, and this client does not send the rest of its request"
        return None

    async def _serve_one(self) -> bool:
        """Answer one request; returns whether another may follow on this connection."""
        head = await self._next_event()
        if not isinstance(head, h11.Request):
            return False
        request = self._request(head)
        admitted = await self._admit(request)
        if isinstance(admitted, Response):
            answer = admitted
            await self._skip_body(head)
        else:
            body = await self._body(head, admitted.max_body_bytes)
            if isinstance(body, Response):
                answer = body
            else:
                answer = await self._answer(admitted, replace(request, body=body))
        await self._send(answer, with_body=request.method != "HEAD")
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def _request(self, head: h11.Request) -> Request:
        target = head.target.decode("latin-1")
        path, _, query = target.partition("?")
        return Request(
            head.method.decode("latin-1"),
            path,
            parse_qs(query, keep_blank_values=True),
            {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers},
            self._connection.peer,
            target,
            self._connection.certificate,
        )

    async def _answer(self, admitted: Admission, request: Request) -> Response:
        self._share.acquire(len(request.body))
        try:
            return await admitted.answer(request)
        finally:
            self._share.release(len(request.body))

    async def _skip_body(self, head: h11.Request) -> None:
        """Read the body of a refused request if it is small, so that the connection can continue."""
        announced = _announced(head)
        if announced is not None and announced <= FREE_BYTES and not self._http.they_are_waiting_for_100_continue:
            while isinstance(await self._next_event(), h11.Data):
                pass

    async def _body(self, head: h11.Request, most: int) -> bytes | Response:
        """Read the body when the budget has capacity for it, or return a refusal."""
        announced = _announced(head)
        if announced is not None and announced > most:
            return self._refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too large")
        try:
            async with asyncio.timeout(self._settings.idle_s):
                await self._share.wait_capacity(most if announced is None else announced)
        except (TimeoutError, TooManyError):
            return self._refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests in progress; try again")
        self._heard_at = self._clock.monotonic()
        self._deadline = self._loop.time() + self._settings.idle_s
        if self._http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[]))
        pieces, size = [], 0
        while isinstance(event := await self._next_event(), h11.Data):
            pieces.append(bytes(event.data))
            size += len(event.data)
            if size > most:
                return self._refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too large")
        return b"".join(pieces)

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        """The next event of a request. A closing server ends the connection between requests."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if not self._received:
                self._received = await self._receive()
                self._heard_at = self._clock.monotonic()
                if not self._received:
                    self._http.receive_data(b"")
                    continue
                if self._is_first:
                    self._is_first = False
                    self._check_protocol()
            if self._http.their_state is h11.IDLE:
                self._deadline = min(self._deadline, self._loop.time() + self._settings.head_s)
            received = memoryview(self._received)
            most = self._settings.max_head_bytes
            self._http.receive_data(bytes(received[:most]))
            self._received = received[most:]
        return event  # type: ignore[return-value]

    def _check_protocol(self) -> None:
        """Raise WrongPortError if the first bytes are of another protocol."""
        wrong = self._settings.served.refusal(self._received)
        if wrong is not None:
            raise wrong

    async def _receive(self) -> Buffer:
        idle = self._http.their_state is h11.IDLE and self._http.trailing_data[0] == b""
        receiving = asyncio.ensure_future(self._connection.receive())
        closing = asyncio.ensure_future(self._closing.wait()) if idle else None
        try:
            async with asyncio.timeout_at(self._deadline):
                waits = [receiving] if closing is None else [receiving, closing]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                raise ConnectionLostError("the server closes")
            return receiving.result()
        finally:
            receiving.cancel()
            if closing is not None:
                closing.cancel()

    async def _refuse(self, status: int, why: str) -> None:
        """Send an error response if the protocol state permits it, and close."""
        refusal = self._refusal(status, why)
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        try:
            await self._send(refusal, with_body=True)
        except NetworkError:
            log.debug("http: %s did not wait for its answer", self._connection.peer)

    def _refusal(self, status: int, why: str) -> Response:
        log.info("http: %s: %s", self._connection.peer, why)
        body = b'{"reason": "%s"}' % why.replace('"', "'").encode("ascii", "replace")
        return Response(status, body, headers={"connection": "close"})

    async def _send(self, response: Response, *, with_body: bool) -> None:
        if response.stream is not None:
            async with aclosing(response.stream) as pieces:
                if with_body:
                    await self._send_stream(response, pieces)
                    return
        headers = list(response.headers.items())
        if response.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            headers.append(("content-length", str(len(response.body))))
        if response.body:
            headers.append(("content-type", response.content_type))
        last = self._closing.is_set() or self._connection.on_reserve or self._http.their_state is h11.SEND_BODY
        if last and "connection" not in response.headers:
            headers.append(("connection", "close"))
        self._write(h11.Response(status_code=response.status, headers=headers))
        if with_body and response.body:
            self._write(h11.Data(data=response.body))
        self._write(h11.EndOfMessage())
        await self._drained()

    async def _send_stream(self, response: Response, pieces: AsyncGenerator[bytes, None]) -> None:
        """Send a streamed body; the connection closes after it."""
        headers = [*response.headers.items(), ("content-type", response.content_type), ("connection", "close")]
        self._write(h11.Response(status_code=response.status, headers=headers))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while True:
                piece = asyncio.ensure_future(anext(pieces))
                try:
                    await asyncio.wait([piece, closing], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not piece.done():
                        piece.cancel()
                        await asyncio.wait([piece])
                if piece.cancelled() or isinstance(piece.exception(), StopAsyncIteration):
                    break
                self._write(h11.Data(data=piece.result()))
                await self._drained()
        finally:
            closing.cancel()
        self._write(h11.EndOfMessage())
        await self._drained()

    async def _drained(self) -> None:
        """Wait until the client reads; `overdue` aborts a client that does not."""
        self._deadline = self._loop.time() + self._settings.idle_s
        self._sending = True
        await self._connection.drain()
        self._sending = False

    def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._connection.write([data])


def _announced(head: h11.Request) -> int | None:
    """The content length of the body; None for a chunked body."""
    for name, value in head.headers:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0


class HttpServer:
    """Serves HTTP on one address. Call `start`, then `close`."""

    def __init__(
        self,
        runtime: Runtime,
        settings: HttpSettings,
        admit: Admit,
        *,
        tls: SSLContext | None = None,
        request_budget: RequestBudget | None = None,
    ) -> None:
        """`request_budget`: bytes of requests, shared by all listeners; None: a budget from the settings."""
        self._clock = runtime.clock
        self._settings = settings
        self._admit = admit
        self.request_budget = (
            request_budget if request_budget is not None else RequestBudget(settings.max_received_bytes)
        )
        serving = ServingSettings(
            settings.host, settings.port, settings.max_connections, close_grace_s=settings.drain_s, reserve=True
        )
        self._server: Server[HttpSession] = Server(runtime, "http", serving, self._session, tls=tls)

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        """The bound port; differs from the settings' if that was 0."""
        return self._server.port

    async def start(self) -> None:
        """Bind the address and serve."""
        await self._server.start()

    async def close(self) -> None:
        """Stop accepting; current requests are answered first, within the drain time."""
        await self._server.close(TopicClosedError("the server closes"))

    def _session(self, connection: Connection) -> HttpSession:
        share = RequestShare(self.request_budget, self._clock)
        return HttpSession(connection, self._settings, self._admit, share, self._clock)
