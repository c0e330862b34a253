"""One HTTP/1.1 connection: requests one after the other, each bounded in size and time.

h11 does the protocol; this is the loop around it. A request that cannot be understood gets its status and a closed
connection; one that is too large is refused before it is read.
"""

import asyncio
import logging
from http import HTTPStatus
from urllib.parse import parse_qs

import h11

from weir.admin.http import Handler, HttpSettings, Request, Response
from weir.model.errors import ConnectionLostError, NetworkError, WeirError
from weir.runtime.interfaces import Connection

log = logging.getLogger(__name__)


class HttpSession:
    """Serves one connection until it ends."""

    def __init__(self, connection: Connection, settings: HttpSettings, handler: Handler) -> None:
        self._connection = connection
        self._settings = settings
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: Until when the request that is awaited must have come whole, or the answer have been read.
        self._deadline = 0.0
        self._sending = False
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=settings.max_head_bytes)

    @property
    def peer(self) -> str:
        return self._connection.peer

    async def run(self) -> None:
        """Answer requests until either side ends it; none if it was told to end before it began."""
        self._task = asyncio.current_task()
        try:
            if self._closing.is_set():
                self._connection.abort()
                return
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

    def end(self, why: WeirError) -> None:
        """The request under way is answered, and is the last."""
        self._closing.set()

    def abort(self) -> None:
        """End at once."""
        self._connection.abort()
        if self._task is not None:
            self._task.cancel()

    def overdue(self, now: float) -> str | None:
        """A request that does not come is answered for that; an answer that is not read is all that is left."""
        late = self._sending and self._loop.time() > self._deadline
        return "it does not read what it is sent" if late else None

    async def _serve_one(self) -> bool:
        """Answer one request; whether another may follow on this connection."""
        self._deadline = self._loop.time() + self._settings.idle_s
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
                async with asyncio.timeout_at(self._deadline):
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
        self._deadline = self._loop.time() + self._settings.idle_s
        self._sending = True
        await self._connection.drain()
        self._sending = False

    def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._connection.write([data])
