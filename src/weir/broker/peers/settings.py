"""What brokers may cost each other, how long they wait, and how they know each other."""

from dataclasses import dataclass, field
from ssl import SSLContext

from weir.wire.peer.messages import MAX_FRAME_BYTES
from weir.wire.proof import ClusterSecret

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
