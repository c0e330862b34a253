"""Interfaces, settings and metrics of calls between brokers.

`PeerCalls` calls another broker, and `PeerHandlers` serves such calls. `PeerGatewayCalls` carries calls of clients
from gateway to gateway over the same protocol.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Protocol, TypeVar

from weir.broker.api.broker import Answering, ClientCall
from weir.model.check import check
from weir.model.errors import PeerUnavailableError, PeerUnsupportedError, WeirError
from weir.runtime.interfaces import Clock
from weir.wire.node.proof import ClusterSecret
from weir.wire.peer.call_table import call_of
from weir.wire.peer.calls import Done, GatewayAnswer, GatewayCall, Ping
from weir.wire.peer.protocol import MAX_FRAME_BYTES, A, PeerRequest

R = TypeVar("R", bound=PeerRequest[Any])
Handler = Callable[[Any], Awaitable[object]]


class PeerCalls(Protocol):
    async def ask(self, broker_id: str, request: PeerRequest[A], *, timeout_s: float | None = None) -> A:
        """Execute a request on a broker; on this broker by a direct call. Raises the errors of the handler, or:

        PeerUnavailableError (unreachable or timed out; the request may have been executed unless `sent` is false),
        PeerBusyError (not executed), PeerUnsupportedError (an older broker), PeerFailedError (any other error).
        """


class PeerHandlers:
    """The request handlers of this broker. Components register them before the broker listens to others."""

    def __init__(self) -> None:
        self._handlers: dict[type[PeerRequest[Any]], Handler] = {}
        self.on(Ping, _pong)

    def on(self, kind: type[R], handler: Callable[[R], Awaitable[object]]) -> None:
        """Serve requests of this type with the result of the function. The time limit cancels a handler; the end
        of the caller's connection alone does not."""
        check(kind not in self._handlers, f"{kind.__name__} has one handler")
        self._handlers[kind] = handler

    async def handle(self, request: PeerRequest[A]) -> A:
        """Execute a request on this broker. Raises PeerUnsupportedError if it has no handler."""
        handler = self._handlers.get(type(request))
        if handler is None:
            raise PeerUnsupportedError(f"this broker does not answer {call_of(request).name}")
        answer: Any = await handler(request)
        check(isinstance(answer, call_of(request).answer), f"{call_of(request).name} returns its own answer type")
        found: A = answer
        return found


class LonePeers:
    """`PeerCalls` of a standalone broker, which has no peers."""

    def __init__(self, broker_id: str, handlers: PeerHandlers) -> None:
        self._broker_id = broker_id
        self._handlers = handlers

    async def ask(self, broker_id: str, request: PeerRequest[A], *, timeout_s: float | None = None) -> A:
        if broker_id != self._broker_id:
            raise PeerUnavailableError(f"broker {broker_id} is unreachable: this broker is standalone", sent=False)
        return await self._handlers.handle(request)


async def _pong(_: Ping) -> Done:
    return Done()


#: The listener's name in the configuration and in broker registrations.
LISTENER = "peer"
#: The kind of link in proofs.
PURPOSE = "peer"


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """The cluster's secret, or certificates of its authority, or both. Without either, the listener admits every
    connection, which is for simulations and tests only."""

    secret: ClusterSecret | None = None
    #: For the listener (which must request certificates), and for connections to others.
    server_tls: SSLContext | None = None
    client_tls: SSLContext | None = None


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits of a connection from another broker."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    #: Pending requests; the server refuses more as busy.
    max_requests: int = 1024
    #: Unsent answers; above it, the server refuses requests as busy.
    max_unsent_bytes: int = 64 * 1024 * 1024
    #: Maximum time limit of a request, whatever the caller requests.
    max_call_s: float = 120.0
    #: Time limits for the proof and the hello, for silence, and for reading answers.
    hello_timeout_s: float = 5.0
    idle_timeout_s: float = 60.0
    stall_timeout_s: float = 30.0
    #: After the end of a session, the wait for the other side to close first, so that it receives the reason.
    linger_s: float = 1.0


