"""What an operator can say about a namespace or a topic. A field that is None says nothing: the next level does.

A topic's own value wins over its namespace's, which wins over the broker's default.

Levels of priority of a topic, and how long the lower ones may be kept waiting.

What holds for a topic whose ledgers go to the lake.
"""

import re
from dataclasses import dataclass, fields
from enum import Enum

from weir.model.errors import InvalidNameError, NotAllowedError
from weir.model.retry import RetryPolicy
from weir.model.stream import SegmentStore

#: The header, or property, that says a message's level.
PRIORITY = "weir-priority"
MOST_LEVELS = 255
#: As many higher ones may be delivered before the oldest of a lower level that is ready.
DEFAULT_PASSED = 100


@dataclass(frozen=True, slots=True)
class Priority:
    """`levels` above 0; 0: none. What is ready is delivered highest first, but whenever `passed` messages of
    higher levels were delivered while a lower level had one ready, that level has its turn, for one; so it has
    after `longest_ms` without one. 0: no such bound, and lower levels may wait for ever."""

    levels: int = 0
    passed: int = DEFAULT_PASSED
    longest_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.levels <= MOST_LEVELS:
            raise NotAllowedError(f"a topic has 0 to {MOST_LEVELS} levels of priority, and not {self.levels}")
        if self.passed < 0 or self.longest_ms < 0:
            raise NotAllowedError("how long lower levels wait is 0 (no bound) or more")


#: Of a topic of which nobody has said anything: where a queue's declaration gives it levels, they are strict.
NO_LEVELS = Priority(0, 0, 0)


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


_MINUTE_MS = 60_000
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Retention:
    """How long acknowledged messages stay: both bounds at once; -1 means without end, 0 not at all.

    Pulsar counts in minutes and megabytes; a bound that is no whole number of them is there exactly too, and then
    the coarse one is rounded up."""

    minutes: int = 0
    megabytes: int = 0
    exact_ms: int | None = None
    exact_bytes: int | None = None

    @classmethod
    def exactly(cls, time_ms: int, size_bytes: int) -> "Retention":
        """By milliseconds and bytes."""
        minutes, megabytes = _rounded_up(time_ms, _MINUTE_MS), _rounded_up(size_bytes, _MIB)
        return cls(
            minutes,
            megabytes,
            None if time_ms < 0 or minutes * _MINUTE_MS == time_ms else time_ms,
            None if size_bytes < 0 or megabytes * _MIB == size_bytes else size_bytes,
        )

    @property
    def time_ms(self) -> int:
        if self.exact_ms is not None:
            return self.exact_ms
        return -1 if self.minutes < 0 else self.minutes * _MINUTE_MS

    @property
    def size_bytes(self) -> int:
        if self.exact_bytes is not None:
            return self.exact_bytes
        return -1 if self.megabytes < 0 else self.megabytes * _MIB


def _rounded_up(amount: int, unit: int) -> int:
    return -1 if amount < 0 else -(-amount // unit)


class Cleanup(Enum):
    """What becomes of old messages, in Kafka's words."""

    #: They go as retention says.
    DELETE = "delete"
    #: The latest of each key stays for ever, the others go.
    COMPACT = "compact"
    #: The latest of each key stays for as long as retention says.
    BOTH = "compact,delete"
    #: All messages stay for ever.
    NONE = ""

    @property
    def compacts(self) -> bool:
        return self in (Cleanup.COMPACT, Cleanup.BOTH)

    @property
    def deletes(self) -> bool:
        return self in (Cleanup.DELETE, Cleanup.BOTH)


@dataclass(frozen=True, slots=True)
class LogCompaction:
    """A topic that is compacted by itself, and whose readers see what is left. `tombstone_ms`: how long a message
    without a value is to be seen after it was compacted. `min_lag_ms`: what is younger is not compacted.
    `max_lag_ms`: what is older shall be. `dirty_percent`: begin when so much of the topic is not compacted."""

    cleanup: Cleanup = Cleanup.DELETE
    tombstone_ms: int = 86_400_000
    min_lag_ms: int = 0
    max_lag_ms: int = -1
    dirty_percent: int = 50


@dataclass(frozen=True, slots=True)
class Roll:
    """When a topic begins a new ledger, if that is sooner than the broker's own settings say; 0 means that only
    those hold."""

    bytes: int = 0
    ms: int = 0


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
class Isolation:
    """The brokers that serve a namespace, by regular expressions of their whole names; where there are none of
    them, those of the fallback, which is all of them if nobody says otherwise. Where there are none of those
    either nobody serves it. A pattern may also be of the host that a broker is reached at."""

    brokers: tuple[str, ...] = (".*",)
    fallback: tuple[str, ...] = (".*",)
    #: With fewer of the group there, those of the fallback serve it as well.
    least: int = 1
    #: Never of the group, whatever `brokers` says: they are kept for others.
    excluded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_patterns(*self.brokers, *self.fallback, *self.excluded)


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """Brokers that are kept for some namespaces, all by regular expressions of whole names: `primary` serve these
    namespaces and no others; where fewer than `min_limit` of them are there, `secondary` serve them as well.
    `usage_threshold` is what Pulsar's clients say, kept for them: brokers choose without asking for load."""

    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_limit: int = 1
    usage_threshold: int = 100

    def __post_init__(self) -> None:
        check_patterns(*self.namespaces, *self.primary, *self.secondary)


def check_patterns(*patterns: str) -> None:
    """InvalidNameError for one that is no regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as bad:
            raise InvalidNameError(
                f"{pattern[:80]!r} is not a pattern of names: {bad}", hint="write a regular expression"
            ) from None


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
    log_compaction: LogCompaction | None = None
    roll: Roll | None = None
    #: Of a namespace alone: which brokers serve it.
    isolation: Isolation | None = None
    #: What becomes of messages that consumers of shared subscriptions fail at, where a subscription says nothing.
    retry: RetryPolicy | None = None
    priority: Priority | None = None
    #: Whether there is an index of keys, to find messages by.
    key_index: bool | None = None
    #: Of so many messages in a million it is written down what becomes of them; 0: of none.
    trace_ppm: int | None = None

    def over(self, below: "Policies") -> "Policies":
        """This level's values where it has any, else those of the level below; of retry each part by itself."""
        values = {
            field.name: mine if (mine := getattr(self, field.name)) is not None else getattr(below, field.name)
            for field in fields(self)
        }
        if self.retry is not None:
            values["retry"] = self.retry.over(below.retry)
        return Policies(**values)


#: Nothing vanishes by default, whichever protocol made the topic: a week, however much that is, as in Kafka.
DEFAULT_RETENTION = Retention(minutes=7 * 24 * 60, megabytes=-1)

#: What holds where nobody said anything.
DEFAULT_POLICIES = Policies(
    retention=DEFAULT_RETENTION,
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
    log_compaction=LogCompaction(),
    roll=Roll(),
    isolation=Isolation(),
    retry=RetryPolicy(),
    priority=NO_LEVELS,
    key_index=False,
    trace_ppm=0,
)

#: The subscription whose position says what the lake's table has.
LAKE_SUBSCRIPTION = "lake"


@dataclass(frozen=True, slots=True)
class TieringRules:
    """`weir lake on --tiered-after`, for one topic."""

    #: A ledger goes to the lake when its last message is so old.
    after_ms: int
    #: Where copies of its ledgers lie. None: no more ledgers go, since the namespace selects no catalog that it
    #: may; what was kept stays kept.
    folder: SegmentStore | None
    #: What somebody has said for the topic, its namespace or the lake; without end if nobody has.
    retention: Retention
