"""Where the AMQP gateway listens, and what one connection may cost.

What the AMQP gateway counts, for all of its listeners together.
"""

from dataclasses import dataclass, field

from weir.wire.amqp.command_reader import DEFAULT_CHANNEL_MAX, MAX_BODY_BYTES
from weir.wire.amqp.frames import DEFAULT_FRAME_MAX
from weir.wire.first_bytes import ServedPort


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one connection may cost. Over a limit on load, it is read no further until the load is less."""

    max_message_bytes: int = MAX_BODY_BYTES
    #: What is offered in connection.tune; clients may ask for less.
    frame_max: int = DEFAULT_FRAME_MAX
    channel_max: int = DEFAULT_CHANNEL_MAX
    heartbeat_s: int = 60
    #: Messages that are not stored yet.
    max_publishes: int = 32_768
    max_publish_bytes: int = 32 * 1024 * 1024
    #: Commands of all channels that wait behind one that takes a while, and their bytes.
    max_waiting: int = 4_096
    max_waiting_bytes: int = 8 * 1024 * 1024
    #: Messages that were taken from queues and that the client has not read yet.
    max_delivery_bytes: int = 8 * 1024 * 1024
    #: Messages of one channel that are delivered and not acknowledged, whatever its prefetch.
    max_unacked: int = 250_000
    #: Consumers of all channels.
    max_consumers: int = 10_000
    #: Messages and acknowledgements of one transaction, and its bytes.
    max_transaction: int = 100_000
    max_transaction_bytes: int = 64 * 1024 * 1024
    #: How long a client may take to open the connection, and to read what it is sent.
    connect_timeout_s: float = 10.0
    stall_timeout_s: float = 60.0
    #: A publisher that is held back for longer is told that it is blocked.
    blocked_after_s: float = 0.25
    #: How long an ended session lets messages be stored.
    settle_s: float = 5.0
    #: How long it then waits for the client's close-ok, or for the client to close the socket, as RabbitMQ does.
    linger_s: float = 30.0


@dataclass(frozen=True, slots=True)
class AmqpSettings:
    """One listener."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 10_000
    #: As `max_delivery_bytes`, for all connections together.
    max_delivery_bytes_in_all: int = 256 * 1024 * 1024
    #: Bytes of messages that are being received, over all connections.
    max_received_bytes: int = 256 * 1024 * 1024
    limits: SessionLimits = field(default_factory=SessionLimits)
    #: The listener among those of the process, for clients of other protocols.
    served: ServedPort = field(default_factory=lambda: ServedPort("amqp"))
    #: What the server calls the cluster that it belongs to.
    cluster_name: str = "weir"
    #: How often heartbeats are sent and sessions that say nothing, or read nothing, are looked for.
    sweep_interval_s: float = 1.0
    #: How long `close` lets answers go out.
    close_grace_s: float = 5.0


@dataclass(slots=True)
class AmqpMetrics:
    connections: int = 0
    channels: int = 0
    consumers: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Methods of clients, by their name.
    requests: dict[str, int] = field(default_factory=dict)
    #: Messages that clients published, and that they were sent.
    published: int = 0
    delivered: int = 0
    #: Mandatory messages that no queue wanted.
    returned: int = 0
    #: Messages that were to be confirmed and were not stored.
    nacked: int = 0
    #: Connections that were told to wait with what they publish.
    blocked: int = 0
    #: Connections that were ended for what they sent.
    refused: int = 0
    #: Consumers, and the like, that were refused since their connection had as many as it may have.
    over_limit: int = 0

    def count(self, method: str, count: int = 1) -> None:
        self.requests[method] = self.requests.get(method, 0) + count