@dataclass(frozen=True, slots=True)
class PeerServerSettings:
    """Address of the listener, and limits of its connections."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 2048
    #: Unauthenticated connections; above it, the server closes the oldest one.
    max_strangers: int = 128
    limits: PeerLimits = field(default_factory=PeerLimits)
    sweep_interval_s: float = 1.0
    close_grace_s: float = 5.0


@dataclass(frozen=True, slots=True)
class PeerClientSettings:
    """Timeouts of calls to another broker, and limits of its queue."""

    connect_timeout_s: float = 3.0
    #: For a request without a timeout of its own.
    request_timeout_s: float = 10.0
    max_requests: int = 512
    max_bytes: int = 2 * MAX_FRAME_BYTES
    #: After so long without data from a broker the client sends a ping, and waits for the answer.
    ping_interval_s: float = 5.0
    ping_timeout_s: float = 5.0
    #: A connection without a request for so long is closed.
    idle_s: float = 300.0
    #: After a failed connection attempt, requests fail at once until the next attempt is due.
    first_backoff_s: float = 0.05
    max_backoff_s: float = 2.0


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """Settings of a broker's calls to the others in its cluster."""

    credentials: PeerCredentials = field(default_factory=PeerCredentials)
    client: PeerClientSettings = field(default_factory=PeerClientSettings)


@dataclass(slots=True)
class CallCounts:
    """Calls in one direction; the keys are a call's name, and its name with that of the error ("" for success)."""

    outcomes: dict[tuple[str, str], int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    under_way: int = 0

    @contextmanager
    def timing(self, name: str, clock: Clock) -> Iterator[None]:
        """Count and time the call in the `with` block."""
        began, outcome = clock.monotonic(), ""
        self.under_way += 1
        try:
            yield
        except WeirError as failure:
            outcome = type(failure).__name__
            raise
        except BaseException:
            outcome = "other"
            raise
        finally:
            self.under_way -= 1
            key = (name, outcome)
            self.outcomes[key] = self.outcomes.get(key, 0) + 1
            self.seconds[name] = self.seconds.get(name, 0.0) + clock.monotonic() - began


@dataclass(slots=True)
class PeerMetrics:
    """Metrics of one broker."""

    asked: CallCounts = field(default_factory=CallCounts)
    served: CallCounts = field(default_factory=CallCounts)
    #: Connections that failed to authenticate as a member of the cluster.
    strangers: int = 0


#: Network time that a call may take in addition to its own time limit.
_WAY_S = 5.0


class PeerGatewayCalls:
    """Fills `api.GatewayCalls`."""

    def __init__(self, peers: PeerCalls, handlers: PeerHandlers) -> None:
        self._peers = peers
        self._answering: dict[str, Answering] = {}
        handlers.on(GatewayCall, self._answer)

    def answer(self, gateway: str, answering: Answering) -> None:
        check(gateway not in self._answering, f"calls of {gateway} have one handler")
        self._answering[gateway] = answering

    async def hand_on(self, broker_id: str, call: ClientCall) -> Sequence[bytes]:
        request = GatewayCall(
            call.gateway, call.method, call.role, call.client, call.body, call.wait_ms, call.about
        )
        answer = await self._peers.ask(broker_id, request, timeout_s=call.wait_ms / 1000 + _WAY_S)
        return answer.messages

    async def _answer(self, said: GatewayCall) -> GatewayAnswer:
        answering = self._answering.get(said.gateway)
        if answering is None:
            raise PeerUnsupportedError(f"this broker has no gateway for {said.gateway[:40]!r}")
        call = ClientCall(said.gateway, said.method, said.role, said.client, said.body, said.wait_ms, said.about)
        return GatewayAnswer(tuple(await answering(call)))
