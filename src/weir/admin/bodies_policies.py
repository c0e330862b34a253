"""Bodies of policies, with Pulsar's field names."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from weir.admin.bodies import BundlesData, Permissions
from weir.admin.routing import Int, Long
from weir.model.priority import DEFAULT_PASSED

QuotaType = Literal["destination_storage", "message_age"]
QuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
Strategy = Literal[
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]


class RetentionPolicies(Struct):
    retentionTimeInMinutes: Int = 0
    retentionSizeInMB: Long = 0


class BacklogQuotaBody(Struct):
    """`limit` is what older clients call `limitSize`."""

    limitSize: Long | None = None
    limitTime: Int | None = None
    policy: QuotaPolicy | None = None
    limit: Long | None = None


BacklogQuotaMap = dict[QuotaType, BacklogQuotaBody]


class PublishRate(Struct):
    publishThrottlingRateInMsg: Int = -1
    publishThrottlingRateInByte: Long = -1


class DispatchRate(Struct):
    dispatchThrottlingRateInMsg: Int = -1
    dispatchThrottlingRateInByte: Long = -1
    relativeToPublishRate: bool = False
    ratePeriodInSecond: Int = 1


class RetryBody(Struct):
    """`schedule`: waits as in `1s 10s 1m`, or bounds as in `1s..10m` or `1s..10m x3`. `maxDeliveries`: 0 for no
    end. `deadLetterTopic`: "" for `<topic>-<subscription>-DLQ`. What is left out is as the level below says."""

    schedule: str | None = None
    maxDeliveries: Int | None = None
    deadLetterTopic: str | None = None


class PriorityBody(Struct):
    """`levels` above 0; 0: none. A lower level that has a message ready has its turn, for one, after `passed` of
    higher levels, or after `longestMs`; 0: no such bound."""

    levels: Int = 0
    passed: Int = DEFAULT_PASSED
    longestMs: Long = 0


class DelayedDeliveryPolicies(Struct):
    """Weir releases messages at their moment whatever the tick is."""

    active: bool = True
    tickTime: Long = 1
    maxDeliveryDelayInMillis: Long = 0


#: Of so many messages it is written down what becomes of them: 1 is all, 0.01 one of a hundred.
TraceRate = Annotated[float, Meta(ge=0, le=1)]


class AutoTopicCreationOverride(Struct):
    allowAutoTopicCreation: bool = True
    topicType: Literal["partitioned", "non-partitioned"] | None = None
    defaultNumPartitions: Int | None = None


class AutoSubscriptionCreationOverride(Struct):
    allowAutoSubscriptionCreation: bool = True


class AuthPolicies(Struct):
    """Grants on the namespace, and on single topics by their full name."""

    namespace_auth: Permissions = field(default_factory=dict)
    topic_auth: dict[str, Permissions] = field(default_factory=dict, name="destination_auth")
    subscription_auth_roles: dict[str, list[str]] = field(default_factory=dict)


class NamespacePolicies(Struct):
    """Everything that is said about a namespace; null where nothing is. Fields that Weir has no use for are
    accepted and left out; a new namespace with a policy that changes who gets which messages is refused."""

    auth_policies: AuthPolicies | None = None
    replication_clusters: list[str] | None = None
    allowed_clusters: list[str] = field(default_factory=list)
    encryption_required: bool = False
    bundles: BundlesData | None = None
    backlog_quota_map: BacklogQuotaMap | None = None
    retention_policies: RetentionPolicies | None = None
    message_ttl_in_seconds: Int | None = None
    publishMaxMessageRate: dict[str, PublishRate] | None = None
    topicDispatchRate: dict[str, DispatchRate] | None = None
    subscriptionDispatchRate: dict[str, DispatchRate] | None = None
    deduplicationEnabled: bool | None = None
    compaction_threshold: Long | None = None
    delayed_delivery_policies: DelayedDeliveryPolicies | None = None
    max_unacked_messages_per_consumer: Int | None = None
    max_unacked_messages_per_subscription: Int | None = None
    max_producers_per_topic: Int | None = None
    max_consumers_per_topic: Int | None = None
    max_subscriptions_per_topic: Int | None = None
    schema_compatibility_strategy: Strategy | None = None
    schema_validation_enforced: bool | None = None
    is_allow_auto_update_schema: bool | None = None
    autoTopicCreationOverride: AutoTopicCreationOverride | None = None
    autoSubscriptionCreationOverride: AutoSubscriptionCreationOverride | None = None
    subscription_expiration_time_minutes: Int | None = None
    properties: dict[str, str] | None = None
    deleted: bool = False
