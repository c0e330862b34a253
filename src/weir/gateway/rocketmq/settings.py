"""Where the RocketMQ gateway listens, and what one connection may cost.

What the RocketMQ gateway counts, for all of its listeners together.
"""

from dataclasses import dataclass, field

from weir.wire.first_bytes import ServedPort
from weir.wire.http2.frames import Limits

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one connection may cost. Over a limit on load, it is read no further until the load is less."""

    http2: Limits = field(default_factory=Limits)
    #: Of a message's body, by RocketMQ's default; clients are told.
    max_body_bytes: int = 4 * MIB
    #: Of one request: a batch may have several messages.
    max_request_bytes: int = 16 * MIB
    #: Parts of requests that have not come whole, over all calls.
    max_arriving_bytes: int = 32 * MIB
    #: Messages that are not stored yet.
    max_sends: int = 8_192
    max_send_bytes: int = 32 * MIB
    #: What one receive brings at most, whatever it asks for; a single message may be larger.
    max_receive_messages: int = 32
    max_receive_bytes: int = 4 * MIB
    #: How long a client may take to say its first word, to read what it is sent, and be silent without any call.
    connect_timeout_s: float = 10.0
    stall_timeout_s: float = 60.0
    idle_timeout_s: float = 300.0
    #: How long an ended session lets calls be answered.
    settle_s: float = 2.0


@dataclass(frozen=True, slots=True)
class RocketmqSettings:
    """One listener. `name`: as the configuration and other brokers call it."""

    host: str = "127.0.0.1"
    port: int = 0
    name: str = "rocketmq"
    #: The listener among those of the process, for clients of other protocols.
    served: ServedPort = field(default_factory=lambda: ServedPort("rocketmq"))
    advertised_host: str = ""
    advertised_port: int = 0
    max_connections: int = 10_000
    max_received_bytes: int = 256 * MIB
    #: Deliveries that clients have not read, over all connections.
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
    #: Calls, by the name of their method.
    requests: dict[str, int] = field(default_factory=dict)
    #: Messages that were stored for the clients of this broker, and that they were sent, whichever broker has the
    #: queue: all brokers together count each once.
    sent: int = 0
    received: int = 0
    #: Calls of the clients of this broker that were made at another, which has the queue.
    handed_on: int = 0
    #: Connections that were ended for what they sent.
    refused: int = 0

    def count(self, method: str) -> None:
        self.requests[method] = self.requests.get(method, 0) + 1
