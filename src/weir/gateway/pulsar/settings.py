"""Settings of a Pulsar listener, limits of one connection, and the gateway's metrics, summed over listeners."""

from dataclasses import dataclass, field

from weir.wire.first_bytes import ServedPort
from weir.wire.pulsar.frames import MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one connection. Above a load limit, the session stops reading until the load falls."""

    max_message_bytes: int = MAX_MESSAGE_BYTES
    #: The gateway refuses a batch that claims more messages.
    max_batch_messages: int = 100_000
    #: Asynchronous requests in flight: lookups, subscriptions and the like.
    max_requests: int = 1_000
    #: Sends that are not stored yet.
    max_publishes: int = 4_096
    max_publish_bytes: int = 32 * 1024 * 1024
    #: Bytes of messages read from the log that the client has not read yet.
    max_delivery_bytes: int = 8 * 1024 * 1024
    #: Producers, and likewise consumers; and a tenth as many topic watchers, each of which stores a list of the
    #: namespace's topics.
    max_links: int = 10_000
    #: The largest frame before authentication.
    max_connect_bytes: int = 64 * 1024
    #: Timeouts for CONNECT, for an idle connection (the broker pings after half of it), and for a client that does
    #: not read.
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0
    stall_timeout_s: float = 60.0
    #: The broker requests new credentials this long before they expire, or at half of their lifetime if later.
    refresh_ahead_s: float = 60.0
    #: How long an ended session waits for its sends, and then for the client to disconnect first, so that the
    #: reason reaches it: closing with unread bytes resets the connection, and the client may lose the reason.
    settle_s: float = 5.0
    linger_s: float = 1.0


@dataclass(frozen=True, slots=True)
class PulsarSettings:
    """Settings of one listener."""

    host: str = "127.0.0.1"
    port: int = 0
    #: This listener's entry among the ports of the process, to answer clients of other protocols.
    served: ServedPort = field(default_factory=lambda: ServedPort("pulsar"))
    #: The URL that clients use, `pulsar://host:port` or `pulsar+ssl://host:port`; None: the bound address.
    advertise: str | None = None
    max_connections: int = 10_000
    #: Like `max_delivery_bytes`, for all connections together.
    max_delivery_bytes_in_all: int = 256 * 1024 * 1024
    #: Bytes of partly received frames, over all connections.
    max_received_bytes: int = 256 * 1024 * 1024
    limits: SessionLimits = field(default_factory=SessionLimits)
    #: How often the server checks for idle and stalled sessions.
    sweep_interval_s: float = 1.0
    #: How long `close` waits for responses to be sent.
    close_grace_s: float = 5.0


@dataclass(slots=True)
class PulsarMetrics:
    connections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Commands of clients, by their number; a send counts once, regardless of its batch.
    requests: dict[int, int] = field(default_factory=dict)
    #: Connections that the gateway closed because of invalid input.
    refused: int = 0
    #: Producers, consumers and watchers that the gateway refused because of the connection's limit.
    over_limit: int = 0
