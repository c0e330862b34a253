"""Bodies of stats, with Pulsar's field names. Moments are milliseconds since 1970; 0 where Weir keeps none."""

from msgspec import Struct, field

from weir.admin.bodies import PartitionedTopicMetadata, Properties


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
