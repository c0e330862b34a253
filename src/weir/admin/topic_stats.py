"""Stats of topics in Pulsar's words: pure functions from the broker's values.

Bodies of stats, with Pulsar's field names. Moments are milliseconds since 1970; 0 where Weir keeps none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime

from msgspec import Struct, field

from weir.admin.names import PartitionedTopicMetadata, Properties
from weir.broker.api.consumers import SubscriptionType
from weir.broker.api.producers import AccessMode
from weir.broker.api.stats import (
    GENERATION,
    ConsumerStats,
    CursorStats,
    Flow,
    LedgerStats,
    ProducerStats,
    QueryProgress,
    SubscriptionStats,
    TopicStats,
)
from weir.broker.api.topics import Topic


class PublisherStatsBody(Struct):
    producerName: str
    accessMode: str
    address: str
    connectedSince: str
    msgRateIn: float
    msgThroughputIn: float
    averageMsgSize: float
    clientVersion: str = ""
    producerId: int = 0
    metadata: Properties = field(default_factory=dict)


class ConsumerStatsBody(Struct):
    consumerName: str
    address: str
    connectedSince: str
    msgRateOut: float
    msgThroughputOut: float
    msgOutCounter: int
    bytesOutCounter: int
    availablePermits: int
    unackedMessages: int
    blockedConsumerOnUnackedMsgs: bool
    priorityLevel: int = 0
    clientVersion: str = ""
    msgRateRedeliver: float = 0.0
    metadata: Properties = field(default_factory=dict)


class QueryBody(Struct):
    """The last batch of a query: its number, rows, rows per second; and what was trimmed before it was read."""

    batch: int = 0
    rows: int = 0
    rowsPerSecond: float = 0.0
    lost: int = 0


class SubscriptionStatsBody(Struct):
    type: str | None
    msgRateOut: float = 0.0
    msgThroughputOut: float = 0.0
    msgOutCounter: int = 0
    bytesOutCounter: int = 0
    msgRateRedeliver: float = 0.0
    msgRateExpired: float = 0.0
    totalMsgExpired: int = 0
    #: What its filter left out, since the topic was loaded.
    filterRejectedMsgCount: int = 0
    msgBacklog: int = 0
    msgBacklogNoDelayed: int = 0
    backlogSize: int = 0
    msgDelayed: int = 0
    unackedMessages: int = 0
    earliestMsgPublishTimeInBacklog: int = 0
    blockedSubscriptionOnUnackedMsgs: bool = False
    activeConsumerName: str | None = None
    consumers: list[ConsumerStatsBody] = field(default_factory=list)
    isDurable: bool = True
    isReplicated: bool = False
    nonContiguousDeletedMessagesRanges: int = 0
    subscriptionProperties: Properties = field(default_factory=dict)
    #: Not Pulsar's: the offset of the next message to acknowledge; of several partitions together there is none.
    position: int | None = None
    #: Not Pulsar's: what a query said that keeps its position here.
    query: QueryBody | None = None


class CompactionBody(Struct):
    lastCompactionRemovedEventCount: int = 0
    lastCompactionSucceedTimestamp: int = 0
    lastCompactionFailedTimestamp: int = 0
    lastCompactionDurationTimeInMills: int = 0


class LostEntriesBody(Struct):
    """Entries that are damaged in every copy: `firstOffset` up to and without `endOffset`, -1 if not known."""

    ledgerId: int
    firstEntry: int
    lastEntry: int
    firstOffset: int
    endOffset: int
    found: str
    what: str


class UnreadWarningBody(Struct):
    """A policy is about to delete what the subscription (empty: nobody) has not read."""

    subscription: str
    policy: str
    messages: int
    at: str
    what: str


class LakeBody(Struct):
    """Ledgers that are gone, and whose copies in the lake are read; the offset up to which that is so."""

    ledgers: int
    bytes: int
    endOffset: int
    #: Why ledgers that should go to the lake stay, if they do.
    problem: str = ""


class TopicStatsBody(Struct):
    msgRateIn: float = 0.0
    msgThroughputIn: float = 0.0
    msgRateOut: float = 0.0
    msgThroughputOut: float = 0.0
    msgInCounter: int = 0
    bytesInCounter: int = 0
    msgOutCounter: int = 0
    bytesOutCounter: int = 0
    averageMsgSize: float = 0.0
    storageSize: int = 0
    backlogSize: int = 0
    earliestMsgPublishTimeInBacklogs: int = 0
    offloadedStorageSize: int = 0
    msgChunkPublished: bool = False
    waitingPublishers: int = 0
    deduplicationStatus: str = "Disabled"
    topicEpoch: int | None = None
    nonContiguousDeletedMessagesRanges: int = 0
    publishers: list[PublisherStatsBody] = field(default_factory=list)
    subscriptions: dict[str, SubscriptionStatsBody] = field(default_factory=dict)
    replication: dict[str, Properties] = field(default_factory=dict)
    compaction: CompactionBody = field(default_factory=CompactionBody)
    ownerBroker: str = ""
    lostEntries: list[LostEntriesBody] = field(default_factory=list)
    aboutToGo: list[UnreadWarningBody] = field(default_factory=list)
    #: What readers want, and storage does not give now: which offset, and why. Kafka's answers cannot say it.
    unreadable: list[str] = field(default_factory=list)
    #: Not Pulsar's: how many messages are stored, and their offsets; of several partitions there are none.
    messages: int = 0
    startOffset: int | None = None
    endOffset: int | None = None
    #: Not Pulsar's: what is read from the lake.
    lake: LakeBody | None = None


class PartitionedStatsBody(TopicStatsBody, kw_only=True):
    metadata: PartitionedTopicMetadata
    partitions: dict[str, TopicStatsBody] = field(default_factory=dict)


class LedgerBody(Struct):
    ledgerId: int
    entries: int
    size: int
    offloaded: bool = False
    timestamp: int = 0
    underReplicated: bool = False


class CursorBody(Struct):
    markDeletePosition: str
    readPosition: str
    messagesConsumedCounter: int
    totalNonContiguousDeletedMessagesRange: int
    numberOfEntriesSinceFirstNotAckedMessage: int
    waitingReadOp: bool = False
    pendingReadOps: int = 0
    cursorLedger: int = -1
    cursorLedgerLastEntry: int = -1
    individuallyDeletedMessages: str = "[]"
    lastLedgerSwitchTimestamp: str = ""
    state: str = "Open"
    active: bool = False
    properties: dict[str, int] = field(default_factory=dict)


class InternalStatsBody(Struct):
    """Entries are messages here: Weir's positions count messages, not batches."""

    entriesAddedCounter: int = 0
    numberOfEntries: int = 0
    totalSize: int = 0
    currentLedgerEntries: int = 0
    currentLedgerSize: int = 0
    lastLedgerCreatedTimestamp: str = ""
    waitingCursorsCount: int = 0
    pendingAddEntriesCount: int = 0
    lastConfirmedEntry: str = "-1:-1"
    state: str = "LedgerOpened"
    ledgers: list[LedgerBody] = field(default_factory=list)
    cursors: dict[str, CursorBody] = field(default_factory=dict)
    schemaLedgers: list[LedgerBody] = field(default_factory=list)
    compactedLedger: LedgerBody = field(default_factory=lambda: LedgerBody(-1, -1, -1))


