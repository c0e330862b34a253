"""Statistics of a topic as values, for the admin API and for metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from weir.broker.api.consumers import SubscriptionType
from weir.broker.api.producers import AccessMode
from weir.model.messages import HalfCounts

#: Upper bounds of a histogram's buckets, in seconds; one more bucket counts longer times.
BOUNDS_S = (0.0005, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0, 5.0)
#: Property of a consumer that is a group member: the generation of its assignment.
GENERATION = "weir.generation"


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """Progress of a query: the number of its last batch, the rows of that batch, and rows per second."""

    batch: int = 0
    rows: int = 0
    rows_per_s: float = 0.0
    #: Messages trimmed before the query had read them, since its start.
    lost: int = 0
    #: Whether retention keeps messages until the query has read them.
    retain: bool = False


class CompactionStatus(Enum):
    """The result of a topic's last compaction, in Pulsar's words."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Flow:
    """Traffic since the topic was loaded, and its recent rates."""

    messages: int = 0
    bytes: int = 0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency histogram: the count per bucket of `BOUNDS_S`, the count of longer times, and the total time."""

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
    client_version: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    name: str
    address: str
    flow: Flow
    unacked: int
    #: The remaining credit of the waiting consumer.
    credit: int
    redelivered: int
    priority: int
    active: bool
    blocked: bool
    connected_ms: int
    properties: Mapping[str, str] = field(default_factory=dict)
    client_version: str = ""


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    name: str
    type: SubscriptionType | None
    durable: bool
    #: Unacknowledged messages, the approximate bytes of the log from the first of them on, and its age.
    backlog: int
    backlog_bytes: int
    oldest_unacked_s: float
    unacked: int
    mark_delete: int
    #: Messages acknowledged individually above `mark_delete`.
    holes: int
    read_at: int
    flow: Flow
    redelivered: int
    expired: int
    #: Messages excluded by its filter since the topic was loaded; they count as acknowledged.
    filtered: int = 0
    consumers: tuple[ConsumerStats, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    #: Progress of a query that keeps its position in this subscription.
    query: QueryProgress | None = None
    #: False for a consumer group without committed offsets here yet: only its members know their position.
    placed: bool = True

    @property
    def position(self) -> int | None:
        """The offset of the next message to acknowledge."""
        return self.mark_delete + 1 if self.placed else None


@dataclass(frozen=True, slots=True)
class LostEntries:
    """Entries [first, last] of a ledger that are damaged in every copy; readers continue after them."""

    ledger_id: int
    first: int
    last: int
    #: The offsets of these entries, [first_offset, end_offset); -1 if unknown.
    first_offset: int
    end_offset: int
    found_ms: int
    what: str


@dataclass(frozen=True, slots=True)
class UnreadWarning:
    """A policy is about to delete messages that a subscription (empty: any consumer) has not read: the number of
    messages, the time of the deletion, and the warning in words."""

    subscription: str
    policy: str
    messages: int
    at_ms: int
    what: str


@dataclass(frozen=True, slots=True)
class LakeStats:
    """The part of a topic that is read from the lake because its ledgers are deleted. `end_offset`: its end."""

    ledgers: int
    bytes: int
    end_offset: int
    #: Why the broker keeps ledgers that are due for deletion, if it does.
    problem: str = ""


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
    #: Reads served from the tail in memory, and other reads.
    cache_hits: int
    cache_misses: int
    publish_latency: Latency
    dispatch_latency: Latency
    producers: tuple[ProducerStats, ...] = ()
    subscriptions: tuple[SubscriptionStats, ...] = ()
    #: Messages dropped without a consumer, for a non-persistent topic.
    dropped: int = 0
    epoch: int | None = None
    lost: tuple[LostEntries, ...] = ()
    #: Delayed messages before their delivery time.
    held: int = 0
    #: Undecided half messages, and the counts of committed and rolled back ones.
    half: HalfCounts = field(default_factory=HalfCounts)
    #: Warnings about unread messages that policies are about to delete.
    unread: tuple[UnreadWarning, ...] = ()
    #: The part of the topic in the lake; None if it has none.
    lake: LakeStats | None = None
    #: Recent reads that storage could not serve, with the reasons.
    unreadable: tuple[str, ...] = ()

    @property
    def unread_messages(self) -> int:
        """The largest number of unread messages that one policy is about to delete."""
        return max((warning.messages for warning in self.unread), default=0)

    @property
    def lost_entries(self) -> int:
        return sum(lost.last - lost.first + 1 for lost in self.lost)


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """One ledger of a topic's log. `closed_ms`: the time of its last message; 0 while it is open."""

    ledger: int
    messages: int
    bytes: int
    opened_ms: int
    closed_ms: int = 0
    #: Whether the ledger is deleted, and readers use its copy in the lake.
    in_lake: bool = False


@dataclass(frozen=True, slots=True)
class CursorStats:
    """The cursor of a durable subscription, in offsets."""

    mark_delete: int
    read_at: int
    backlog: int
    holes: int
    active: bool


@dataclass(frozen=True, slots=True)
class InternalStats:
    """Ledgers of a stored topic and cursors of its durable subscriptions. `published`: messages since the load of
    the topic."""

    published: int
    size_bytes: int
    open_ledger: bool
    ledgers: tuple[LedgerStats, ...]
    cursors: Mapping[str, CursorStats]
