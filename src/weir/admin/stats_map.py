"""Stats of topics in Pulsar's words: pure functions from the broker's values."""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime

from weir.admin import bodies_stats as b
from weir.admin.bodies import PartitionedTopicMetadata
from weir.broker.api import (
    GENERATION,
    AccessMode,
    ConsumerStats,
    CursorStats,
    Flow,
    LedgerStats,
    ProducerStats,
    QueryProgress,
    SubscriptionStats,
    SubscriptionType,
    Topic,
    TopicStats,
)

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
) -> b.TopicStatsBody:
    flow, wanted = stats.published, wanted or StatsWanted()
    subscriptions = {s.name: _subscription(s, now_ms, wanted) for s in stats.subscriptions}
    return b.TopicStatsBody(
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
        lake=None if stats.lake is None else b.LakeBody(*astuple(stats.lake)),
        backlogSize=max((s.backlog_bytes for s in stats.subscriptions), default=0),
        earliestMsgPublishTimeInBacklogs=_earliest(subscriptions.values()),
        deduplicationStatus="Enabled" if deduplication else "Disabled",
        topicEpoch=stats.epoch,
        nonContiguousDeletedMessagesRanges=sum(s.holes for s in stats.subscriptions),
        publishers=[_publisher(producer) for producer in stats.producers] if wanted.publishers else [],
        subscriptions=subscriptions,
        ownerBroker=owner,
        aboutToGo=[
            b.UnreadWarningBody(told.subscription, told.policy, told.messages, moment(told.at_ms), told.what)
            for told in stats.unread
        ],
        unreadable=list(stats.unreadable),
        lostEntries=[
            b.LostEntriesBody(
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


def _publisher(stats: ProducerStats) -> b.PublisherStatsBody:
    return b.PublisherStatsBody(
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


def _earliest(found: Iterable[b.SubscriptionStatsBody]) -> int:
    """When the oldest message that somebody has not acknowledged was published; 0 if it was not asked for."""
    known = [one.earliestMsgPublishTimeInBacklog for one in found if one.earliestMsgPublishTimeInBacklog > 0]
    return min(known, default=0)


def _subscription(stats: SubscriptionStats, now_ms: int, wanted: StatsWanted) -> b.SubscriptionStatsBody:
    active = [consumer.name for consumer in stats.consumers if consumer.active]
    single = stats.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
    return b.SubscriptionStatsBody(
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


def _query(said: QueryProgress) -> b.QueryBody:
    return b.QueryBody(said.batch, said.rows, said.rows_per_s, said.lost)


def _consumer(stats: ConsumerStats) -> b.ConsumerStatsBody:
    return b.ConsumerStatsBody(
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


def partitioned_stats(parts: dict[str, b.TopicStatsBody], *, each: bool) -> b.PartitionedStatsBody:
    """Sums over the partitions, and if `each` these themselves."""
    whole = b.PartitionedStatsBody(metadata=PartitionedTopicMetadata(len(parts)))
    for name in _SUMMED:
        setattr(whole, name, sum(getattr(part, name) for part in parts.values()))
    whole.averageMsgSize = whole.bytesInCounter / whole.msgInCounter if whole.msgInCounter else 0.0
    whole.publishers = [publisher for part in parts.values() for publisher in part.publishers]
    named: dict[str, list[b.SubscriptionStatsBody]] = {}
    for part in parts.values():
        for name, subscription in part.subscriptions.items():
            named.setdefault(name, []).append(subscription)
    whole.subscriptions = {name: _together(found) for name, found in named.items()}
    whole.earliestMsgPublishTimeInBacklogs = _earliest(whole.subscriptions.values())
    whole.partitions = parts if each else {}
    return whole


def _together(found: Sequence[b.SubscriptionStatsBody]) -> b.SubscriptionStatsBody:
    whole = b.SubscriptionStatsBody(next((one.type for one in found if one.type is not None), None))
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


def _ledger(one: LedgerStats) -> b.LedgerBody:
    return b.LedgerBody(one.ledger, one.messages, one.bytes, one.in_lake, timestamp=one.closed_ms)


def internal_stats(topic: Topic) -> b.InternalStatsBody:
    stored = topic.stored
    if stored is None:
        return b.InternalStatsBody(state="NonPersistent")
    found = stored.internal_stats()
    ledgers = [_ledger(one) for one in found.ledgers]
    open_ledger = ledgers[-1] if found.open_ledger else None
    return b.InternalStatsBody(
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


def _cursor(topic: Topic, cursor: CursorStats) -> b.CursorBody:
    return b.CursorBody(
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
