"""Where the Pulsar gateway listens, and what one connection may cost.

What the Pulsar gateway counts, for all of its listeners together.
"""

from dataclasses import dataclass, field

from weir.wire.first_bytes import ServedPort
from weir.wire.pulsar.frames import MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one connection may cost. Over a limit on load, it is read no further until the load is less."""

    max_message_bytes: int = MAX_MESSAGE_BYTES
    #: A batch that claims more messages than this is refused.
    max_batch_messages: int = 100_000
    #: Requests under way that take a while: lookups, subscriptions and the like.
    max_requests: int = 1_000
    #: Sends that are not stored yet.
    max_publishes: int = 4_096
    max_publish_bytes: int = 32 * 1024 * 1024
    #: Messages that were taken from the log and that the client has not read yet.
    max_delivery_bytes: int = 8 * 1024 * 1024
    #: Producers and consumers that it may have, each; and a tenth as many watchers of topics, each of which has a
    #: list of the namespace's topics.
    max_links: int = 10_000
    #: Of a frame before the client has said who it is.
    max_connect_bytes: int = 64 * 1024
    #: How long a client may take to connect, to say anything (it is pinged half-way), to read its answers.
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0
    stall_timeout_s: float = 60.0
    #: Credentials are asked for anew so long before they end, or at half of their time if that is later.
    refresh_ahead_s: float = 60.0
    #: How long an ended session lets sends be stored, and then waits for the client to hang up first, so that the
    #: reason reaches it: closing with bytes unread resets the connection and may take the reason with it.
    settle_s: float = 5.0
    linger_s: float = 1.0


@dataclass(frozen=True, slots=True)
class PulsarSettings:
    """One listener."""

    host: str = "127.0.0.1"
    port: int = 0
    #: The listener among those of the process, for clients of other protocols.
    served: ServedPort = field(default_factory=lambda: ServedPort("pulsar"))
    #: `pulsar://host:port` (or `pulsar+ssl://`) as clients reach it; None: the bound address.
    advertise: str | None = None
    max_connections: int = 10_000
    #: As `max_delivery_bytes`, for all connections together.
    max_delivery_bytes_in_all: int = 256 * 1024 * 1024
    #: Bytes of frames that are being received, over all connections.
    max_received_bytes: int = 256 * 1024 * 1024
    limits: SessionLimits = field(default_factory=SessionLimits)
    #: How often sessions that say nothing, or read nothing, are looked for.
    sweep_interval_s: float = 1.0
    #: How long `close` lets answers go out.
    close_grace_s: float = 5.0


@dataclass(slots=True)
class PulsarMetrics:
    connections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Commands of clients, by their number; a send is one, whatever batch it carries.
    requests: dict[int, int] = field(default_factory=dict)
    #: Connections that were ended for what they sent.
    refused: int = 0
    #: Consumers, and the like, that were refused since their connection had as many as it may have.
    over_limit: int = 0