class PartitionedInternalStatsBody(Struct):
    metadata: PartitionedTopicMetadata
    partitions: dict[str, InternalStatsBody] = field(default_factory=dict)


class OfflineStatsBody(Struct):
    """What waits in a topic, in all and for each subscription."""

    totalMessages: int
    messageBacklog: int
    storageSize: int
    cursorDetails: dict[str, int] = field(default_factory=dict)
    topicName: str = ""


_ACCESS = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}
SUBSCRIPTION_TYPES = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}


def moment(wall_ms: int) -> str:
    """A moment as Pulsar writes them."""
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a client's clock can say anything
        return ""


@dataclass(frozen=True, slots=True)
class StatsWanted:
    """What of a topic's stats is asked for, with Pulsar's defaults. Weir's backlog is always the precise one."""

    publishers: bool = True
    consumers: bool = True
    backlog_size: bool = True
    earliest: bool = False


def topic_stats(
    stats: TopicStats,
    now_ms: int,
    *,
    deduplication: bool = False,
    owner: str = "",
    wanted: StatsWanted | None = None,
) -> TopicStatsBody:
    flow, wanted = stats.published, wanted or StatsWanted()
    subscriptions = {s.name: _subscription(s, now_ms, wanted) for s in stats.subscriptions}
    return TopicStatsBody(
        msgRateIn=flow.messages_per_s,
        msgThroughputIn=flow.bytes_per_s,
        msgRateOut=stats.delivered.messages_per_s,
        msgThroughputOut=stats.delivered.bytes_per_s,
        msgInCounter=flow.messages,
        bytesInCounter=flow.bytes,
        msgOutCounter=stats.delivered.messages,
        bytesOutCounter=stats.delivered.bytes,
        averageMsgSize=_mean(flow),
        storageSize=stats.storage_bytes,
        offloadedStorageSize=0 if stats.lake is None else stats.lake.bytes,
        lake=None if stats.lake is None else LakeBody(*astuple(stats.lake)),
        backlogSize=max((s.backlog_bytes for s in stats.subscriptions), default=0),
        earliestMsgPublishTimeInBacklogs=_earliest(subscriptions.values()),
        deduplicationStatus="Enabled" if deduplication else "Disabled",
        topicEpoch=stats.epoch,
        nonContiguousDeletedMessagesRanges=sum(s.holes for s in stats.subscriptions),
        publishers=[_publisher(producer) for producer in stats.producers] if wanted.publishers else [],
        subscriptions=subscriptions,
        ownerBroker=owner,
        aboutToGo=[
            UnreadWarningBody(told.subscription, told.policy, told.messages, moment(told.at_ms), told.what)
            for told in stats.unread
        ],
        unreadable=list(stats.unreadable),
        lostEntries=[
            LostEntriesBody(
                lost.ledger_id,
                lost.first,
                lost.last,
                lost.first_offset,
                lost.end_offset,
                moment(lost.found_ms),
                lost.what,
            )
            for lost in stats.lost
        ],
        messages=stats.end_offset - stats.start_offset,
        startOffset=stats.start_offset,
        endOffset=stats.end_offset,
    )


