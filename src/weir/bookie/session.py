"""One client's connection to a bookie: what may come when, and what happens then.

Requests are answered as they complete, in any order. Over its limits the session reads no further, so a client
that floods, or that does not read its answers, is held back by its own TCP window.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import Any, ClassVar

from weir.bookie.outbox import Outbox
from weir.bookie.serving import Served, SessionLimits
from weir.model.errors import (
    BookieBusyError,
    BookieError,
    BookieUnavailableError,
    NetworkError,
    NotAuthenticatedError,
    WeirError,
    WireError,
)
from weir.model.ids import BookieId, Buffer, LedgerId
from weir.model.reading import ReadResult
from weir.runtime.interfaces import Clock, Connection
from weir.runtime.tasks import TaskScope
from weir.runtime.turns import UNIT_BYTES, Turns
from weir.wire import bookie as wire
from weir.wire.bookie_errors import failed_from
from weir.wire.bookie_hello import (
    FEATURES,
    MAX_HELLO_BYTES,
    Welcome,
    choose_version,
    decode_hello,
    encode_welcome,
)
from weir.wire.frames import FrameSplitter
from weir.wire.proof import MAX_PROOF_BYTES, ProvingServer

log = logging.getLogger(__name__)


class State(Enum):
    """Where a session stands."""

    PROOF = "expects a proof that the client belongs to the cluster, and tells it nothing before"
    HELLO = "expects a hello"
    SERVING = "takes requests"
    CLOSING = "takes nothing more, answers what it took, and says why it ends"
    CLOSED = "is over"


class Event(Enum):
    """What moves it."""

    PROVEN = "the client belongs to the cluster"
    WELCOMED = "the hello was right"
    ENDING = "bad input, or the server wants to stop"
    GONE = "the client hung up, or the last word was said"


#: Every legal move; a missing one is a bug.
NEXT: dict[State, dict[Event, State]] = {
    State.PROOF: {
        Event.PROVEN: State.HELLO,
        Event.ENDING: State.CLOSED,
        Event.GONE: State.CLOSED,
    },
    State.HELLO: {
        Event.WELCOMED: State.SERVING,
        Event.ENDING: State.CLOSING,
        Event.GONE: State.CLOSED,
    },
    State.SERVING: {Event.ENDING: State.CLOSING, Event.GONE: State.CLOSED},
    State.CLOSING: {Event.ENDING: State.CLOSING, Event.GONE: State.CLOSED},
    State.CLOSED: {Event.ENDING: State.CLOSED, Event.GONE: State.CLOSED},
}
_READING = (State.PROOF, State.HELLO, State.SERVING)


class Session:
    """Serves one connection until it ends. `durable` runs what must not be cut short when the client goes."""

    def __init__(
        self,
        bookie: Served,
        bookie_id: BookieId,
        connection: Connection,
        *,
        clock: Clock,
        limits: SessionLimits,
        durable: TaskScope,
        proving: ProvingServer | None = None,
        on_settled: Callable[["Session"], None] = lambda _: None,
    ) -> None:
        """`proving`: has the client prove first that it belongs to the cluster; `on_settled`: called when it has,
        or the session is over."""
        self._bookie = bookie
        self._bookie_id = bookie_id
        self._connection = connection
        self._clock = clock
        self._limits = limits
        self._durable = durable
        self._tasks = TaskScope(f"session {connection.peer}", on_failure=lambda _: self.abort())
        self._turns = Turns(clock)
        self._proving = proving
        self._on_settled = on_settled
        self._splitter = FrameSplitter(
            min(MAX_PROOF_BYTES if proving else MAX_HELLO_BYTES, limits.max_frame_bytes)
        )
        self._outbox = Outbox(connection, clock, limits)
        self._polls: dict[asyncio.Task[Any], None] = {}
        self._heard_at = clock.monotonic()
        self._farewell: WeirError | None = None
        self.state = State.PROOF if proving else State.HELLO

    # --- its life ----------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._connection.peer

    async def run(self) -> None:
        """Serve until the connection ends; never raises for anything that the client did."""
        receiving = self._tasks.spawn(self._receive(), "receive")
        try:
            await self._send()
            await asyncio.wait([receiving], timeout=self._limits.linger_s)
        except NetworkError:
            pass  # the client went while its answers were being sent
        finally:
            self._move(Event.GONE)
            self._on_settled(self)
            await self._tasks.close()
            self._connection.close()

    def end(self, why: WeirError) -> None:
        """Take nothing more, answer what was taken, tell the client why, and end. Polls end unanswered, since
        they may wait for long."""
        self._farewell = self._farewell or why
        if self.state is State.PROOF:
            self._connection.abort()
        self._move(Event.ENDING)

    def abort(self) -> None:
        """End at once."""
        self._connection.abort()
        self._move(Event.GONE)

    def overdue(self, now: float) -> str | None:
        """Why the server should end this session by force, if it should."""
        limits, silent_s = self._limits, now - self._heard_at
        if self._outbox.stalled_at is not None:
            return (
                "it does not read its answers" if now - self._outbox.stalled_at > limits.stall_timeout_s else None
            )
        if self.state in (State.PROOF, State.HELLO):
            return "it never said hello" if silent_s > limits.hello_timeout_s else None
        if self._outbox.requests:
            return None
        return "it is silent" if silent_s > limits.idle_timeout_s else None

    def _move(self, event: Event) -> None:
        self.state = NEXT[self.state][event]
        if self.state not in _READING:
            for poll in list(self._polls):
                poll.cancel()
            self._outbox.wake()

    async def _send(self) -> None:
        """Send answers as they come, and the reason for the end as the last word."""
        outbox = self._outbox
        while self.state is not State.CLOSED:
            if outbox.has_output:
                await outbox.send()
            elif self.state is State.CLOSING and not outbox.requests:
                if self._farewell is not None:
                    self._connection.write([wire.encode_failed(failed_from(0, self._farewell))])
                return
            else:
                await outbox.wait()

    # --- receiving ---------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        try:
            while data := await self._connection.receive():
                self._heard_at = self._clock.monotonic()
                if self.state in _READING:
                    await self._take(data)
                data = b""  # an idle connection keeps no buffer
            if not self._splitter.at_boundary and self.state in _READING:
                log.warning("connection of %s ended within a frame", self.peer)
        except NetworkError as lost:
            log.debug("connection of %s broke: %s", self.peer, lost)
        self._move(Event.GONE)

    async def _take(self, data: Buffer) -> None:
        """Take the requests in a receive buffer, as fast as the limits allow."""
        turns = self._turns
        turns.begin()
        try:
            for body in self._splitter.feed(data):
                if self._outbox.full:
                    await self._outbox.wait_capacity()
                if self.state not in _READING:
                    return
                self._ON_FRAME[self.state](self, body)
                if turns.spend(1 + len(body) // UNIT_BYTES):
                    await turns.next()
        except (WireError, NotAuthenticatedError) as bad:
            log.warning("connection of %s is closed: %s", self.peer, bad)
            self.end(bad)

    def _on_proof(self, body: memoryview) -> None:
        assert self._proving is not None
        reply = self._proving.receive(body)
        if self._proving.known:
            self._move(Event.PROVEN)
            self._on_settled(self)
            self._splitter.limit = min(MAX_HELLO_BYTES, self._limits.max_frame_bytes)
        self._outbox.say([reply])

    def _on_hello(self, body: memoryview) -> None:
        hello = decode_hello(body)
        version = choose_version(hello)
        if hello.bookie_id not in ("", self._bookie_id):
            # Not the client's fault: the address went from one bookie to another.
            self.end(BookieUnavailableError(f"this is bookie {self._bookie_id}, not {hello.bookie_id}"))
            return
        self._move(Event.WELCOMED)
        self._splitter.limit = self._limits.max_frame_bytes
        welcome = Welcome(self._bookie_id, version, FEATURES & hello.features, self._limits.max_frame_bytes)
        self._outbox.say([encode_welcome(welcome)])

    def _on_request(self, body: memoryview) -> None:
        request = wire.decode_request(body)
        self._HANDLERS[type(request)](self, request, len(body))

    _ON_FRAME: ClassVar[dict[State, Callable[["Session", memoryview], None]]] = {
        State.PROOF: _on_proof,
        State.HELLO: _on_hello,
        State.SERVING: _on_request,
    }

    # --- one handler per request -------------------------------------------------------------------------

    def _add(self, request: wire.Add, size: int) -> None:
        request_id = request.request_id
        self._outbox.accept(size)
        added = self._bookie.add(request.ledger_id, request.entries, recovery=request.recovery)
        if added.done():
            self._added(request_id, size, added)
        else:
            added.add_done_callback(partial(self._added, request_id, size))

    def _added(self, request_id: int, size: int, added: "asyncio.Future[None]") -> None:
        failure = BookieUnavailableError("the bookie stopped") if added.cancelled() else added.exception()
        if failure is None:
            self._outbox.done(request_id, size)
        else:
            self._outbox.answer(self._failure(request_id, failure), size)

    def _read(self, request: wire.Read, _size: int) -> None:
        most = min(request.max_bytes, self._limits.max_read_bytes)

        async def read() -> list[Buffer]:
            result = await self._bookie.read(request.ledger_id, request.first, request.last, max_bytes=most)
            return _entries(request.request_id, request.ledger_id, result)

        # Charged with what it may bring, before it is known, so that many reads at once stay within the limit.
        self._answer_later(self._tasks, request.request_id, read, charged=most)

    def _poll(self, request: wire.Poll, _size: int) -> None:
        if len(self._polls) >= self._limits.max_polls:
            busy = BookieBusyError("too many polls wait on this connection")
            self._outbox.say(self._failure(request.request_id, busy))
            return
        timeout_s = min(request.timeout_ms / 1000, self._limits.max_poll_s)

        async def poll() -> None:
            try:
                result = await self._bookie.poll(request.ledger_id, request.after, timeout_s=timeout_s)
                answer = _entries(request.request_id, request.ledger_id, result)
            except Exception as failure:
                answer = self._failure(request.request_id, failure)
            self._outbox.say(answer)

        waiting = self._tasks.spawn(poll(), "poll")
        self._polls[waiting] = None
        waiting.add_done_callback(lambda ended: self._polls.pop(ended, None))

    def _last_confirmed(self, request: wire.LastConfirmed, _size: int) -> None:
        async def last_confirmed() -> list[Buffer]:
            last = await self._bookie.last_confirmed(request.ledger_id)
            return [wire.encode_confirmed(request.request_id, last)]

        self._answer_later(self._tasks, request.request_id, last_confirmed)

    def _confirm(self, request: wire.Confirm, _size: int) -> None:
        self._bookie.confirm(request.ledger_id, request.last_confirmed)

    def _fence(self, request: wire.Fence, _size: int) -> None:
        async def fence() -> list[Buffer]:
            return [wire.encode_confirmed(request.request_id, await self._bookie.fence(request.ledger_id))]

        self._answer_later(self._durable, request.request_id, fence)

    def _delete(self, request: wire.Delete, _size: int) -> None:
        async def delete() -> list[Buffer]:
            await self._bookie.delete(request.ledger_id)
            return [wire.encode_done([request.request_id])]

        self._answer_later(self._durable, request.request_id, delete)

    def _ping(self, request: wire.Ping, _size: int) -> None:
        self._outbox.accept(0)
        self._outbox.done(request.request_id, 0)

    _HANDLERS: ClassVar[dict[type, Callable[["Session", Any, int], None]]] = {
        wire.Add: _add,
        wire.Read: _read,
        wire.Poll: _poll,
        wire.LastConfirmed: _last_confirmed,
        wire.Confirm: _confirm,
        wire.Fence: _fence,
        wire.Delete: _delete,
        wire.Ping: _ping,
    }

    # --- answers that take a while -----------------------------------------------------------------------

    def _answer_later(
        self, scope: TaskScope, request_id: int, work: Callable[[], Awaitable[list[Buffer]]], *, charged: int = 0
    ) -> None:
        async def answer() -> None:
            try:
                buffers = await work()
            except Exception as failure:
                buffers = self._failure(request_id, failure)
            self._outbox.answer(buffers, charged)

        self._outbox.accept(charged)
        scope.spawn(answer(), "request")

    def _failure(self, request_id: int, failure: BaseException) -> list[Buffer]:
        if not isinstance(failure, BookieError):
            log.error("a request of %s failed: %s", self.peer, failure, exc_info=failure)
        return [wire.encode_failed(failed_from(request_id, failure))]


def _entries(request_id: int, ledger_id: LedgerId, result: ReadResult) -> list[Buffer]:
    return wire.encode_entries(request_id, ledger_id, result.last_confirmed, result.entries)
