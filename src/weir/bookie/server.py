"""The bookie's server: protocol states and limits of a session, and one handler per request.

A session answers requests as they complete, in any order. At its limits it stops reading, so that TCP
back-pressure slows down a client that floods it or that does not read its answers.

A session charges a request when it accepts it, and refunds the charge when the answer has left this process, not
when the answer is ready. So a client that does not read its answers runs out of credit and costs bounded memory.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from ssl import SSLContext
from typing import Any, ClassVar, Protocol

from weir.model.check import check
from weir.model.errors import (
    BookieBusyError,
    BookieError,
    BookieUnavailableError,
    NetworkError,
    NotAuthenticatedError,
    WeirError,
    WireError,
)
from weir.model.ids import BookieId, Buffer, EntryId, LedgerId
from weir.model.ledger import ReadResult
from weir.runtime.interfaces import Clock, Connection, Runtime
from weir.runtime.server import Server, ServingSettings, Strangers
from weir.runtime.tasks import UNIT_BYTES, TaskScope, Turns
from weir.runtime.waiters import Waiters
from weir.wire import bookie as wire
from weir.wire.bookie import (
    FEATURES,
    MAX_HELLO_BYTES,
    PURPOSE,
    Welcome,
    choose_version,
    decode_hello,
    encode_done,
    encode_welcome,
    failed_from,
)
from weir.wire.node.frames import FrameSplitter
from weir.wire.node.proof import MAX_PROOF_BYTES, NONCE_BYTES, ClusterSecret, ProvingServer


class Served(Protocol):
    """The bookie behind the server; `weir.ledger.interfaces.Bookie` documents each method."""

    def add(
        self, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, Buffer]], *, recovery: bool = False
    ) -> "asyncio.Future[None]": ...

    async def read(self, ledger_id: LedgerId, first: EntryId, last: EntryId, *, max_bytes: int) -> ReadResult: ...

    async def poll(self, ledger_id: LedgerId, after: EntryId, *, timeout_s: float) -> ReadResult: ...

    async def last_confirmed(self, ledger_id: LedgerId) -> EntryId: ...

    def confirm(self, ledger_id: LedgerId, last_confirmed: EntryId) -> None: ...

    async def fence(self, ledger_id: LedgerId) -> EntryId: ...

    async def delete(self, ledger_id: LedgerId) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one connection."""

    max_frame_bytes: int = wire.MAX_FRAME_BYTES
    max_requests: int = 4096
    max_bytes: int = 64 * 1024 * 1024
    #: Waiting polls cost little and do not count as load; above this number the server answers busy.
    max_polls: int = 4096
    max_poll_s: float = 60.0
    #: Maximum size of a read's answer (but at least one entry).
    max_read_bytes: int = 4 * 1024 * 1024
    #: Time limits for the hello, for silence, and for reading answers.
    hello_timeout_s: float = 10.0
    idle_timeout_s: float = 120.0
    stall_timeout_s: float = 60.0
    #: How long an ended session waits for the client to disconnect, so that the reason reaches it: closing with
    #: unread bytes resets the connection and may discard the reason.
    linger_s: float = 1.0


class Outbox:
    """Answers of one session. One write sends all answers of one turn of the event loop."""

    def __init__(self, connection: Connection, clock: Clock, limits: SessionLimits) -> None:
        self._connection = connection
        self._clock = clock
        self._limits = limits
        #: Accepted and not yet sent: requests, and the bytes of them or their answers.
        self.requests = 0
        self.bytes = 0
        #: When the client stopped reading its answers.
        self.stalled_at: float | None = None
        self._done: list[int] = []
        self._out: list[Buffer] = []
        # The charges to refund after `_done` and `_out` are sent.
        self._owed_requests = 0
        self._owed_bytes = 0
        self._capacity = Waiters()
        self._wake = asyncio.Event()

    @property
    def full(self) -> bool:
        return self.requests >= self._limits.max_requests or self.bytes >= self._limits.max_bytes

    async def wait_capacity(self) -> None:
        """Wait until the session may accept one more request; only its receive loop calls this."""
        await self._capacity.wait_until(lambda: not self.full)

    def accept(self, size: int) -> None:
        """Charge one request, with the bytes of it or of its largest possible answer."""
        self.requests += 1
        self.bytes += size

    def done(self, request_id: int, charged: int) -> None:
        """Answer an accepted request with success, in one frame with all others of this turn."""
        self._done.append(request_id)
        self._owed_requests += 1
        self._owed_bytes += charged
        self._wake.set()

    def answer(self, buffers: Sequence[Buffer], charged: int) -> None:
        """Answer an accepted request with a frame, whose size replaces its charge."""
        size = sum(map(len, buffers))
        self.bytes += size - charged
        self._out += buffers
        self._owed_requests += 1
        self._owed_bytes += size
        self._wake.set()

    def say(self, buffers: Sequence[Buffer]) -> None:
        """Send a frame that answers no charged request."""
        self.accept(0)
        self.answer(buffers, 0)

    def wake(self) -> None:
        """Wake the send loop."""
        self._wake.set()

    async def wait(self) -> None:
        """Wait for possible output."""
        self._wake.clear()
        await self._wake.wait()

    @property
    def has_output(self) -> bool:
        return bool(self._out or self._done)

    async def send(self) -> None:
        """Write all output, wait until the client accepts it, and refund its charges."""
        buffers, self._out = self._out, []
        if self._done:
            buffers.append(encode_done(self._done))
            self._done = []
        requests, self._owed_requests = self._owed_requests, 0
        size, self._owed_bytes = self._owed_bytes, 0
        self._connection.write(buffers)
        self.stalled_at = self._clock.monotonic()
        await self._connection.drain()
        self.stalled_at = None
        self._pay_back(requests, size)

    def _pay_back(self, requests: int, size: int) -> None:
        self.requests -= requests
        self.bytes -= size
        check(self.requests >= 0 and self.bytes >= 0, "refunds do not exceed charges")
        if not self.full:
            self._capacity.wake()


