"""One Kafka client's connection: receives requests and sends the responses in the same order.

Kafka's clients send requests without waiting for responses. A request waits until the session has answered the one
before it, except requests with a `pipelined` handler (produce): the session decides them in their turn and answers
when the batches are stored. Above its limits the session stops reading, so TCP back-pressure slows a client that
floods or does not read its responses, at no cost to others. A table defines the session's states and transitions.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from enum import Enum
from functools import partial
from typing import Any

from weir.gateway.kafka.api_table import HANDLERS, Handler, api_versions
from weir.gateway.kafka.authentication import Credentials
from weir.gateway.kafka.context import Services
from weir.gateway.kafka.errors import Code, code_of, text_of
from weir.gateway.kafka.fetch.fetch_sessions import FetchSessions, Topics
from weir.gateway.kafka.in_flight import Load
from weir.gateway.kafka.metadata import Nodes
from weir.gateway.kafka.produce.prefetch import LoadsAhead
from weir.gateway.kafka.produce.producers import Publishing
from weir.gateway.kafka.responses import BARE, Answers, Slot, UnreadAnswers, stores
from weir.gateway.kafka.settings import KafkaMetrics
from weir.model.errors import (
    NetworkError,
    NotAuthenticatedError,
    TooManyError,
    UnknownVersionError,
    WeirError,
    WireError,
)
from weir.model.ids import Buffer
from weir.runtime.adjustable_clock import liveness
from weir.runtime.budgets import ByteBudget, RequestBudget, RequestShare
from weir.runtime.interfaces import Clock, Connection
from weir.runtime.server import Outbox
from weir.runtime.tasks import UNIT_BYTES, TaskScope, Turns, log_about
from weir.runtime.waiters import Waiters
from weir.wire.first_bytes import answer_to
from weir.wire.kafka.api_table import API, ApiKey
from weir.wire.kafka.classes import Message
from weir.wire.kafka.codec import decode_request, response_has
from weir.wire.kafka.frames import decode_request_header, splitter


class State(Enum):
    NAMELESS = "serves only authentication requests"
    SERVING = "serves requests; the credentials check whether a token has expired"
    FINISHING = "accepts no more requests, and stores the accepted ones"
    CLOSED = "is closed"


class Event(Enum):
    KNOWN = "the client has authenticated, perhaps again, or the broker accepts it as anonymous"
    ENDING = "invalid input, the client disconnected, or the server shuts down"
    GONE = "all accepted requests are finished, or the grace time is over"


#: Every legal transition; a missing one is a bug. A pending authentication may succeed in FINISHING.
NEXT: dict[State, dict[Event, State]] = {
    State.NAMELESS: {Event.KNOWN: State.SERVING, Event.ENDING: State.FINISHING, Event.GONE: State.CLOSED},
    State.SERVING: {Event.KNOWN: State.SERVING, Event.ENDING: State.FINISHING, Event.GONE: State.CLOSED},
    State.FINISHING: {Event.KNOWN: State.FINISHING, Event.ENDING: State.FINISHING, Event.GONE: State.CLOSED},
    State.CLOSED: {Event.KNOWN: State.CLOSED, Event.ENDING: State.CLOSED, Event.GONE: State.CLOSED},
}
#: The states in which a session reads.
READING = (State.NAMELESS, State.SERVING)

log = logging.getLogger(__name__)

#: The cost of a request in addition to its bytes, in units of work.
_REQUEST_UNITS = 4
_NO_TOKEN = b"\0\0\0\0"


class Session:
    """Serves one connection until it ends."""

    def __init__(
        self,
        services: Services,
        connection: Connection,
        *,
        advertised: tuple[str, int],
        nodes: Nodes,
        metrics: KafkaMetrics,
        fetch_sessions: FetchSessions,
        unread_budget: ByteBudget,
        request_budget: RequestBudget,
    ) -> None:
        self.state = State.NAMELESS
        self.services = services
        self.clock: Clock = services.clock
        self.limits = services.settings.limits
        #: This broker's address for clients of this listener.
        self.advertised_host, self.advertised_port = advertised
        #: The addresses of all brokers for clients of this listener.
        self.nodes = nodes
        #: The client id of the current request; "" without one.
        self.client_id = ""
        self.credentials = Credentials(services.broker, services.clock, connection.certificate)
        self.outbox = Outbox(connection, services.clock)
        self._request_share = RequestShare(request_budget, services.clock)
        self.load = Load(self.limits, self._request_share)
        self.turns = Turns(services.clock)
        self.publishing = Publishing(self)
        self.topics = Topics(services.broker, self.limits.max_fetch_partitions)
        self.fetch_sessions = fetch_sessions
        #: Bytes read for this client that the socket has not sent yet.
        self.unread = unread_budget.share()
        self.tasks = TaskScope(f"kafka {connection.peer}", on_failure=lambda _: self.abort())
        self._metrics = metrics
        self._answers = Answers(self.outbox, self.load, self.unread, metrics, self.abort)
        self._unread_answers = UnreadAnswers(self.unread, connection, self._answers, services)
        self._connection = connection
        self._splitter = splitter(self.limits.max_auth_bytes)
        self._waiting: deque[Slot] = deque()
        self._working = self._opening = False
        self._ahead = LoadsAhead(self)
        self._current: Slot | None = None
        self._work_to_do = Waiters()
        self._living = liveness(services.clock)
        self._came_at = self.heard_at = self._living.monotonic()
        self._held_back = False
        self._unheard = False
        self._farewell: WeirError | None = None
        self._ended = asyncio.Event()

    # --- lifecycle ---------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def role(self) -> str:
        return self.credentials.role

    async def run(self) -> None:
        """Serve until the connection ends; never raises because of the client's input."""
        log_about(connection=self.peer)
        self._metrics.connections += 1
        try:
            await self.credentials.welcome()
            self.known()
            self.tasks.spawn(self._receive(), "receive")
            working = self.tasks.spawn(self._work(), "work")
            await self._ended.wait()
            if self.state is not State.CLOSED:
                await self._finish_up(working)
        finally:
            self._metrics.connections -= 1
            self._move(Event.GONE)
            self.credentials.forget()
            self.fetch_sessions.close_of(self)
            self._unread_answers.close()
            await self.tasks.close()
            self._forget_waiting()
            await self.publishing.close()
            self._splitter.forget()
            self._answers.forget()
            self._request_share.close()
            self._connection.close()

    async def _finish_up(self, working: "asyncio.Task[None]") -> None:
        """Store the accepted batches: a client with acks=0 disconnects right after its last send."""
        if self._current is None or not stores(self._current):
            working.cancel()  # no client waits for its response
            await asyncio.wait([working])
            working = self.tasks.spawn(self._work(), "finish")
        began = self.clock.monotonic()
        await asyncio.wait([working], timeout=self.limits.settle_s)
        await self.publishing.settled(max(0.0, self.limits.settle_s - (self.clock.monotonic() - began)))
        self.outbox.flush()

    def _forget_waiting(self) -> None:
        self._ahead.forget()
        while self._waiting:
            slot = self._waiting.popleft()
            if slot.opening is not None:
                slot.opening.close()

    def end(self, why: WeirError) -> None:
        """Accept no more requests, store the accepted ones, and close. Kafka has no message to send the reason."""
        if self.state in READING:
            level = logging.WARNING if isinstance(why, WireError) else logging.INFO
            log.log(level, "connection of %s is closed: %s", self.peer, why)
            self._move(Event.ENDING)

    def end_after_answer(self, why: WeirError) -> None:
        """Close after the response to the current request."""
        self._farewell = why

    def abort(self) -> None:
        """Close immediately."""
        self._connection.abort()
        self._move(Event.GONE)

    def _move(self, event: Event) -> None:
        self.state = NEXT[self.state][event]
        if self.state not in READING:
            self._ended.set()

    def known(self) -> None:
        """Permit requests of full size after authentication."""
        if self.credentials.valid:
            self._move(Event.KNOWN)
            self.topics.role = self.role
            self._splitter.limit = self.limits.max_request_bytes

    def overdue(self, now: float) -> str | None:
        """The reason to abort this session, or None."""
        limits, silent_s = self.limits, now - self.heard_at
        self.publishing.expire(now)
        stalled_at = self.outbox.stalled_at
        if stalled_at is not None and now - stalled_at > limits.stall_timeout_s:
            return "the client does not read its responses"
        if self._unread_answers.late(now):
            return "other clients wait for memory, and this client does not read its responses"
        nameless_s = silent_s if self.role else now - self._came_at
        if not self.credentials.valid and nameless_s > limits.auth_timeout_s:
            return "the client did not authenticate in time"
        if self._held_back or stalled_at is not None:
            return None
        torn = not self._splitter.at_boundary
        if (torn and silent_s > limits.stall_timeout_s) or self._request_share.late(now, self.heard_at):
            return "the client does not send the rest of its request"
        return "the connection is idle" if silent_s > limits.idle_timeout_s and not self.load.requests else None

    # --- receiving ---------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        first = True
        try:
            while data := await self._connection.receive():
                self.heard_at = self._living.monotonic()
                if first:
                    first = False
                    self._greet(data)
                if self.state in READING:
                    await self._take(data)
                data = b""  # an idle connection keeps no buffer
                if self._splitter.announced > self._request_share.arriving:
                    await self._room_for_the_rest()
        except NetworkError as lost:
            log.debug("connection of %s broke: %s", self.peer, lost)
        self._move(Event.ENDING)

    def _greet(self, data: Buffer) -> None:
        """Check the first bytes; if they are of another protocol, answer in it, log that, and close."""
        wrong = self.services.settings.served.refusal(data)
        if wrong is not None:
            self._metrics.refused += 1
            answer = answer_to(data, wrong)
            if answer:
                self._connection.write([answer])
            self.end(wrong)

    async def _take(self, data: Buffer) -> None:
        """Process the requests in a receive buffer, as fast as the limits allow."""
        self._metrics.bytes_in += len(data)
        turns = self.turns
        turns.begin()
        try:
            for frame in self._splitter.feed(data):
                size = len(frame)
                self._on_frame(frame)
                if self.load.full:
                    await self._hold_back()
                if turns.spend(_REQUEST_UNITS + size // UNIT_BYTES):
                    await turns.next()
                if self.state not in READING:
                    return
        except WeirError as bad:
            self._metrics.refused += 1
            self.end(bad)
            return
        if self.publishing.senders:
            self._held_back = True
            await self.publishing.wait_capacity()
            self._held_back = False
        await self.outbox.drain()
        await self.clock.sleep(0)  # the next buffer may be here already

    async def _room_for_the_rest(self) -> None:
        """Wait for capacity for the whole of a partly received request before reading on."""
        self._held_back = True
        try:
            await self._request_share.wait_capacity(self._splitter.announced)
        except TooManyError as crowded:
            self._metrics.refused += 1
            self.end(crowded)
        self._held_back = False
        self.heard_at = self._living.monotonic()

    async def _hold_back(self) -> None:
        self._held_back = True
        self.outbox.flush()
        await self.load.wait_capacity()
        self._held_back = False
        self.heard_at = self._living.monotonic()

    def _on_frame(self, frame: memoryview) -> None:
        """Queue a request, and start it if none is before it; raises for errors that close the connection."""
        if self.credentials.bare:
            slot = Slot(BARE, 0, 0, "", frame, len(frame))
        else:
            (key, version, correlation_id, client_id), body = decode_request_header(frame)
            slot = Slot(key, version, correlation_id, client_id or "", body, len(frame))
        self._answers.expect(slot)
        if not self._working and not self._waiting:
            handler = HANDLERS.get(slot.api_key)
            if handler is not None and handler.pipelined:
                slot.opening = self._begin(slot, handler)
                if slot.opening is None:
                    return
        if self._opening:
            self._ahead.look(slot)
        self._waiting.append(slot)
        self._work_to_do.wake()

    # --- serving -----------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Serve queued requests one after the other. When the client no longer reads, serve only those that store
        messages."""
        while True:
            self._working = True
            while self._waiting:
                self._current = slot = self._waiting.popleft()
                if (self._unheard or self.state not in READING) and not stores(slot):
                    self._answers.put(slot, [])
                    continue
                try:
                    await self._serve(slot)
                except WeirError as bad:
                    self._metrics.refused += 1
                    self._farewell = bad
                if self._farewell is not None:
                    self._forget_waiting()
                    self.end(self._farewell)
                else:
                    await self._let_read()
            self._working, self._current = False, None
            if self.state not in READING:
                return
            await self._work_to_do.wait()

    async def _let_read(self) -> None:
        """Wait until the client has read most of its responses, and yield to other connections."""
        try:
            if self.state in READING:
                await self._unread_answers.let_read(self.outbox)
        except NetworkError:
            self._unheard = True  # the receive loop notices the lost connection
        if self._waiting:
            await self.turns.next()

    async def _serve(self, slot: Slot) -> None:
        if slot.opening is not None:
            await self._finish(slot, slot.opening)
            return
        if slot.api_key == BARE:
            await self._prove(slot)
            return
        handler = HANDLERS.get(slot.api_key)
        if handler is None:
            raise UnknownVersionError(f"API key {slot.api_key} is not supported")
        if handler.pipelined:
            opening = self._begin(slot, handler)
            if opening is not None:
                await self._finish(slot, opening)
            return
        if slot.api_key == ApiKey.API_VERSIONS and slot.version > handler.last:
            slot.version = 0  # a client sends this before it knows the versions; all clients decode version 0
            self._answers.give(slot, api_versions(Code.UNSUPPORTED_VERSION))
            return
        request = self._decode(slot, handler)
        try:
            answer = await handler.run(self, request, slot.version)
        except Exception as failure:
            self._refuse(slot, failure)
        else:
            self._answers.give(slot, answer)

    def _begin(self, slot: Slot, handler: Handler) -> Coroutine[Any, Any, None] | None:
        """Decide a pipelined request; returns a coroutine if it must await something first."""
        request = self._decode(slot, handler)
        try:
            opening: Coroutine[Any, Any, None] | None = handler.run(
                self, request, slot.version, partial(self._answers.give, slot)
            )
        except Exception as failure:
            self._refuse(slot, failure)
            return None
        return opening

    async def _finish(self, slot: Slot, opening: Coroutine[Any, Any, None]) -> None:
        self._opening = True
        self._ahead.look_behind(self._waiting)
        try:
            await opening
        except Exception as failure:
            self._refuse(slot, failure)
        finally:
            self._opening = False

    def _decode(self, slot: Slot, handler: Handler) -> Message:
        """Decode a request; raises for errors that close the connection."""
        key, version, frame = slot.api_key, slot.version, slot.frame
        requests = self._metrics.requests
        requests[key] = requests.get(key, 0) + 1
        if not self.credentials.valid and not handler.before_auth:
            raise NotAuthenticatedError("the client sent a request before it authenticated")
        self.client_id = slot.client_id
        if not handler.first <= version <= handler.last:
            raise UnknownVersionError(f"version {version} of {API[ApiKey(key)].name} is not supported")
        slot.frame = None
        return decode_request(key, version, frame if frame is not None else b"")

    async def _prove(self, slot: Slot) -> None:
        """Authenticate with a bare SASL token, after version 0 of the handshake; failures close the connection."""
        self.credentials.bare = False
        await self.credentials.prove(slot.frame if slot.frame is not None else b"")
        self.known()
        self._answers.put(slot, [_NO_TOKEN])

    # --- answering ---------------------------------------------------------------------------------------

    def _refuse(self, slot: Slot, failure: Exception) -> None:
        """Answer a request that failed as a whole, if its response has an error field; otherwise close."""
        name = API[ApiKey(slot.api_key)].name
        if not isinstance(failure, WeirError):
            log.error("a %s of %s failed", name, self.peer, exc_info=failure)
        response: Any = API[ApiKey(slot.api_key)].response
        if not response_has(slot.api_key, slot.version, "error_code"):
            raise failure if isinstance(failure, WeirError) else WireError(f"a {name} cannot be answered")
        log.debug("a %s of %s is refused: %s", name, self.peer, failure)
        told = response_has(slot.api_key, slot.version, "error_message")
        said = {"error_message": text_of(failure)} if told else {}
        self._answers.give(slot, response(error_code=code_of(failure), **said))
