"""Server for calls from other brokers: the listener and its sessions.

Until the other side has proved its cluster membership, the server sends it nothing, not even the reason for a
close. It answers requests in order of completion, and refuses excess requests as busy instead of queuing them, so
that brokers that call each other cannot deadlock.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

from weir.broker.peers.peer_calls import (
    PURPOSE,
    PeerCredentials,
    PeerHandlers,
    PeerLimits,
    PeerMetrics,
    PeerServerSettings,
)
from weir.model.errors import (
    NetworkError,
    NotAuthenticatedError,
    PeerBusyError,
    PeerFailedError,
    PeerUnavailableError,
    WeirError,
    WireError,
)
from weir.model.ids import Buffer
from weir.runtime.budgets import RequestBudget, RequestShare
from weir.runtime.interfaces import Clock, Connection, Runtime
from weir.runtime.server import Outbox, Server, ServingSettings, Strangers
from weir.runtime.tasks import UNIT_BYTES, TaskScope, Turns
from weir.wire.node.frames import FrameSplitter
from weir.wire.node.proof import MAX_PROOF_BYTES, NONCE_BYTES, ProvingServer
from weir.wire.peer import protocol
from weir.wire.peer.call_table import call_named, decode_request_value, encode_answer_value
from weir.wire.peer.protocol import (
    FEATURES,
    MAX_HELLO_BYTES,
    Call,
    PeerRequest,
    Welcome,
    choose_version,
    decode_hello,
    encode_failure,
    encode_welcome,
)

log = logging.getLogger(__name__)


class State(Enum):
    """State of a session."""

    PROOF = "expects a proof"
    HELLO = "expects a hello"
    SERVING = "serves requests"
    CLOSING = "refuses requests, answers accepted ones, and sends the reason"
    CLOSED = "is closed"


_READING = (State.PROOF, State.HELLO, State.SERVING)


class PeerSession:
    """Serves one connection until it ends. `work` runs the handlers, which outlive the connection."""

    def __init__(
        self,
        broker_id: str,
        handlers: PeerHandlers,
        connection: Connection,
        *,
        clock: Clock,
        limits: PeerLimits,
        work: TaskScope,
        metrics: PeerMetrics,
        request_budget: RequestBudget,
        proving: ProvingServer | None,
        on_settled: Callable[["PeerSession"], None],
    ) -> None:
        """`proving`: None if a certificate has authenticated the connection. `on_settled`: called when the
        connection is authenticated, or has ended."""
        self._broker_id = broker_id
        self._handlers = handlers
        self._connection = connection
        self._clock = clock
        self._limits = limits
        self._work = work
        self._metrics = metrics
        self._proving = proving
        self._on_settled = on_settled
        self._share = RequestShare(request_budget, clock)
        self._turns = Turns(clock)
        self._outbox = Outbox(connection, clock)
        self._splitter = FrameSplitter(
            min(MAX_PROOF_BYTES if proving else MAX_HELLO_BYTES, limits.max_frame_bytes)
        )
        self._under_way: dict[asyncio.Task[Any], None] = {}
        self._came_at = self._heard_at = clock.monotonic()
        self._farewell: WeirError | None = None
        self._reading: asyncio.Task[None] | None = None
        self._asker = ""
        self.state = State.PROOF if proving else State.HELLO

    # --- lifecycle -----------------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return f"{self._connection.peer} ({self._asker})" if self._asker else self._connection.peer

    @property
    def known(self) -> bool:
        """Whether the other side has proved its cluster membership."""
        return self.state is not State.PROOF and self._asker != ""

    async def run(self) -> None:
        """Serve until the connection ends. No behavior of the other side makes it raise."""
        self._reading = asyncio.get_running_loop().create_task(self._receive(), name=f"peer receive {self.peer}")
        try:
            await asyncio.wait([self._reading])
            if not self._reading.cancelled():
                self._reading.result()
            if self.state is State.CLOSING:
                await self._say_farewell()
        except NetworkError:
            pass  # the other side closed while the server sent answers
        finally:
            self.state = State.CLOSED
            self._on_settled(self)
            self._reading.cancel()
            self._share.close()
            self._splitter.forget()
            self._connection.close()

    def end(self, why: WeirError) -> None:
        """Accept no more requests, answer the accepted ones, send the reason to an authenticated broker, and
        close."""
        if self.state not in _READING:
            return
        if not self.known:
            self.abort()
            return
        self._farewell = why
        self.state = State.CLOSING
        if self._reading is not None:
            self._reading.cancel()

    def abort(self) -> None:
        """Close at once."""
        self.state = State.CLOSED
        self._connection.abort()

    def overdue(self, now: float) -> str | None:
        """The reason why the server must abort this session; None if it must not."""
        limits, silent_s = self._limits, now - self._heard_at
        if self._outbox.stalled_at is not None and now - self._outbox.stalled_at > limits.stall_timeout_s:
            return "it does not read answers"
        if not self.known:
            return "it did not authenticate in time" if now - self._came_at > limits.hello_timeout_s else None
        if self._share.late(now, self._heard_at):
            return "its request is incomplete, and other requests wait for memory"
        return "it is silent" if silent_s > limits.idle_timeout_s else None

    async def _say_farewell(self) -> None:
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        if self._farewell is not None:
            self._outbox.say(protocol.encode_failed(0, encode_failure(self._farewell)))
        await self._outbox.drain()
        try:
            async with asyncio.timeout(self._limits.linger_s):
                while await self._connection.receive():
                    pass
        except TimeoutError:
            pass

    # --- receiving -----------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        try:
            while data := await self._connection.receive():
                self._heard_at = self._clock.monotonic()
                await self._process(data)
                data = b""  # an idle connection keeps no buffer
                if self._splitter.announced > self._share.arriving:
                    await self._share.wait_capacity(self._splitter.announced)
            if not self._splitter.at_boundary:
                log.warning("connection of %s ended within a frame", self.peer)
        except NetworkError as lost:
            log.debug("connection of %s broke: %s", self.peer, lost)
        except (WireError, NotAuthenticatedError) as bad:
            self._refuse(bad)
        except WeirError as full:
            self.end(full)

    def _refuse(self, bad: WeirError) -> None:
        log.warning("connection of %s is closed: %s", self.peer, bad)
        if not self.known:
            self._metrics.strangers += 1
            self.abort()
        else:
            self._farewell, self.state = bad, State.CLOSING

    async def _process(self, data: Buffer) -> None:
        """Process a receive buffer; yield to the loop when the turn is used up."""
        self._turns.begin()
        for body in self._splitter.feed(data):
            if self.state not in _READING:
                return
            self._ON_FRAME[self.state](self, body)
            if self._turns.spend(1 + len(body) // UNIT_BYTES):
                await self._turns.next()

    def _on_proof(self, body: memoryview) -> None:
        assert self._proving is not None
        reply = self._proving.receive(body)
        if self._proving.known:
            self.state = State.HELLO
            self._splitter.limit = min(MAX_HELLO_BYTES, self._limits.max_frame_bytes)
        self._outbox.say(reply)

    def _on_hello(self, body: memoryview) -> None:
        hello = decode_hello(body)
        if not hello.asker:
            raise WireError("the hello has no broker id")
        self._asker = hello.asker
        version = choose_version(hello)
        self._on_settled(self)
        if hello.meant != self._broker_id:
            # The caller is not at fault: the address has moved from one broker to another.
            raise WireError(f"this is broker {self._broker_id}, not {hello.meant}")
        self.state = State.SERVING
        self._splitter.limit = self._limits.max_frame_bytes
        welcome = Welcome(self._broker_id, version, FEATURES & hello.features, self._limits.max_frame_bytes)
        self._outbox.say(encode_welcome(welcome))

    def _on_request(self, body: memoryview) -> None:
        sent, size = protocol.decode_request(body), len(body)
        self._share.acquire(size)
        try:
            self._check_capacity()
            call = call_named(sent.call)
            request = decode_request_value(call, sent.value)
        except WeirError as refusal:
            self._share.release(size)
            self._outbox.say(protocol.encode_failed(sent.request_id, encode_failure(refusal)))
            return
        timeout_s = min(sent.timeout_ms / 1000, self._limits.max_call_s)
        task = self._work.spawn(self._serve(sent.request_id, call, request, timeout_s, size), call.name)
        self._under_way[task] = None
        task.add_done_callback(lambda ended: self._under_way.pop(ended, None))

    _ON_FRAME: ClassVar[dict[State, Callable[["PeerSession", memoryview], None]]] = {
        State.PROOF: _on_proof,
        State.HELLO: _on_hello,
        State.SERVING: _on_request,
    }

    # --- serving -------------------------------------------------------------------------------------------------

    def _check_capacity(self) -> None:
        limits = self._limits
        if len(self._under_way) >= limits.max_requests:
            raise PeerBusyError(f"{limits.max_requests} requests of {self._asker} are pending")
        if self._connection.unsent_bytes > limits.max_unsent_bytes:
            raise PeerBusyError(f"{self._asker} does not read its answers")

    async def _serve(
        self, request_id: int, call: Call[Any], request: PeerRequest[Any], timeout_s: float, size: int
    ) -> None:
        try:
            frame = await self._answer(request_id, call, request, timeout_s)
        finally:
            self._share.release(size)
        if self.state is not State.CLOSED:
            self._outbox.say(frame)
            try:
                await self._outbox.drain()
            except NetworkError as lost:
                log.debug("connection of %s broke: %s", self.peer, lost)

    async def _answer(
        self, request_id: int, call: Call[Any], request: PeerRequest[Any], timeout_s: float
    ) -> bytes:
        """Execute the request, and return the frame with its answer."""
        try:
            with self._metrics.served.timing(call.name, self._clock):
                try:
                    async with asyncio.timeout(timeout_s):
                        value = encode_answer_value(call, await self._handlers.handle(request))
                except TimeoutError:
                    raise PeerUnavailableError(f"{call.name} did not complete within {timeout_s:g} s") from None
            if len(value) + protocol.OVERHEAD_BYTES > self._limits.max_frame_bytes:
                raise PeerFailedError(f"the answer to {call.name} has {len(value)} bytes, which exceeds the limit")
        except Exception as failure:
            if not isinstance(failure, WeirError):
                log.error("%s of %s failed: %s", call.name, self.peer, failure, exc_info=failure)
            return protocol.encode_failed(request_id, encode_failure(failure))
        return protocol.encode_answer(request_id, value)


_REQUEST_BYTES = 256 * 1024 * 1024


class PeerServer:
    """Serves requests of other brokers with the handlers. Call `start`, then `close`."""

    def __init__(
        self,
        runtime: Runtime,
        broker_id: str,
        handlers: PeerHandlers,
        settings: PeerServerSettings,
        *,
        credentials: PeerCredentials | None = None,
        metrics: PeerMetrics | None = None,
        request_budget: RequestBudget | None = None,
    ) -> None:
        """`request_budget`: byte budget for requests that all listeners of this process share."""
        self._runtime = runtime
        self._broker_id = broker_id
        self._handlers = handlers
        self._limits = settings.limits
        self._credentials = credentials or PeerCredentials()
        self._metrics = metrics or PeerMetrics()
        self._request_budget = request_budget or RequestBudget(_REQUEST_BYTES)
        self._work = TaskScope(f"peer-server {broker_id}")
        self._strangers: Strangers[PeerSession] = Strangers(settings.max_strangers)
        serving = ServingSettings(
            settings.host,
            settings.port,
            settings.max_connections + settings.max_strangers,
            settings.sweep_interval_s,
            settings.close_grace_s,
        )
        self._server: Server[PeerSession] = Server(
            runtime, "peer", serving, self._session, tls=self._credentials.server_tls
        )

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        """The bound port, also if the settings have port 0."""
        return self._server.port

    @property
    def connections(self) -> int:
        return len(self._server.sessions)

    async def start(self) -> None:
        """Bind the port, then accept in the background. Raises AddressInUseError."""
        await self._server.start()
        log.info("broker %s listens to other brokers on %s:%d", self._broker_id, self.host, self.port)

    async def close(self) -> None:
        """Stop accepting, answer accepted requests within the grace time, and close all connections."""
        await self._server.close(PeerUnavailableError(f"broker {self._broker_id} shuts down"))
        await self._work.close()

    def _session(self, connection: Connection) -> PeerSession:
        secret, proving = self._credentials.secret, None
        if secret is not None:
            nonce = self._runtime.rng.randbytes(NONCE_BYTES)
            proving = ProvingServer(secret, PURPOSE, self._broker_id, nonce)
        session = PeerSession(
            self._broker_id,
            self._handlers,
            connection,
            clock=self._runtime.clock,
            limits=self._limits,
            work=self._work,
            metrics=self._metrics,
            request_budget=self._request_budget,
            proving=proving,
            on_settled=self._strangers.settled,
        )
        self._strangers.came(session)
        return session
