"""Where the Kafka gateway listens, and what one connection may cost.

What the Kafka gateway counts, for all of its listeners together.
"""

from dataclasses import dataclass, field

from weir.runtime.budgets import PATIENCE_S
from weir.wire.first_bytes import ServedPort

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one connection may cost. Over a limit on load, it is read no further until the load is less."""

    #: The longest request. A produce request holds a batch for each of many partitions.
    max_request_bytes: int = 100 * _MIB
    #: Of a request before the client has said who it is.
    max_auth_bytes: int = 64 * 1024
    #: The largest record batch, where its topic does not say otherwise.
    max_batch_bytes: int = 5 * _MIB
    #: A batch that claims more records than this is refused; where it must be opened, each costs some 100 bytes.
    max_batch_records: int = 250_000
    #: Requests that are not answered yet, and the bytes of them.
    max_requests: int = 256
    max_pending_bytes: int = 32 * _MIB
    #: Partitions that one connection may produce to.
    max_producers: int = 50_000
    #: The most that one fetch is answered with, whatever it asks for (a larger first batch goes alone). A client
    #: looks at an answer when all of it is there, and then asks again: larger ones leave one side idle for long.
    max_fetch_bytes: int = 8 * _MIB
    #: The most partitions in one fetch.
    max_fetch_partitions: int = 100_000
    #: How long a client may take to say who it is, to say anything at all, to read its answers or send the rest of
    #: a request.
    auth_timeout_s: float = 10.0
    idle_timeout_s: float = 600.0
    stall_timeout_s: float = 60.0
    #: How long an ended session lets what it took be finished.
    settle_s: float = 5.0


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """One listener."""

    host: str = "127.0.0.1"
    port: int = 0
    #: How clients reach it; None: the bound address.
    advertised_host: str | None = None
    advertised_port: int | None = None
    #: The name of the listener in the configuration: clients are told of those of other brokers that have it.
    listener: str = "kafka"
    #: The listener among those of the process, for clients of other protocols.
    served: ServedPort = field(default_factory=lambda: ServedPort("kafka"))
    #: This broker's number, and the cluster's id (`weir.server.broker_node`), as clients are told.
    node_id: int = 0
    cluster_id: str = "weir"
    #: Where the admin API is; empty if there is none.
    http_url: str = ""
    max_connections: int = 10_000
    #: When topics begin a new ledger, as clients are told: Kafka's segments.
    ledger_bytes: int = 256 * _MIB
    ledger_age_s: float = 4 * 3600.0
    #: Bytes of requests that are being received or not answered yet, over all connections.
    max_received_bytes: int = 256 * _MIB
    #: How long one that is being received may be silent while others wait for the room that it has.
    receive_patience_s: float = PATIENCE_S
    #: Bytes that were read for clients and that they have not read, over all connections.
    max_unread_bytes: int = 256 * _MIB
    #: Incremental fetch sessions, and partitions in all of them together.
    max_fetch_sessions: int = 10_000
    max_fetch_session_partitions: int = 500_000
    limits: SessionLimits = field(default_factory=SessionLimits)
    #: How often sessions that say nothing, or read nothing, are looked for.
    sweep_interval_s: float = 1.0
    #: How long `close` lets answers go out.
    close_grace_s: float = 5.0


@dataclass(slots=True)
class KafkaMetrics:
    connections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Requests by the key of their API.
    requests: dict[int, int] = field(default_factory=dict)
    #: Connections that were ended for what they sent.
    refused: int = 0
