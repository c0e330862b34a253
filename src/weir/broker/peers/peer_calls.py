"""What brokers may cost each other, how long they wait, and how they know each other.

Asking another broker, and what a broker answers: the two interfaces that its parts have to do with.

Calls of clients from gateway to gateway, over the brokers' own protocol.

What is counted about calls between brokers: how many, how they went, how long they took, by their names.
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
        """Have a broker do something; this one is called directly. Raises what it raises there, else:

        PeerUnavailableError (out of reach, or too late: unless its `sent` is false it may have been done),
        PeerBusyError (nothing was done), PeerUnsupportedError (an older broker), PeerFailedError (anything else).
        """


class PeerHandlers:
    """What this broker answers. Parts say so when they are made, before it listens to others."""

    def __init__(self) -> None:
        self._handlers: dict[type[PeerRequest[Any]], Handler] = {}
        self.on(Ping, _pong)

    def on(self, kind: type[R], handler: Callable[[R], Awaitable[object]]) -> None:
        """Answer requests of this kind with what the function returns. It is ended when nobody waits for it any
        more, by its time limit; the end of the asker's connection alone does not end it."""
        check(kind not in self._handlers, f"{kind.__name__} is answered by one part")
        self._handlers[kind] = handler

    async def handle(self, request: PeerRequest[A]) -> A:
        """Do it here; PeerUnsupportedError if no part of this broker answers it."""
        handler = self._handlers.get(type(request))
        if handler is None:
            raise PeerUnsupportedError(f"this broker does not answer {call_of(request).name}")
        answer: Any = await handler(request)
        check(isinstance(answer, call_of(request).answer), f"{call_of(request).name} is answered by its own type")
        found: A = answer
        return found


class LonePeers:
    """A broker on its own: there is nobody else to ask."""

    def __init__(self, broker_id: str, handlers: PeerHandlers) -> None:
        self._broker_id = broker_id
        self._handlers = handlers

    async def ask(self, broker_id: str, request: PeerRequest[A], *, timeout_s: float | None = None) -> A:
        if broker_id != self._broker_id:
            raise PeerUnavailableError(f"there is no broker {broker_id} that could be asked", sent=False)
        return await self._handlers.handle(request)


async def _pong(_: Ping) -> Done:
    return Done()


#: The listener's name, in the configuration and in what a broker registers.
LISTENER = "peer"
#: The kind of link, in proofs.
PURPOSE = "peer"


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """The cluster's secret, or certificates of its authority, or both. With neither everyone is let in, which is
    for simulations and tests."""

    secret: ClusterSecret | None = None
    #: For the listener (it must ask for certificates), and for connections to others.
    server_tls: SSLContext | None = None
    client_tls: SSLContext | None = None


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What one connection of another broker may cost."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    #: Requests under way; more are refused as busy.
    max_requests: int = 1024
    #: Answers that the other broker does not read; above it, requests are refused as busy.
    max_unsent_bytes: int = 64 * 1024 * 1024
    #: No request may take longer, whatever the asker says.
    max_call_s: float = 120.0
    #: How long it may take to prove itself and say hello, to say anything at all, and to read its answers.
    hello_timeout_s: float = 5.0
    idle_timeout_s: float = 60.0
    stall_timeout_s: float = 30.0
    #: How long an ended session waits for the other side to hang up first, so that the reason reaches it.
    linger_s: float = 1.0


@dataclass(frozen=True, slots=True)
class PeerServerSettings:
    """Where to listen, and how many may come."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 2048
    #: Connections that have not proved themselves yet; of more, the one that has waited longest goes.
    max_strangers: int = 128
    limits: PeerLimits = field(default_factory=PeerLimits)
    sweep_interval_s: float = 1.0
    close_grace_s: float = 5.0


@dataclass(frozen=True, slots=True)
class PeerClientSettings:
    """How long to wait for another broker, and how much may wait for it."""

    connect_timeout_s: float = 3.0
    #: For the answer to a request whose asker does not say how long it waits.
    request_timeout_s: float = 10.0
    max_requests: int = 512
    max_bytes: int = 2 * MAX_FRAME_BYTES
    #: A broker from which nothing came for so long is asked whether it lives, and has so long to answer.
    ping_interval_s: float = 5.0
    ping_timeout_s: float = 5.0
    #: A connection on which nothing was asked for so long is closed.
    idle_s: float = 300.0
    #: After a failed attempt, requests fail at once until the next attempt is due.
    first_backoff_s: float = 0.05
    max_backoff_s: float = 2.0


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """How a broker of a cluster speaks with the others."""

    credentials: PeerCredentials = field(default_factory=PeerCredentials)
    client: PeerClientSettings = field(default_factory=PeerClientSettings)


@dataclass(slots=True)
class CallCounts:
    """Calls of one direction; the keys are a call's name, and its name with the error's ("" for none)."""

    outcomes: dict[tuple[str, str], int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    under_way: int = 0

    @contextmanager
    def timing(self, name: str, clock: Clock) -> Iterator[None]:
        """Count what happens within."""
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
    """Of one broker."""

    asked: CallCounts = field(default_factory=CallCounts)
    served: CallCounts = field(default_factory=CallCounts)
    #: Connections that did not prove that they belong to the cluster.
    strangers: int = 0


#: How much longer than the call itself its way may take.
_WAY_S = 5.0


class PeerGatewayCalls:
    """Fills `api.GatewayCalls`."""

    def __init__(self, peers: PeerCalls, handlers: PeerHandlers) -> None:
        self._peers = peers
        self._answering: dict[str, Answering] = {}
        handlers.on(GatewayCall, self._answer)

    def answer(self, gateway: str, answering: Answering) -> None:
        check(gateway not in self._answering, f"calls of {gateway} are answered by one part")
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