def _publisher(stats: ProducerStats) -> PublisherStatsBody:
    return PublisherStatsBody(
        producerName=stats.name,
        accessMode=_ACCESS[stats.access],
        address=stats.address,
        connectedSince=moment(stats.connected_ms),
        msgRateIn=stats.flow.messages_per_s,
        msgThroughputIn=stats.flow.bytes_per_s,
        averageMsgSize=_mean(stats.flow),
        clientVersion=stats.client_version,
        metadata=dict(stats.properties),
    )


def _earliest(found: Iterable[SubscriptionStatsBody]) -> int:
    """When the oldest message that somebody has not acknowledged was published; 0 if it was not asked for."""
    known = [one.earliestMsgPublishTimeInBacklog for one in found if one.earliestMsgPublishTimeInBacklog > 0]
    return min(known, default=0)


def _subscription(stats: SubscriptionStats, now_ms: int, wanted: StatsWanted) -> SubscriptionStatsBody:
    active = [consumer.name for consumer in stats.consumers if consumer.active]
    single = stats.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
    return SubscriptionStatsBody(
        type=None if stats.type is None else SUBSCRIPTION_TYPES[stats.type],
        msgRateOut=stats.flow.messages_per_s,
        msgThroughputOut=stats.flow.bytes_per_s,
        msgOutCounter=stats.flow.messages,
        bytesOutCounter=stats.flow.bytes,
        totalMsgExpired=stats.expired,
        filterRejectedMsgCount=stats.filtered,
        msgBacklog=stats.backlog,
        msgBacklogNoDelayed=stats.backlog,
        backlogSize=stats.backlog_bytes if wanted.backlog_size else -1,
        unackedMessages=stats.unacked,
        earliestMsgPublishTimeInBacklog=_oldest_ms(stats, now_ms) if wanted.earliest else 0,
        blockedSubscriptionOnUnackedMsgs=any(consumer.blocked for consumer in stats.consumers),
        activeConsumerName=active[0] if single and active else None,
        consumers=[_consumer(consumer) for consumer in stats.consumers] if wanted.consumers else [],
        isDurable=stats.durable,
        nonContiguousDeletedMessagesRanges=stats.holes,
        subscriptionProperties=dict(stats.properties),
        position=stats.position,
        query=None if stats.query is None else _query(stats.query),
    )


