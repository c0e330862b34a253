"""Settings of a Kafka listener, limits of one connection, and the gateway's metrics, summed over listeners."""

from dataclasses import dataclass, field

from weir.runtime.budgets import PATIENCE_S
from weir.wire.first_bytes import ServedPort

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one connection. Above a load limit, the session stops reading until the load falls."""

    #: The largest request. A produce request carries a batch for each of many partitions.
    max_request_bytes: int = 100 * _MIB
    #: The largest request before authentication.
    max_auth_bytes: int = 64 * 1024
    #: The largest record batch, unless the topic sets its own limit.
    max_batch_bytes: int = 5 * _MIB
    #: The gateway refuses a batch that claims more records; decoding costs about 100 bytes per record.
    max_batch_records: int = 250_000
    #: Requests in flight, and their bytes.
    max_requests: int = 256
    max_pending_bytes: int = 32 * _MIB
    #: Partitions to which one connection may produce.
    max_producers: int = 50_000
    #: The largest fetch response, regardless of the request (a larger first batch is sent alone). Clients decode a
    #: response only when it is complete, and then fetch again: larger responses leave one side idle for long.
    max_fetch_bytes: int = 8 * _MIB
    #: Partitions in one fetch.
    max_fetch_partitions: int = 100_000
    #: Timeouts for authentication, for an idle connection, and for a client that does not read its responses or
    #: does not send the rest of a request.
    auth_timeout_s: float = 10.0
    idle_timeout_s: float = 600.0
    stall_timeout_s: float = 60.0
    #: How long an ended session waits for its accepted requests.
    settle_s: float = 5.0


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Settings of one listener."""

    host: str = "127.0.0.1"
    port: int = 0
    #: The address that clients use; None: the bound address.
    advertised_host: str | None = None
    advertised_port: int | None = None
    #: The listener's name in the configuration: Metadata returns the listeners of this name of other brokers.
    listener: str = "kafka"
    #: This listener's entry among the ports of the process, to answer clients of other protocols.
    served: ServedPort = field(default_factory=lambda: ServedPort("kafka"))
    #: This broker's node id, and the cluster id (`weir.server.broker_node`), as Metadata returns them.
    node_id: int = 0
    cluster_id: str = "weir"
    #: The URL of the admin API; empty without one.
    http_url: str = ""
    max_connections: int = 10_000
    #: When topics roll over to a new ledger, shown to clients as Kafka's segment configs.
    ledger_bytes: int = 256 * _MIB
    ledger_age_s: float = 4 * 3600.0
    #: Bytes of requests in receipt or in flight, over all connections.
    max_received_bytes: int = 256 * _MIB
    #: How long a partly received request may stall while others wait for its capacity.
    receive_patience_s: float = PATIENCE_S
    #: Bytes of responses that clients have not read, over all connections.
    max_unread_bytes: int = 256 * _MIB
    #: Incremental fetch sessions, and partitions in all of them together.
    max_fetch_sessions: int = 10_000
    max_fetch_session_partitions: int = 500_000
    limits: SessionLimits = field(default_factory=SessionLimits)
    #: How often the server checks for idle and stalled sessions.
    sweep_interval_s: float = 1.0
    #: How long `close` waits for responses to be sent.
    close_grace_s: float = 5.0


@dataclass(slots=True)
class KafkaMetrics:
    connections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Requests by the key of their API.
    requests: dict[int, int] = field(default_factory=dict)
    #: Connections that the gateway closed because of invalid input.
    refused: int = 0
