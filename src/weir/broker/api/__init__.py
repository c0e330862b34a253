"""All that gateways and the admin API know of the broker: values, and interfaces with few verbs.

Nothing here knows a protocol. Everything is asked in offsets; `Topic.position_of` and `offset_of` translate to
ledger positions for protocols whose message ids are made of them. There are no callbacks: what changes is
something to await. Every call that somebody makes for a user takes that user's `role`, and raises
NotAuthorisedError if the role may not.

An import contract holds it: `gateway` and `admin` import nothing else of `weir.broker`, and nothing below it.
"""

from weir.broker.api.access import Authoriser, Guard, Identity, Scope
from weir.broker.api.balance import Balance
from weir.broker.api.broker import Broker, Owner
from weir.broker.api.cluster import BookieStatus, BundleInfo, Bundles, DecommissionProgress, StorageAdmin
from weir.broker.api.connections import (
    ChannelConsumer,
    ChannelInfo,
    ClientConnection,
    ConnectionDirectory,
    ConnectionInfo,
    Connections,
    ConnectionTraffic,
)
from weir.broker.api.connectors import Connectors, DescribedConnector
from weir.broker.api.consuming import Consumer, Delivery, KeyShared, StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.dead_letters import DeadLetterBox, LetterFilter, LetterPage, Redriven, StoredLetter
from weir.broker.api.exchanges import Exchanges, NamespaceExchanges, Routed
from weir.broker.api.flows import BrokerFlows, TopicsFlow
from weir.broker.api.functions import Definition, Deployed, Functions
from weir.broker.api.gateway_calls import ClientCall, GatewayCalls
from weir.broker.api.groups import (
    GroupAdmin,
    GroupInfo,
    GroupMembership,
    GroupPositions,
    Groups,
    GroupState,
    Joined,
    JoinRequest,
    MemberInfo,
    RoleGroups,
    Synced,
    SyncRequest,
)
from weir.broker.api.half_messages import HalfCheck, HalfChecker, HalfCheckers, HalfMessages
from weir.broker.api.patterns import Pattern
from weir.broker.api.publishing import AccessMode, Outgoing, Producer, ProducerRequest, Receipt
from weir.broker.api.queues import (
    ConsumeRequest,
    NamespaceQueues,
    Queue,
    QueueConsumer,
    QueueCounts,
    QueueMessages,
    QueueOutline,
    Queues,
)
from weir.broker.api.registry import (
    GrantRecords,
    LakeCatalogs,
    Namespaces,
    Registry,
    Tenants,
    TopicRecords,
    Users,
)
from weir.broker.api.replays import Replays, ReplayStep
from weir.broker.api.replies import DirectReplies, ReplyReceiver
from weir.broker.api.runners import LeasedRunner
from weir.broker.api.schemas import SchemaData, Schemas, SchemaVersions, version_bytes, version_number
from weir.broker.api.stats import (
    BOUNDS_S,
    GENERATION,
    CompactionStatus,
    ConsumerStats,
    CursorStats,
    Flow,
    InternalStats,
    LakeStats,
    Latency,
    LedgerStats,
    LostEntries,
    ProducerStats,
    QueryProgress,
    SubscriptionStats,
    TopicStats,
    UnreadWarning,
)
from weir.broker.api.streams import Described, SqlStreams
from weir.broker.api.topic_lists import TopicListChange, TopicLists, TopicListWatch
from weir.broker.api.topics import (
    AbortedTransaction,
    HeldMessages,
    LogReader,
    Position,
    ProducerInfo,
    StoredTopic,
    SubscriptionControl,
    Topic,
)
from weir.broker.api.transactions import (
    ProducerIdentity,
    RoleTransactions,
    Sinks,
    TransactionAdmin,
    TransactionIds,
    TransactionInfo,
    Transactions,
)
from weir.model.bundles import BundleName
from weir.model.positions import CommittedOffset
from weir.model.transactions import TransactionState

__all__ = [
    "BOUNDS_S",
    "GENERATION",
    "AbortedTransaction",
    "AccessMode",
    "Authoriser",
    "Balance",
    "BookieStatus",
    "Broker",
    "BrokerFlows",
    "BundleInfo",
    "BundleName",
    "Bundles",
    "ChannelConsumer",
    "ChannelInfo",
    "ClientCall",
    "ClientConnection",
    "CommittedOffset",
    "CompactionStatus",
    "ConnectionDirectory",
    "ConnectionInfo",
    "ConnectionTraffic",
    "Connections",
    "Connectors",
    "ConsumeRequest",
    "Consumer",
    "ConsumerStats",
    "CursorStats",
    "DeadLetterBox",
    "DecommissionProgress",
    "Definition",
    "Delivery",
    "Deployed",
    "Described",
    "DescribedConnector",
    "DirectReplies",
    "Exchanges",
    "Flow",
    "Functions",
    "GatewayCalls",
    "GrantRecords",
    "GroupAdmin",
    "GroupInfo",
    "GroupMembership",
    "GroupPositions",
    "GroupState",
    "Groups",
    "Guard",
    "HalfCheck",
    "HalfChecker",
    "HalfCheckers",
    "HalfMessages",
    "HeldMessages",
    "Identity",
    "InternalStats",
    "JoinRequest",
    "Joined",
    "KeyShared",
    "LakeCatalogs",
    "LakeStats",
    "Latency",
    "LeasedRunner",
    "LedgerStats",
    "LetterFilter",
    "LetterPage",
    "LogReader",
    "LostEntries",
    "MemberInfo",
    "NamespaceExchanges",
    "NamespaceQueues",
    "Namespaces",
    "Outgoing",
    "Owner",
    "Pattern",
    "Position",
    "Producer",
    "ProducerIdentity",
    "ProducerInfo",
    "ProducerRequest",
    "ProducerStats",
    "QueryProgress",
    "Queue",
    "QueueConsumer",
    "QueueCounts",
    "QueueMessages",
    "QueueOutline",
    "Queues",
    "Receipt",
    "Redriven",
    "Registry",
    "ReplayStep",
    "Replays",
    "ReplyReceiver",
    "RoleGroups",
    "RoleTransactions",
    "Routed",
    "SchemaData",
    "SchemaVersions",
    "Schemas",
    "Scope",
    "Sinks",
    "SqlStreams",
    "StartAt",
    "StorageAdmin",
    "StoredLetter",
    "StoredTopic",
    "SubscribeRequest",
    "SubscriptionControl",
    "SubscriptionStats",
    "SubscriptionType",
    "SyncRequest",
    "Synced",
    "Tenants",
    "Topic",
    "TopicListChange",
    "TopicListWatch",
    "TopicLists",
    "TopicRecords",
    "TopicStats",
    "TopicsFlow",
    "TransactionAdmin",
    "TransactionIds",
    "TransactionInfo",
    "TransactionState",
    "Transactions",
    "UnreadWarning",
    "Users",
    "version_bytes",
    "version_number",
]