def _oldest_ms(stats: SubscriptionStats, now_ms: int) -> int:
    """-1 if everything is acknowledged, as in Pulsar."""
    return now_ms - int(stats.oldest_unacked_s * 1000) if stats.backlog else -1


def _query(said: QueryProgress) -> QueryBody:
    return QueryBody(said.batch, said.rows, said.rows_per_s, said.lost)


def _consumer(stats: ConsumerStats) -> ConsumerStatsBody:
    return ConsumerStatsBody(
        consumerName=stats.name,
        address=stats.address,
        connectedSince=moment(stats.connected_ms),
        msgRateOut=stats.flow.messages_per_s,
        msgThroughputOut=stats.flow.bytes_per_s,
        msgOutCounter=stats.flow.messages,
        bytesOutCounter=stats.flow.bytes,
        availablePermits=stats.credit,
        unackedMessages=stats.unacked,
        blockedConsumerOnUnackedMsgs=stats.blocked,
        priorityLevel=stats.priority,
        clientVersion=stats.client_version,
        metadata=dict(stats.properties),
    )


def _mean(flow: Flow) -> float:
    return flow.bytes / flow.messages if flow.messages else 0.0


# --- of all partitions together -----------------------------------------------------------------------------

_SUMMED = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "msgInCounter",
    "bytesInCounter",
    "msgOutCounter",
    "bytesOutCounter",
    "storageSize",
    "offloadedStorageSize",
    "backlogSize",
    "nonContiguousDeletedMessagesRanges",
    "messages",
)
_SUMMED_OF_SUBSCRIPTION = (
    "msgRateOut",
    "msgThroughputOut",
    "msgOutCounter",
    "bytesOutCounter",
    "totalMsgExpired",
    "filterRejectedMsgCount",
    "msgBacklog",
    "msgBacklogNoDelayed",
    "backlogSize",
    "unackedMessages",
    "nonContiguousDeletedMessagesRanges",
)


def partitioned_stats(parts: dict[str, TopicStatsBody], *, each: bool) -> PartitionedStatsBody:
    """Sums over the partitions, and if `each` these themselves."""
    whole = PartitionedStatsBody(metadata=PartitionedTopicMetadata(len(parts)))
    for name in _SUMMED:
        setattr(whole, name, sum(getattr(part, name) for part in parts.values()))
    whole.averageMsgSize = whole.bytesInCounter / whole.msgInCounter if whole.msgInCounter else 0.0
    whole.publishers = [publisher for part in parts.values() for publisher in part.publishers]
    named: dict[str, list[SubscriptionStatsBody]] = {}
    for part in parts.values():
        for name, subscription in part.subscriptions.items():
            named.setdefault(name, []).append(subscription)
    whole.subscriptions = {name: _together(found) for name, found in named.items()}
    whole.earliestMsgPublishTimeInBacklogs = _earliest(whole.subscriptions.values())
    whole.partitions = parts if each else {}
    return whole


