"""What an operator can say about a namespace or a topic. A field that is None says nothing: the next level does.

A topic's own value wins over its namespace's, which wins over the broker's default.
"""

from dataclasses import dataclass, fields
from enum import Enum


class BacklogAction(Enum):
    """What happens when a topic's backlog exceeds its quota."""

    HOLD_PRODUCERS = "producer_request_hold"
    FAIL_PRODUCERS = "producer_exception"
    EVICT_OLDEST = "consumer_backlog_eviction"


class SchemaCompatibility(Enum):
    """Which new schemas a topic accepts, in Pulsar's words."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long acknowledged messages stay: both bounds at once; -1 means without end, 0 not at all."""

    minutes: int = 0
    megabytes: int = 0


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """How much may wait; -1 means without end. `seconds` is the age of the oldest unacknowledged message."""

    bytes: int = -1
    seconds: int = -1
    action: BacklogAction = BacklogAction.HOLD_PRODUCERS


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so much per second; -1 means without end."""

    messages: int = -1
    bytes: int = -1


@dataclass(frozen=True, slots=True)
class AutoTopicCreation:
    """Whether a topic that a client names comes to be, and with how many partitions (0: not partitioned)."""

    allowed: bool = True
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class Policies:
    """Every policy, at one level."""

    retention: Retention | None = None
    message_ttl_s: int | None = None
    backlog_quota: BacklogQuota | None = None
    publish_rate: Rate | None = None
    dispatch_rate: Rate | None = None
    subscription_dispatch_rate: Rate | None = None
    deduplication: bool | None = None
    #: Compact when so many bytes have come since the last time; 0 means only when asked.
    compaction_threshold: int | None = None
    delayed_delivery: bool | None = None
    max_unacked_per_consumer: int | None = None
    max_unacked_per_subscription: int | None = None
    max_producers: int | None = None
    max_consumers: int | None = None
    max_subscriptions: int | None = None
    #: Of a topic's own, with a protocol's headers; 0 means that only the listener's limit holds.
    max_message_bytes: int | None = None
    schema_compatibility: SchemaCompatibility | None = None
    schema_required: bool | None = None
    allow_schema_auto_update: bool | None = None
    auto_topic_creation: AutoTopicCreation | None = None
    auto_subscription_creation: bool | None = None
    #: Subscriptions without consumers are removed after so many minutes; 0 means never.
    subscription_expiry_min: int | None = None

    def over(self, below: "Policies") -> "Policies":
        """This level's values where it has any, else those of the level below."""
        return Policies(
            **{
                field.name: mine if (mine := getattr(self, field.name)) is not None else getattr(below, field.name)
                for field in fields(self)
            }
        )


#: What holds where nobody said anything.
DEFAULT_POLICIES = Policies(
    retention=Retention(),
    message_ttl_s=0,
    backlog_quota=BacklogQuota(),
    publish_rate=Rate(),
    dispatch_rate=Rate(),
    subscription_dispatch_rate=Rate(),
    deduplication=False,
    compaction_threshold=0,
    delayed_delivery=True,
    max_unacked_per_consumer=50_000,
    max_unacked_per_subscription=200_000,
    max_producers=0,
    max_consumers=0,
    max_subscriptions=0,
    max_message_bytes=0,
    schema_compatibility=SchemaCompatibility.FULL,
    schema_required=False,
    allow_schema_auto_update=True,
    auto_topic_creation=AutoTopicCreation(),
    auto_subscription_creation=True,
    subscription_expiry_min=0,
)