log = logging.getLogger(__name__)


class State(Enum):
    """State of a session."""

    PROOF = "expects a proof that the client belongs to the cluster, and discloses nothing before"
    HELLO = "expects a hello"
    SERVING = "accepts requests"
    CLOSING = "accepts no more requests, answers the accepted ones, and sends the reason"
    CLOSED = "is over"


class Event(Enum):
    """Cause of a state change."""

    PROVEN = "the client belongs to the cluster"
    WELCOMED = "the hello is valid"
    ENDING = "invalid input, or the server shuts down"
    GONE = "the client disconnected, or the last answer was sent"


#: Every legal transition; a missing one is a bug.
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
    """Serves one connection until it ends. `durable` runs operations that must complete if the client
    disconnects."""

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
        """`proving`: requires a proof of cluster membership first; `on_settled`: called after the proof, or at the
        end of the session."""
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
            pass  # the client disconnected before it had all answers
        finally:
            self._move(Event.GONE)
            self._on_settled(self)
            await self._tasks.close()
            self._connection.close()

    def end(self, why: WeirError) -> None:
        """Accept no more requests, answer the accepted ones, send the reason to the client, and end. Polls end
        without an answer, since they may wait for long."""
        self._farewell = self._farewell or why
        if self.state is State.PROOF:
            self._connection.abort()
        self._move(Event.ENDING)

    def abort(self) -> None:
        """End immediately."""
        self._connection.abort()
        self._move(Event.GONE)

    def overdue(self, now: float) -> str | None:
        """The reason to end this session by force, or None."""
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
        """Send answers as they complete, and the reason for the end last."""
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
        """Handle the requests in a receive buffer, as fast as the limits allow."""
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
            # Not the client's fault: another bookie has this address now.
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

        # Charge the largest possible answer in advance, so that many concurrent reads stay within the limit.
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


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The listen address, and the limits of clients."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 1024
    #: Connections without proof of cluster membership; above this number the server closes the oldest.
    max_strangers: int = 128
    limits: SessionLimits = field(default_factory=SessionLimits)
    #: How often the server checks for silent sessions and for sessions that do not read.
    sweep_interval_s: float = 1.0
    #: How long `close` waits for answers to be sent.
    close_grace_s: float = 5.0


class BookieServer:
    """Serves one bookie. `start`, then `close`; closing the bookie is up to its owner."""

    def __init__(
        self,
        runtime: Runtime,
        bookie: Served,
        bookie_id: BookieId,
        settings: ServerSettings,
        *,
        tls: SSLContext | None = None,
        secret: ClusterSecret | None = None,
    ) -> None:
        """`secret`: clients must prove that they know it before the server accepts any other frame."""
        self._rng = runtime.rng
        self._secret = secret
        self._strangers: Strangers[Session] = Strangers(settings.max_strangers)
        self._clock = runtime.clock
        self._bookie = bookie
        self._bookie_id = bookie_id
        self._limits = settings.limits
        self._durable = TaskScope("bookie-server-durable")
        serving = ServingSettings(
            settings.host,
            settings.port,
            settings.max_connections,
            settings.sweep_interval_s,
            settings.close_grace_s,
        )
        self._server: Server[Session] = Server(
            runtime, "bookie", serving, self._session, tls=tls, too_many=_too_many
        )

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        """The bound port; the settings may have 0."""
        return self._server.port

    @property
    def connections(self) -> int:
        return len(self._server.sessions)

    async def start(self) -> None:
        """Bind, or raise AddressInUseError; then accept in the background."""
        await self._server.start()
        log.info("bookie %s listens on %s:%d", self._bookie_id, self.host, self.port)

    async def close(self) -> None:
        """Accept no more requests, answer the accepted ones within the grace time, and end every connection."""
        await self._server.close(BookieUnavailableError(f"bookie {self._bookie_id} shuts down"))
        await self._durable.close()

    def _session(self, connection: Connection) -> Session:
        proving = None
        if self._secret is not None:
            nonce = self._rng.randbytes(NONCE_BYTES)
            proving = ProvingServer(self._secret, PURPOSE, self._bookie_id, nonce)
        session = Session(
            self._bookie,
            self._bookie_id,
            connection,
            clock=self._clock,
            limits=self._limits,
            durable=self._durable,
            proving=proving,
            on_settled=self._strangers.settled,
        )
        if proving is not None:
            self._strangers.came(session)
        return session


def _too_many(limit: int) -> WeirError:
    return BookieBusyError(f"this bookie is at its limit of {limit} connections")
