"""What there is to say about a topic, as values: for the admin API and for metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from weir.broker.api import AccessMode, SubscriptionType
from weir.broker.groups.query_progress import QueryProgress


class CompactionStatus(Enum):
    """How a topic's last compaction went, in Pulsar's words."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Flow:
    """What passed since the topic was loaded, and how fast of late."""

    messages: int = 0
    bytes: int = 0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Latency:
    """How often something took up to each of `meters.BOUNDS_S`, how often longer, and how long in all."""

    counts: tuple[int, ...] = ()
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProducerStats:
    name: str
    address: str
    access: AccessMode
    flow: Flow
    connected_ms: int
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    name: str
    address: str
    flow: Flow
    unacked: int
    #: What is left of the credit that it waits with.
    credit: int
    redelivered: int
    priority: int
    active: bool
    blocked: bool
    connected_ms: int
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    name: str
    type: SubscriptionType | None
    durable: bool
    #: Messages that are not acknowledged, about how many bytes lie from the first of them on, and its age.
    backlog: int
    backlog_bytes: int
    oldest_unacked_s: float
    unacked: int
    mark_delete: int
    #: Messages acknowledged one by one above the mark.
    holes: int
    read_at: int
    flow: Flow
    redelivered: int
    expired: int
    consumers: tuple[ConsumerStats, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    #: Of a query that keeps its position here.
    query: QueryProgress | None = None
    #: False of a consumer group whose members have committed nothing here yet: how far it is only they know.
    placed: bool = True

    @property
    def position(self) -> int | None:
        """The offset of the next message to acknowledge."""
        return self.mark_delete + 1 if self.placed else None


@dataclass(frozen=True, slots=True)
class TopicStats:
    name: str
    published: Flow
    delivered: Flow
    storage_bytes: int
    start_offset: int
    end_offset: int
    ledgers: int
    terminated: bool
    duplicates: int
    #: Reads that the tail in memory served, and that it could not.
    cache_hits: int
    cache_misses: int
    publish_latency: Latency
    dispatch_latency: Latency
    producers: tuple[ProducerStats, ...] = ()
    subscriptions: tuple[SubscriptionStats, ...] = ()
    #: Messages that nobody was there for, of a topic that stores none.
    dropped: int = 0
    epoch: int | None = None
