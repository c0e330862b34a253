"""The subscriptions of one topic: lookup, creation, deletion, and the limits that policies set."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from weir.broker.api.consumers import StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.stats import UnreadWarning
from weir.broker.context import BrokerContext
from weir.broker.dead_letters.outbox import TopicDeadLetters
from weir.broker.filters.message_filter import compiled
from weir.broker.log.log_feed import ReadCommittedLog
from weir.broker.log.producer_state_manager import ProducerStateManager
from weir.broker.rates import Histogram, Meter, RateLimit
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.queue_mode import QueueMode, levels_in
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.subscriptions.subscription_state import (
    SubscriptionParts,
    cursor_key,
    record_key,
    wanted_filter,
    wanted_retry,
)
from weir.broker.trace.message_trace import MessageTrace
from weir.model.batch import Run
from weir.model.errors import SubscriptionBusyError, SubscriptionNotFoundError, TooManyError
from weir.model.policies import LAKE_SUBSCRIPTION, NO_LEVELS, Policies, Rate
from weir.model.queues import QUEUE_SUBSCRIPTION, QueueRules
from weir.model.retry import RetryPolicy, retry_of, with_retry
from weir.model.subscriptions import MessageFilter, filter_in, with_filter
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteShare
from weir.runtime.tasks import TaskScope
from weir.stream.compaction import CompactedView
from weir.stream.cursor import Cursor
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.wire.snapshots.subscriptions import decode_subscription

log = logging.getLogger(__name__)


class Given(NamedTuple):
    """Amount of delivered messages."""

    messages: int = 0
    bytes: int = 0


class Subscriptions:
    """Loads the durable subscriptions from the state. Policies take effect with `apply`."""

    def __init__(
        self,
        context: BrokerContext,
        topic: TopicName,
        policies: Policies,
        *,
        stream: Stream,
        state: StateLog,
        view: CompactedView,
        producer_state: ProducerStateManager,
        tasks: TaskScope,
        moved: Callable[[Subscription, Sequence[Run] | None], bool],
        trace: MessageTrace | None = None,
    ) -> None:
        """`moved`: see `SubscriptionParts`."""
        self._topic = topic
        self._policies = policies
        self._streams = context.streams
        self._stream = stream
        self._state = state
        self._view = view
        clock, settings = context.runtime.clock, context.settings
        self._rate = RateLimit(clock, Rate(), settings.rate_burst_s)
        #: Time from append to delivery.
        self.latency = Histogram()
        self.queue_side = QueueMode()
        self._queue_rules = QueueRules()
        self.by_name: dict[str, Subscription] = {}
        #: Deliveries to subscriptions that no longer exist.
        self.former = Given()
        self.letters = TopicDeadLetters(
            context,
            topic,
            stream,
            state,
            subscriptions=lambda: self.by_name,
            rules=lambda: self._queue_rules,
            tasks=tasks,
        )
        self._around = SubscriptionParts(
            clock,
            settings,
            stream,
            ReadCommittedLog(stream, producer_state),
            ReadCommittedLog(view, producer_state, view.visible),
            state,
            tasks,
            context.keys_of,
            self._rate,
            self.latency,
            topic.partition,
            self._dropped,
            self.queue_side,
            levels_in(context.formats),
            lambda: Meter(clock, context.flows.given, topic),
            moved,
            trace=trace,
            given_up=self.letters,
            label=str(topic),
            consumer_limit=context.consumer_limit,
        )
        #: Warnings of unread messages that policies delete soon.
        self.unread: tuple[UnreadWarning, ...] = ()
        self.by_name.update(_load_subscriptions(self._around, state))

    async def move_to_end(self) -> None:
        """Move subscriptions with positions beyond the end of the log to the end, durably before the first new
        message: otherwise they would skip new messages until the log reaches their positions. A log can end
        earlier than before if a damaged disk lost its last messages. The broker does not assign offsets again that
        the lake's table contains: the log then continues where the table ends."""
        lake = self.by_name.get(LAKE_SUBSCRIPTION)
        if lake is not None and lake.retains and lake.cursor.mark_delete >= self._stream.end_offset:
            self._stream.begin_at(lake.cursor.mark_delete + 1)
        end, moved = self._stream.end_offset, False
        for name, subscription in self.by_name.items():
            before = subscription.cursor.mark_delete + 1
            if subscription.cursor.cut(end):
                moved = True
                subscription.save()
                log.warning(
                    "%s: subscription %s was at offset %d, and the log ends at %d (its last messages are lost); "
                    "it continues at %d",
                    *(self._topic, name, before, end, min(before, end)),
                )
        if moved:
            await self._state.flush(unless_full=True)

    @property
    def source(self) -> ReadCommittedLog:
        """Messages that subscriptions may see."""
        return self._around.source

    def get(self, name: str) -> Subscription:
        found = self.by_name.get(name)
        if found is None:
            raise SubscriptionNotFoundError(f"{self._topic} has no subscription {name!r}")
        return found

    # --- messages for a single subscription (`publishing.Addressees`) -----------------------------------------

    def has(self, name: str) -> bool:
        return name in self.by_name

    def pass_by(self, name: str, first: int, end: int) -> None:
        for subscription in list(self.by_name.values()):
            if subscription.name != name and subscription.cursor.mark_delete < end - 1:
                subscription.pass_by(first, end)

    @property
    def consumer_count(self) -> int:
        return sum(len(subscription.consumers) for subscription in self.by_name.values())

    @property
    def only_the_queue(self) -> bool:
        """Whether the queue is the only subscription, and has only consumers of its own protocol."""
        queue = self.by_name.get(QUEUE_SUBSCRIPTION)
        return queue is not None and len(self.by_name) == 1 and not queue.others

    # --- policies ---------------------------------------------------------------------------------------

    def apply(self, policies: Policies) -> None:
        """Apply new policies."""
        self._policies = policies
        self._rate.set(policies.dispatch_rate or Rate())
        self._apply_priority()
        for subscription in list(self.by_name.values()):
            self._limit(subscription)

    def _limit(self, subscription: Subscription) -> None:
        subscription.set_limits(
            consumer=self._policies.max_unacked_per_consumer or 0,
            subscription=self._policies.max_unacked_per_subscription or 0,
        )
        subscription.rate.set(self._policies.subscription_dispatch_rate or Rate())
        subscription.apply_retry(self._retry_of(subscription))

    def _retry_of(self, subscription: Subscription) -> RetryPolicy | None:
        """Retry policy of the topic; for its queue, the declared one takes precedence."""
        said, declared = self._policies.retry, self._queue_rules.retry
        if subscription.name != QUEUE_SUBSCRIPTION or declared is None:
            return said
        return declared.over(said)

    def apply_queue(self, rules: QueueRules) -> None:
        """Apply new queue rules."""
        self._queue_rules = rules
        self.queue_side.single_active = rules.single_active
        self._apply_priority()
        queue = self.by_name.get(QUEUE_SUBSCRIPTION)
        if queue is not None:
            self._count(queue)
            queue.apply_retry(self._retry_of(queue))
        if self.queue_side.hooks is not None:
            self.queue_side.hooks.apply()

    def _apply_priority(self) -> None:
        """Set the priority levels: the declared ones of the queue, or else those of the policy. A change gives
        shared consumers a new dispatcher."""
        side, said = self.queue_side, self._policies.priority or NO_LEVELS
        priority = replace(said, levels=self._queue_rules.max_priority or said.levels)
        if side.priority == priority:
            return
        same = not side.levels and not priority.levels
        side.priority = priority
        for subscription in () if same else list(self.by_name.values()):
            if subscription.type is SubscriptionType.SHARED:
                subscription.renew("the topic has other levels of priority now")

    def _count(self, queue: Subscription) -> None:
        """As in RabbitMQ, a queue with a delivery limit keeps the delivery counts of messages over a crash."""
        queue.retries.counted = self._queue_rules.delivery_limit is not None

    # --- creation ---------------------------------------------------------------------------------------

    async def subscribe(self, request: SubscribeRequest, delivery_share: ByteShare | None) -> BrokerConsumer:
        """Add a consumer; if this creates a durable subscription, store it before the return."""
        self._check_consumers()
        compiled(wanted_filter(request))  # FilterError before a subscription is created
        wanted_retry(request)
        if not request.per_message and self._stream.end_offset > self._stream.written_to:
            await self._stream.write_gap()  # deliver only messages with a place in the log
        subscription = self.by_name.get(request.subscription)
        fresh = subscription is None
        if subscription is None:
            subscription = self._add_for(request)
        try:
            consumer = await subscription.subscribe(request, delivery_share)
        except BaseException:
            if not subscription.durable and not subscription.consumers:
                subscription.end("its first consumer was not let in")
            raise
        if fresh and subscription.durable:
            try:
                await self._state.flush()
            except BaseException:
                subscription.expel(consumer, "the subscription could not be stored")
                raise
        return consumer

    async def create(
        self, name: str, start: StartAt, *, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """Create a durable subscription without consumers. FilterError."""
        compiled(filter_in(properties or {}))
        subscription = self._add(name, start, durable=True, properties=properties)
        await self._state.flush()
        return subscription

    def ensure(self, name: str, start: StartAt, *, properties: Mapping[str, str]) -> Subscription:
        """The durable subscription of this name, created if policies allow it; the caller flushes the state."""
        found = self.by_name.get(name)
        if found is not None:
            if not found.durable:
                raise SubscriptionBusyError(f"{self._topic} has a non-durable subscription {name!r}")
            return found
        self._check_made(name)
        return self._add(name, start, durable=True, properties=properties)

    def ensure_queue(self) -> None:
        """Create the subscription of the queue at the oldest message, regardless of policies."""
        if QUEUE_SUBSCRIPTION not in self.by_name:
            self._add(QUEUE_SUBSCRIPTION, StartAt(), durable=True)

    def _check_consumers(self) -> None:
        limit = self._policies.max_consumers or 0
        if 0 < limit <= self.consumer_count:
            raise TooManyError(f"{self._topic} has {limit} consumers, which is its limit")

    def _add_for(self, request: SubscribeRequest) -> Subscription:
        if request.durable:
            self._check_made(request.subscription)
        return self._add(
            request.subscription,
            request.start,
            compacted=request.read_compacted,
            durable=request.durable,
            properties=with_retry(
                with_filter(request.subscription_properties, wanted_filter(request) or MessageFilter()),
                wanted_retry(request),
            ),
        )

    def _check_made(self, name: str) -> None:
        if not self._policies.auto_subscription_creation:
            raise SubscriptionNotFoundError(
                f"{self._topic} has no subscription {name!r}, and consumers may not create one"
            )

    def _add(
        self,
        name: str,
        start: StartAt,
        *,
        durable: bool,
        compacted: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> Subscription:
        limit = self._policies.max_subscriptions or 0
        if 0 < limit <= len(self.by_name):
            raise TooManyError(f"{self._topic} has {limit} subscriptions, which is its limit")
        full = self._streams.ledgers.full(self._streams.settings.quorum) if durable else None
        if full is not None:  # fail now, because the subscription cannot be stored
            raise full
        cursor = Cursor(self._start(start, compacted) - 1)
        retry_of(properties or {})  # raises if the retry policy is invalid
        subscription = Subscription(self._around, name, cursor, durable=durable, properties=properties)
        self._limit(subscription)
        if name == QUEUE_SUBSCRIPTION:
            self._count(subscription)
        self.by_name[name] = subscription
        subscription.save()
        return subscription

    def _start(self, start: StartAt, compacted: bool) -> int:
        first = self._view.start_offset if compacted else self._stream.start_offset
        if start.latest:
            return self._stream.end_offset
        if start.offset is None:
            return first
        return max(first, min(start.offset, self._stream.end_offset))

    # --- delivery and end -------------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver new messages, after the stream has grown."""
        for subscription in list(self.by_name.values()):
            subscription.pump()

    def skip_all(self) -> None:
        """Acknowledge all stored messages in all subscriptions."""
        for subscription in self.by_name.values():
            subscription.skip_all()

    def disconnect(self, reason: str) -> None:
        """Disconnect every consumer."""
        for subscription in list(self.by_name.values()):
            subscription.disconnect(reason)

    async def delete(self, name: str, *, force: bool) -> None:
        """SubscriptionBusyError while it has consumers, unless forced."""
        subscription = self.get(name)
        if subscription.consumers and not force:
            raise SubscriptionBusyError(f"subscription {name!r} has consumers")
        subscription.end("the subscription is deleted")
        await self._state.flush()

    def mark(self) -> None:
        """Set the values that the state must contain before it is closed."""
        for subscription in self.by_name.values():
            subscription.failing.mark()

    def close(self) -> None:
        """Stop all timers and background work of the subscriptions."""
        for subscription in self.by_name.values():
            subscription.close()

    def _dropped(self, subscription: Subscription) -> None:
        if self.by_name.get(subscription.name) is subscription:
            del self.by_name[subscription.name]
            self.former = Given(
                self.former.messages + subscription.meter.messages, self.former.bytes + subscription.meter.bytes
            )


def _load_subscriptions(around: SubscriptionParts, state: StateLog) -> dict[str, Subscription]:
    """Load every durable subscription from the state."""
    found: dict[str, Subscription] = {}
    for key in state.keys(record_key("")):
        name = key.removeprefix(record_key(""))
        cursor_bytes = state.get(cursor_key(name))
        cursor = Cursor() if cursor_bytes is None else Cursor.from_bytes(cursor_bytes)
        found[name] = Subscription(
            around, name, cursor, durable=True, properties=decode_subscription(state.get(key) or b"{}")
        )
    return found
