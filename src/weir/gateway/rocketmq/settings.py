"""Settings, session limits and counters of the RocketMQ gateway."""

from dataclasses import dataclass, field

from weir.wire.first_bytes import ServedPort
from weir.wire.http2.frames import Limits

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Resource limits of one connection. Over a limit on load, the session stops reading until the load drops."""

    http2: Limits = field(default_factory=Limits)
    #: Maximum message body, RocketMQ's default; clients receive it with their settings.
    max_body_bytes: int = 4 * MIB
    #: Maximum request, which may contain several messages.
    max_request_bytes: int = 16 * MIB
    #: Maximum bytes of incomplete requests, over all calls.
    max_arriving_bytes: int = 32 * MIB
    #: Unstored messages, and their bytes.
    max_sends: int = 8_192
    max_send_bytes: int = 32 * MIB
    #: Maximum result of one receive, whatever its request says; a single message may be larger.
    max_receive_messages: int = 32
    max_receive_bytes: int = 4 * MIB
    #: Timeouts for the first bytes, for a client that does not read its answers, and for silence without a call.
    connect_timeout_s: float = 10.0
    stall_timeout_s: float = 60.0
    idle_timeout_s: float = 300.0
    #: How long an ending session waits for its calls to be answered.
    settle_s: float = 2.0


@dataclass(frozen=True, slots=True)
class RocketmqSettings:
    """One listener. `name`: the listener's name in the configuration and for other brokers."""

    host: str = "127.0.0.1"
    port: int = 0
    name: str = "rocketmq"
    #: This listener and the process's other ones, for the answer to clients of other protocols.
    served: ServedPort = field(default_factory=lambda: ServedPort("rocketmq"))
    advertised_host: str = ""
    advertised_port: int = 0
    max_connections: int = 10_000
    max_received_bytes: int = 256 * MIB
    #: Bytes of deliveries that clients have not read yet, over all connections.
    max_delivery_bytes_in_all: int = 256 * MIB
    limits: SessionLimits = field(default_factory=SessionLimits)
    cluster_name: str = "weir"
    sweep_interval_s: float = 1.0
    close_grace_s: float = 5.0


@dataclass(slots=True)
class RocketmqMetrics:
    connections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Calls, by method name.
    requests: dict[str, int] = field(default_factory=dict)
    #: Messages stored for clients of this broker, and delivered to them, whichever broker owns the queue: all
    #: brokers together count each message once.
    sent: int = 0
    received: int = 0
    #: Calls of clients of this broker that were forwarded to the broker that owns the queue.
    handed_on: int = 0
    #: Connections that the broker closed because of an error of the client.
    refused: int = 0

    def count(self, method: str) -> None:
        self.requests[method] = self.requests.get(method, 0) + 1
