"""What the subscriptions of a topic, or of a queue in memory, share; where its state keeps what is theirs.

What a consumer names for its subscription: filter, order and retry policy, the same for all of its consumers.

Whoever names one first decides. A consumer's own properties count where it says nothing of the subscription's: not
every client can.

What a query says of itself when it keeps its position: which batch it did last, how fast, and what it missed.

It comes as the metadata of the position, as JSON with a mark; metadata of other consumer groups is theirs alone.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pyroaring import BitMap64

from weir.broker.api.consumers import ConsumerLimit, SubscribeRequest
from weir.broker.api.stats import QueryProgress
from weir.broker.filters.message_filter import CompiledFilter, Masks, compiled
from weir.broker.log.log_feed import DecidedLog, Source
from weir.broker.rates import Histogram, Meter, RateLimit
from weir.broker.settings import BrokerSettings
from weir.broker.subscriptions.queue_mode import LevelsOf, QueueSide
from weir.broker.subscriptions.selectors import KeysOf
from weir.broker.trace.message_trace import MessageTrace
from weir.model.batch import Run
from weir.model.errors import FilterError, SubscriptionBusyError, WireError
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.retry import RetryPolicy, retry_of, with_retry
from weir.model.subscriptions import FIFO_PROPERTY, MessageFilter, filter_in, is_fifo, with_filter
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.amqp.dead_letter import Reason
from weir.wire.snapshots.groups import decode_position
from weir.wire.snapshots.subscriptions import CURSOR_PREFIX

if TYPE_CHECKING:
    from weir.broker.subscriptions.subscription import Subscription


#: A property: "false" if what the subscription has not acknowledged may be trimmed, expires for others only, and
#: counts for no quota. So it is with consumer groups, which keep their positions themselves.
RETAINS = "weir.retains"


class CursorStore(Protocol):
    """What `weir.stream.state_log.StateLog` offers, as far as subscriptions need it."""

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


_MARK = '{"weir.query"'
_MOST = 1 << 53


def parse_progress(metadata: str) -> QueryProgress | None:
    """None if the metadata is not a query's."""
    if not metadata.startswith(_MARK):
        return None
    try:
        said = json.loads(metadata)
    except (ValueError, RecursionError):
        return None
    batch, rows, lost = (_count(said.get(name)) for name in ("batch", "rows", "lost"))
    rate = said.get("rowsPerSecond")
    known = isinstance(rate, int | float) and 0 <= rate < _MOST
    return QueryProgress(batch, rows, float(rate) if known else 0.0, lost, said.get("retain") is True)


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < _MOST else 0


def progress_of_commit(data: bytes | None) -> QueryProgress | None:
    """Of a group's position as it is stored."""
    try:
        return None if data is None else parse_progress(decode_position(data).said.metadata)
    except WireError:
        return None  # who asks for the position itself is told


log = logging.getLogger(__name__)


def agreed(
    request: SubscribeRequest, properties: Mapping[str, str], has: CompiledFilter | None, *, busy: bool
) -> dict[str, str] | None:
    """The properties of the subscription with what the consumer names; None if it names nothing new. `has`: its
    filter now; `busy`: it has consumers, for whom nothing changes. SubscriptionBusyError, FilterError."""
    found = dict(properties)
    name = request.subscription
    named = wanted_filter(request)
    if named is not None and name != QUEUE_SUBSCRIPTION and compiled(named) is not has:  # a queue's have their own
        _check(
            busy,
            f"subscription {name!r} has consumers with another filter: {'none' if has is None else has}",
            "name the same filter, or none; or change the subscription's properties, for all of them",
        )
        found = with_filter(found, named)
    order = wanted_order(request)
    if order is not None and order != is_fifo(found):
        _check(
            busy,
            f"subscription {name!r} has consumers that get messages in another order",
            f"say the same of {FIFO_PROPERTY}, or nothing",
        )
        found[FIFO_PROPERTY] = str(order).lower()
    retry = wanted_retry(request)
    if retry is not None and retry != retry_of(found):
        _check(
            busy,
            f"subscription {name!r} has consumers that retry in another way",
            "name the same policy, or none; or change the subscription's properties, for all of them",
        )
        found = with_retry(found, retry)
    return None if found == properties else found


def _check(busy: bool, what: str, hint: str) -> None:
    if busy:
        raise SubscriptionBusyError(what, hint=hint)


def wanted_filter(request: SubscribeRequest) -> MessageFilter | None:
    """The filter that a consumer names; None if it names none."""
    if request.filter is not None:
        return request.filter
    named = filter_in(request.subscription_properties)
    return filter_in(request.properties) if named is None else named


def wanted_order(request: SubscribeRequest) -> bool | None:
    """Whether a consumer wants order by message group; None if it says nothing of it."""
    for properties in (request.subscription_properties, request.properties):
        if FIFO_PROPERTY in properties:
            return is_fifo(properties)
    return None


def wanted_retry(request: SubscribeRequest) -> RetryPolicy | None:
    """The retry policy that a consumer names; None if it names none. NotAllowedError for what cannot be."""
    named = retry_of(request.subscription_properties)
    return retry_of(request.properties) if named is None else named


def stored_filter(name: str, properties: Mapping[str, str]) -> CompiledFilter | None:
    """Of a subscription as it was stored; one that a newer Weir took leaves nothing out."""
    try:
        return compiled(filter_in(properties))
    except FilterError as wrong:
        log.error("subscription %r gets all messages: %s", name, wrong)
        return None
