"""State that the subscriptions of a topic or an in-memory queue share, and the keys of their stored state.

Also the settings that consumers request for their subscription: filter, order and retry policy. The first consumer
that requests one decides for all. A consumer's own properties count if its subscription properties are silent,
because some clients cannot send those.

Also the progress of a Spark query (last batch, rate, lost rows), which a query commits as JSON with a mark in the
metadata of its position. Metadata of other consumer groups is opaque.
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
from weir.broker.log.log_feed import ReadCommittedLog, Source
from weir.broker.rates import Histogram, Meter, RateLimit
from weir.broker.settings import BrokerSettings
from weir.broker.subscriptions.queue_mode import LevelsOf, QueueMode
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


#: A property: "false" exempts the subscription's backlog from retention and quotas, and limits expiry to other
#: subscriptions. Consumer groups use it, because they store their positions themselves.
RETAINS = "weir.retains"


class CursorStore(Protocol):
    """The part of `weir.stream.state_log.StateLog` that subscriptions use."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...

    def mark(self, key: str, source: Callable[[], bytes]) -> None: ...

    def delete(self, key: str) -> None: ...

    async def flush(self) -> None: ...


class GivenUp(Protocol):
    """The destination of messages that subscriptions give up: dead letters."""

    def dead(self, subscription: "Subscription") -> BitMap64:
        """Messages that were given up and are not acknowledged yet: they must not be delivered."""

    def take(self, subscription: "Subscription", offsets: BitMap64, reason: Reason) -> None:
        """Turn these messages into dead letters by the subscription's policy. They are aside, and are acknowledged
        in the end."""

    def forget(self, subscription: "Subscription") -> None:
        """Forget a deleted subscription."""


class NothingGivenUp:
    """Fills `GivenUp` without a destination for dead letters: the messages are dropped."""

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
    #: The whole log, with messages of open transactions.
    log: Source
    #: The log up to the last stable offset, and its compacted view.
    source: ReadCommittedLog
    view: ReadCommittedLog
    state: CursorStore
    tasks: TaskScope
    keys_of: KeysOf
    topic_rate: RateLimit
    #: Time from append to delivery.
    latency: Histogram
    partition: int | None
    #: Called when a subscription is deleted, or must end with its last consumer.
    dropped: "Callable[[Subscription], None]"
    #: The queue settings of the topic, and the function that reads priority levels.
    side: QueueMode = field(default_factory=QueueMode)
    levels_of: LevelsOf = lambda batch: None
    #: Counts the messages that its subscriptions deliver.
    given: Callable[[], Meter] | None = None
    #: Called when a cursor has moved, with the acknowledged runs (None: unknown). Returns whether the cursor must
    #: be stored, for the next owner of the log.
    moved: "Callable[[Subscription, Sequence[Run] | None], bool]" = lambda subscription, runs: True
    #: The filter masks of batches.
    masks: Masks = field(default_factory=Masks)
    #: Records the delivery and the end of messages.
    trace: MessageTrace | None = None
    given_up: GivenUp = field(default_factory=NothingGivenUp)
    #: The topic's name in log lines, and the limit of consumers per subscription.
    label: str = ""
    consumer_limit: ConsumerLimit = field(default_factory=ConsumerLimit)


# --- in the topic's state ---------------------------------------------------------------------------------------


def cursor_key(name: str) -> str:
    return f"{CURSOR_PREFIX}{name}"


def record_key(name: str) -> str:
    return f"subscription/{name}"


def commit_key(name: str) -> str:
    """The key of the last position that a consumer group committed."""
    return f"commit/{name}"


def retries_key(name: str) -> str:
    """The key of the redelivery counts and delays."""
    return f"retries/{name}"


def keys_of_subscription(name: str) -> tuple[str, ...]:
    """All keys of the stored state of a subscription."""
    return cursor_key(name), record_key(name), commit_key(name), retries_key(name)


_MARK = '{"weir.query"'
_MOST = 1 << 53


def parse_progress(metadata: str) -> QueryProgress | None:
    """Parse the progress of a query; None for other metadata."""
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
    """The query progress in a stored group position."""
    try:
        return None if data is None else parse_progress(decode_position(data).said.metadata)
    except WireError:
        return None  # a reader of the position itself gets the error


log = logging.getLogger(__name__)


def agreed(
    request: SubscribeRequest, properties: Mapping[str, str], has: CompiledFilter | None, *, busy: bool
) -> dict[str, str] | None:
    """Merge the settings that a consumer requests into the properties; None if that changes nothing. `has`: the
    present filter. `busy`: the subscription has consumers, so a change is refused. Raises SubscriptionBusyError or
    FilterError."""
    found = dict(properties)
    name = request.subscription
    named = wanted_filter(request)
    if (
        named is not None and name != QUEUE_SUBSCRIPTION and compiled(named) is not has
    ):  # consumers of a queue have their own filters
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
            f"subscription {name!r} has consumers with another order of delivery",
            f"use the same value of {FIFO_PROPERTY}, or omit it",
        )
        found[FIFO_PROPERTY] = str(order).lower()
    retry = wanted_retry(request)
    if retry is not None and retry != retry_of(found):
        _check(
            busy,
            f"subscription {name!r} has consumers with another retry policy",
            "name the same policy, or none; or change the subscription's properties, for all of them",
        )
        found = with_retry(found, retry)
    return None if found == properties else found


def _check(busy: bool, what: str, hint: str) -> None:
    if busy:
        raise SubscriptionBusyError(what, hint=hint)


def wanted_filter(request: SubscribeRequest) -> MessageFilter | None:
    """The filter that a consumer requests; None if it requests none."""
    if request.filter is not None:
        return request.filter
    named = filter_in(request.subscription_properties)
    return filter_in(request.properties) if named is None else named


def wanted_order(request: SubscribeRequest) -> bool | None:
    """Whether a consumer requests order by message group; None if it leaves that open."""
    for properties in (request.subscription_properties, request.properties):
        if FIFO_PROPERTY in properties:
            return is_fifo(properties)
    return None


def wanted_retry(request: SubscribeRequest) -> RetryPolicy | None:
    """The retry policy that a consumer requests; None if it requests none. Raises NotAllowedError if it is
    invalid."""
    named = retry_of(request.subscription_properties)
    return retry_of(request.properties) if named is None else named


def stored_filter(name: str, properties: Mapping[str, str]) -> CompiledFilter | None:
    """The filter in the stored properties; None (all messages) if a newer Weir stored one that is invalid here."""
    try:
        return compiled(filter_in(properties))
    except FilterError as wrong:
        log.error("subscription %r delivers all messages, its filter is invalid: %s", name, wrong)
        return None
