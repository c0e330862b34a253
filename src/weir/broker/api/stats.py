"""What there is to say about a topic, as values: for the admin API and for metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from weir.broker.api.consumers import SubscriptionType
from weir.broker.api.producers import AccessMode
from weir.model.messages import HalfCounts

#: Upper bounds of a histogram's classes, in seconds; one more class takes the rest.
BOUNDS_S = (0.0005, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0, 5.0)
#: A property of a consumer that is a member of a group: the generation that gave it its share.
GENERATION = "weir.generation"


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """Of the last batch: its number, its rows, and how many of them were done in a second."""

    batch: int = 0
    rows: int = 0
    rows_per_s: float = 0.0
    #: Messages that were trimmed before the query had read them, since its beginning.
    lost: int = 0
    #: Whether messages are to stay until the query has read them.
    retain: bool = False


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
    client_version: str = ""


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
    client_version: str = ""


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
    #: Messages that its filter left out since the topic was loaded; they count as acknowledged.
    filtered: int = 0
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
class LostEntries:
    """Entries [first, last] of a ledger that are damaged in every copy; readers go on behind them."""

    ledger_id: int
    first: int
    last: int
    #: The offsets that they had, [first_offset, end_offset); -1 where that is not known.
    first_offset: int
    end_offset: int
    found_ms: int
    what: str


@dataclass(frozen=True, slots=True)
class UnreadWarning:
    """A policy is about to delete what a subscription (empty: nobody at all) has not read: how many messages it
    has not, from when on they go, and the same in words."""

    subscription: str
    policy: str
    messages: int
    at_ms: int
    what: str


@dataclass(frozen=True, slots=True)
class LakeStats:
    """What of a topic is read from the lake, its ledgers being gone; `end_offset`: up to where."""

    ledgers: int
    bytes: int
    end_offset: int
    #: Why ledgers that should go stay, if they do.
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
    lost: tuple[LostEntries, ...] = ()
    #: Messages that wait for their moment.
    held: int = 0
    #: Those that wait to be committed or rolled back, and what became of others.
    half: HalfCounts = field(default_factory=HalfCounts)
    #: What policies are about to delete unread.
    unread: tuple[UnreadWarning, ...] = ()
    #: What is read from the lake; None if nothing is.
    lake: LakeStats | None = None
    #: What readers wanted of late and storage did not give, and why.
    unreadable: tuple[str, ...] = ()

    @property
    def unread_messages(self) -> int:
        """The most that any policy is about to delete of what somebody has not read."""
        return max((told.messages for told in self.unread), default=0)

    @property
    def lost_entries(self) -> int:
        return sum(lost.last - lost.first + 1 for lost in self.lost)


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """One ledger of a topic's log. `closed_ms`: when its last message came; 0 while it is open."""

    ledger: int
    messages: int
    bytes: int
    opened_ms: int
    closed_ms: int = 0
    #: Whether it is gone, and its copy in the lake is read.
    in_lake: bool = False


@dataclass(frozen=True, slots=True)
class CursorStats:
    """How far a durable subscription is, in offsets."""

    mark_delete: int
    read_at: int
    backlog: int
    holes: int
    active: bool


@dataclass(frozen=True, slots=True)
class InternalStats:
    """What lies behind a stored topic: ledgers, and the cursors of durable subscriptions. `published`: messages
    since it was loaded."""

    published: int
    size_bytes: int
    open_ledger: bool
    ledgers: tuple[LedgerStats, ...]
    cursors: Mapping[str, CursorStats]
