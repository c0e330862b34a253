"""What the subscriptions of a topic, or of a queue in memory, share; where its state keeps what is theirs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pyroaring import BitMap64

from weir.broker.dispatch.consumer_limit import ConsumerLimit
from weir.broker.dispatch.feed import Source
from weir.broker.dispatch.key_ranges import KeysOf
from weir.broker.dispatch.queue_side import LevelsOf, QueueSide
from weir.broker.filters.masks import Masks
from weir.broker.publish.limits import RateLimit
from weir.broker.settings import BrokerSettings
from weir.broker.topic.meters import Histogram, Meter
from weir.broker.trace.message_trace import MessageTrace
from weir.broker.transactions.decided_log import DecidedLog
from weir.model.bits import Run
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.amqp.death import Reason
from weir.wire.snapshots.subscriptions import CURSOR_PREFIX

if TYPE_CHECKING:
    from weir.broker.dispatch.subscription import Subscription

#: A property: "false" if what the subscription has not acknowledged may be trimmed, expires for others only, and
#: counts for no quota. So it is with consumer groups, which keep their positions themselves.
RETAINS = "weir.retains"


class CursorStore(Protocol):
    """What `weir.stream.state.StateLog` offers, as far as subscriptions need it."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...

    def mark(self, key: str, source: Callable[[], bytes]) -> None: ...

    def delete(self, key: str) -> None: ...

    async def flush(self) -> None: ...


class GivenUp(Protocol):
    """Where messages go that subscriptions give up."""

    def dead(self, subscription: "Subscription") -> BitMap64:
        """What it has given up, and not acknowledged yet: not to be delivered."""

    def take(self, subscription: "Subscription", offsets: BitMap64, reason: Reason) -> None:
        """These are dead letters, as its policy says; they are aside, and are acknowledged in the end."""

    def forget(self, subscription: "Subscription") -> None:
        """It is no more."""


class NothingGivenUp:
    """Fills `GivenUp` where there is no place for dead letters: they are dropped."""

    def dead(self, subscription: "Subscription") -> BitMap64:
        return BitMap64()

    def take(self, subscription: "Subscription", offsets: BitMap64, reason: Reason) -> None:
        subscription.failing.ack_soon(offsets)

    def forget(self, subscription: "Subscription") -> None:
        pass


@dataclass(frozen=True, slots=True)
class SubscriptionParts:
    """What the subscriptions of one topic share."""

    clock: Clock
    settings: BrokerSettings
    #: All that is stored, decided or not.
    log: Source
    #: What is decided, and of it the latest message of each key, for those who ask for that.
    source: DecidedLog
    view: DecidedLog
    state: CursorStore
    tasks: TaskScope
    keys_of: KeysOf
    topic_rate: RateLimit
    #: From append to delivery.
    latency: Histogram
    partition: int | None
    #: Called when a subscription is gone for good, or must go with its last consumer.
    dropped: "Callable[[Subscription], None]"
    #: What the topic is as a queue, and how to look for levels of priority.
    side: QueueSide = field(default_factory=QueueSide)
    levels_of: LevelsOf = lambda batch: None
    #: Counts what its subscriptions give out.
    given: Callable[[], Meter] | None = None
    #: Told that a cursor has moved, and what is acknowledged by that (None: anything); whether it must be written
    #: down, for whoever has the log next.
    moved: "Callable[[Subscription, Sequence[Run] | None], bool]" = lambda subscription, runs: True
    #: What passes which filter.
    masks: Masks = field(default_factory=Masks)
    #: Told what becomes of messages.
    trace: MessageTrace | None = None
    given_up: GivenUp = field(default_factory=NothingGivenUp)
    #: What log lines call the topic, and how many consumers its subscriptions may have.
    label: str = ""
    consumer_limit: ConsumerLimit = field(default_factory=ConsumerLimit)


# --- in the topic's state ---------------------------------------------------------------------------------------


def cursor_key(name: str) -> str:
    return f"{CURSOR_PREFIX}{name}"


def record_key(name: str) -> str:
    return f"subscription/{name}"


def commit_key(name: str) -> str:
    """What a consumer group said when it last placed the cursor."""
    return f"commit/{name}"


def retries_key(name: str) -> str:
    """How often messages failed, and which wait."""
    return f"retries/{name}"


def keys_of_subscription(name: str) -> tuple[str, ...]:
    """All that goes with it."""
    return cursor_key(name), record_key(name), commit_key(name), retries_key(name)