def _together(found: Sequence[SubscriptionStatsBody]) -> SubscriptionStatsBody:
    whole = SubscriptionStatsBody(next((one.type for one in found if one.type is not None), None))
    for name in _SUMMED_OF_SUBSCRIPTION:
        setattr(whole, name, sum(getattr(one, name) for one in found))
    whole.backlogSize = max(-1, whole.backlogSize)  # which is -1 where it was not asked for
    members: dict[str, None] = {}  # of a group: each has many partitions, and is the same on all of them
    whole.consumers = []
    for consumer in (consumer for one in found for consumer in one.consumers):
        if GENERATION in consumer.metadata:
            if consumer.consumerName in members:
                continue
            members[consumer.consumerName] = None
        whole.consumers.append(consumer)
    whole.isDurable = found[0].isDurable
    whole.subscriptionProperties = found[0].subscriptionProperties
    whole.blockedSubscriptionOnUnackedMsgs = any(one.blockedSubscriptionOnUnackedMsgs for one in found)
    queries = [one.query for one in found if one.query is not None]
    # It says the same of all partitions at once; one that is gone from its batches has what it said before.
    whole.query = max(queries, key=lambda one: (one.batch, one.lost), default=None)
    whole.earliestMsgPublishTimeInBacklog = _earliest(found) or found[0].earliestMsgPublishTimeInBacklog
    return whole


# --- of the ledgers behind it -------------------------------------------------------------------------------


def _ledger(one: LedgerStats) -> LedgerBody:
    return LedgerBody(one.ledger, one.messages, one.bytes, one.in_lake, timestamp=one.closed_ms)


def internal_stats(topic: Topic) -> InternalStatsBody:
    stored = topic.stored
    if stored is None:
        return InternalStatsBody(state="NonPersistent")
    found = stored.internal_stats()
    ledgers = [_ledger(one) for one in found.ledgers]
    open_ledger = ledgers[-1] if found.open_ledger else None
    return InternalStatsBody(
        entriesAddedCounter=found.published,
        numberOfEntries=topic.end_offset - topic.start_offset,
        totalSize=found.size_bytes,
        currentLedgerEntries=0 if open_ledger is None else open_ledger.entries,
        currentLedgerSize=0 if open_ledger is None else open_ledger.size,
        lastLedgerCreatedTimestamp=moment(found.ledgers[-1].opened_ms) if found.ledgers else "",
        lastConfirmedEntry=_position(topic, topic.end_offset - 1),
        state="Terminated" if topic.terminated else "LedgerOpened",
        ledgers=ledgers,
        cursors={name: _cursor(topic, cursor) for name, cursor in found.cursors.items()},
    )


def _cursor(topic: Topic, cursor: CursorStats) -> CursorBody:
    return CursorBody(
        markDeletePosition=_position(topic, cursor.mark_delete),
        readPosition=_position(topic, cursor.read_at),
        messagesConsumedCounter=max(0, topic.end_offset - topic.start_offset - cursor.backlog),
        totalNonContiguousDeletedMessagesRange=cursor.holes,
        numberOfEntriesSinceFirstNotAckedMessage=max(0, cursor.read_at - cursor.mark_delete - 1),
        active=cursor.active,
    )


def _position(topic: Topic, offset: int) -> str:
    """Of an offset; of one before the first message: right before that."""
    if offset < topic.start_offset:
        ledger, entry = topic.position_of(topic.start_offset)
        return f"{ledger}:{entry - 1}" if ledger >= 0 else "-1:-1"
    ledger, entry = topic.position_of(offset)
    return f"{ledger}:{entry}"
