"""Settings, session limits and counters of the AMQP gateway."""

from dataclasses import dataclass, field

from weir.wire.amqp.command_reader import DEFAULT_CHANNEL_MAX, MAX_BODY_BYTES
from weir.wire.amqp.frames import DEFAULT_FRAME_MAX
from weir.wire.first_bytes import ServedPort


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Resource limits of one connection. Over a limit on load, the session stops reading until the load drops."""

    max_message_bytes: int = MAX_BODY_BYTES
    #: The offer in connection.tune; clients may choose less.
    frame_max: int = DEFAULT_FRAME_MAX
    channel_max: int = DEFAULT_CHANNEL_MAX
    heartbeat_s: int = 60
    #: Unstored publishes, and their bytes.
    max_publishes: int = 32_768
    max_publish_bytes: int = 32 * 1024 * 1024
    #: Commands of all channels that wait behind slow ones, and their bytes.
    max_waiting: int = 4_096
    max_waiting_bytes: int = 8 * 1024 * 1024
    #: Bytes of messages fetched from queues that the client has not read yet.
    max_delivery_bytes: int = 8 * 1024 * 1024
    #: Unacknowledged messages of one channel, whatever its prefetch.
    max_unacked: int = 250_000
    #: Consumers of all channels.
    max_consumers: int = 10_000
    #: Messages plus acknowledgements of one transaction, and its bytes.
    max_transaction: int = 100_000
    max_transaction_bytes: int = 64 * 1024 * 1024
    #: Timeouts for the handshake, and for a client that does not read its deliveries.
    connect_timeout_s: float = 10.0
    stall_timeout_s: float = 60.0
    #: After a pause of this length the publisher receives connection.blocked.
    blocked_after_s: float = 0.25
    #: How long an ending session waits for its publishes to be stored.
    settle_s: float = 5.0
    #: How long it then waits for the client's close-ok, or for the client to close the socket, as RabbitMQ does.
    linger_s: float = 30.0


@dataclass(frozen=True, slots=True)
class AmqpSettings:
    """One listener."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 10_000
    #: `max_delivery_bytes` for all connections together.
    max_delivery_bytes_in_all: int = 256 * 1024 * 1024
    #: Bytes of partly received messages, over all connections.
    max_received_bytes: int = 256 * 1024 * 1024
    limits: SessionLimits = field(default_factory=SessionLimits)
    #: This listener and the process's other ones, for the answer to clients of other protocols.
    served: ServedPort = field(default_factory=lambda: ServedPort("amqp"))
    #: The cluster name in the server properties.
    cluster_name: str = "weir"
    #: Interval of the sweep that sends heartbeats and detects dead or stalled sessions.
    sweep_interval_s: float = 1.0
    #: How long `close` waits for pending answers.
    close_grace_s: float = 5.0


@dataclass(slots=True)
class AmqpMetrics:
    connections: int = 0
    channels: int = 0
    consumers: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Received methods, by name.
    requests: dict[str, int] = field(default_factory=dict)
    #: Messages published by clients, and delivered to them.
    published: int = 0
    delivered: int = 0
    #: Mandatory messages without a queue.
    returned: int = 0
    #: Messages that the broker nacked because it did not store them.
    nacked: int = 0
    #: Times that the broker blocked a publisher.
    blocked: int = 0
    #: Connections that the broker closed because of an error of the client.
    refused: int = 0
    #: Requests, such as basic.consume, refused because the connection had reached its limit.
    over_limit: int = 0

    def count(self, method: str, count: int = 1) -> None:
        self.requests[method] = self.requests.get(method, 0) + count
