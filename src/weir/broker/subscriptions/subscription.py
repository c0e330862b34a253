"""A subscription: a cursor, its consumers, and the dispatcher that serves them.

`ConsumerSide` selects the dispatcher by subscription type and delivery mode. `FailedMessages` handles failed
messages: retry policy, redelivery counts and delays, and dead letters.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from pyroaring import BitMap64

from weir.broker.api.consumers import Delivery, SubscribeRequest, SubscriptionType
from weir.broker.api.stats import QueryProgress
from weir.broker.filters.message_filter import compiled
from weir.broker.log.log_feed import ReadCommittedLog
from weir.broker.rates import Brake, Meter, RateLimit
from weir.broker.subscriptions.backlog_peek import batch_for, oldest_unacked, waiting_batch, waiting_messages
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.consumer_filters import KeyOwners
from weir.broker.subscriptions.dispatcher import Dispatcher, DispatchParts, UnackedLimits, forget_counts
from weir.broker.subscriptions.filter_screen import Screen, ScreenedFeed
from weir.broker.subscriptions.in_flight import Tally, runs_in, set_of
from weir.broker.subscriptions.key_shared import KeyShared
from weir.broker.subscriptions.per_message import PerMessage
from weir.broker.subscriptions.redelivery import Redeliveries, Retries
from weir.broker.subscriptions.selectors import KeysOf
from weir.broker.subscriptions.shared import Shared
from weir.broker.subscriptions.single_active import SingleActive
from weir.broker.subscriptions.subscription_state import (
    RETAINS,
    SubscriptionParts,
    agreed,
    commit_key,
    cursor_key,
    keys_of_subscription,
    progress_of_commit,
    record_key,
    retries_key,
    stored_filter,
)
from weir.broker.trace.message_trace import given_up_words
from weir.model.batch import Batch, Run
from weir.model.errors import NotAllowedError, ReadStuckError, SubscriptionBusyError, WeirError
from weir.model.messages import TraceKind
from weir.model.policies import Rate
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.retry import RetryPolicy, retry_of
from weir.model.subscriptions import FIFO_RETRY, filter_in, is_fifo
from weir.runtime.budgets import ByteShare
from weir.stream.cursor import Cursor
from weir.wire.amqp.dead_letter import Reason
from weir.wire.snapshots.subscriptions import decode_retries, encode_subscription

log = logging.getLogger(__name__)


class FailedMessages:
    """Fills `redelivery.RetryOwner`. `served_by`: returns the dispatcher if it is per-message, else None."""

    def __init__(
        self, subscription: "Subscription", around: SubscriptionParts, served_by: Callable[[], PerMessage | None]
    ) -> None:
        self._subscription = subscription
        self._around = around
        self._served_by = served_by
        #: Redelivery counts per message, for per-message dispatch.
        self.counts = Redeliveries()
        self._retries: Retries | None = None
        #: The topic's retry policy, for settings that the subscription's properties do not have.
        self.below: RetryPolicy | None = None

    @property
    def policy(self) -> RetryPolicy:
        try:
            own = retry_of(self._subscription.properties)
        except WeirError as bad:  # from a newer Weir
            log.warning("subscription %s: %s", self._subscription.name, bad)
            own = None
        told = (own or RetryPolicy()).over(self.below)
        return told.over(FIFO_RETRY) if is_fifo(self._subscription.properties) else told

    @property
    def retries(self) -> Retries:
        """The retry state; loaded on first use."""
        if self._retries is None:
            self._retries = self._load()
            self._retries.policy = self.policy
        return self._retries

    def _load(self) -> Retries:
        subscription, counts, saved = self._subscription, self.counts, None
        data = self._around.state.get(retries_key(subscription.name)) if subscription.durable else None
        if data is not None:
            try:
                saved = decode_retries(data)
            except WeirError as bad:
                log.error("subscription %s: redelivery counts lost: %s", subscription.name, bad)
        found = Retries(self, counts, self._around.clock, saved)
        if saved is not None:
            counts.keep(subscription.cursor.unacked_of(counts.all()))
            found.keep(subscription.cursor.unacked_of(found.waiting()))
        return found

    def apply(self) -> RetryPolicy:
        """Apply a changed policy; return the effective one."""
        policy = self.policy
        if self._retries is not None:
            self._retries.policy = policy
            self._retries.changed()
        return policy

    def mark(self) -> None:
        """Save unsaved redelivery counts before the topic closes."""
        if self._retries is not None and self._retries.unsaved:
            self.retries_changed()

    def close(self) -> None:
        if self._retries is not None:
            self._retries.close()

    # --- consumers ----------------------------------------------------------------------------------------------

    def lease(self, consumer: BrokerConsumer, ranges: Sequence[Run], span_ms: int) -> None:
        dispatcher = self._served_by()
        if dispatcher is None:
            raise NotAllowedError(f"subscription {self._subscription.name!r} has no per-message delivery")
        dispatcher.lease(consumer, ranges, span_ms)

    def reject(self, consumer: BrokerConsumer, ranges: Sequence[Run]) -> None:
        dispatcher = self._served_by()
        if dispatcher is not None:
            found = dispatcher.set_aside(consumer, ranges)
        else:
            found = self._subscription.cursor.unacked_of(set_of(ranges))
        if found:
            self.give_up(found, Reason.REJECTED)

    # --- callbacks of `Retries` ---------------------------------------------------------------------------------

    def again(self, offsets: BitMap64) -> None:
        """Make messages ready after their redelivery delay."""
        dispatcher = self._served_by()
        if dispatcher is not None:
            dispatcher.put_back(offsets)

    def lease_over(self, offsets: BitMap64) -> None:
        dispatcher = self._subscription.per_message()
        if dispatcher is not None:
            dispatcher.lease_over(offsets)

    def give_up(self, offsets: BitMap64, reason: Reason) -> None:
        self.tell_given_up(offsets, reason)
        self._around.given_up.take(self._subscription, offsets, reason)

    def tell_given_up(self, offsets: BitMap64, reason: Reason, *, letters: bool = True) -> None:
        """Trace why these messages are not delivered any more. `letters`: they become dead letters."""
        if (trace := self._around.trace) is not None and trace.on:
            trace.passed_by(self._subscription.name, offsets, given_up_words(reason, letters=letters))

    def retries_changed(self) -> None:
        subscription = self._subscription
        if subscription.durable and not subscription.gone and self._retries is not None:
            self._around.state.mark(retries_key(subscription.name), self._retries.to_bytes)

    def ack_soon(self, offsets: BitMap64) -> None:
        """Acknowledge in the next turn of the loop; the messages are aside until then."""
        asyncio.get_running_loop().call_soon(self._subscription.ack, None, list(runs_in(offsets)))


def dispatcher_of(kind: SubscriptionType, parts: DispatchParts, keys_of: KeysOf) -> Dispatcher:
    """Make a dispatcher of whole batches."""
    match kind:
        case SubscriptionType.SHARED:
            return Shared(parts)
        case SubscriptionType.KEY_SHARED:
            return KeyShared(parts, keys_of)
        case _:
            return SingleActive(parts, failover=kind is SubscriptionType.FAILOVER)


class ConsumerSide:
    """`counts`: redelivery counts of batches, for dispatch of whole batches."""

    def __init__(
        self,
        subscription: "Subscription",
        around: SubscriptionParts,
        screen: Screen,
        failing: FailedMessages,
        counts: dict[int, int],
    ) -> None:
        #: None before the first consumer.
        self.dispatcher: Dispatcher | None = None
        self.type: SubscriptionType | None = None
        self.compacted = False
        #: The number of the last consumer that joined.
        self.last_number = 0
        self._subscription = subscription
        self._around = around
        self._screen = screen
        self._failing = failing
        self._counts = counts
        self._unacked = Tally()

    @property
    def consumers(self) -> Collection[BrokerConsumer]:
        return () if self.dispatcher is None else self.dispatcher.consumers

    def let_in(self, request: SubscribeRequest, delivery_share: ByteShare | None) -> BrokerConsumer:
        """Add a consumer. Raises SubscriptionBusyError if it conflicts with the connected consumers."""
        around = self._around
        around.consumer_limit.check(len(self.consumers), around.label, self._subscription.name)
        dispatcher = self._fitting(request)
        self.last_number += 1
        subscription = self._subscription
        consumer = BrokerConsumer(
            subscription,
            request,
            self.last_number,
            clock=around.clock,
            batch_bytes=around.settings.delivery_bytes,
            latency=around.latency,
            delivery_share=delivery_share,
            trace=around.trace,
            tally=self._unacked,
        )
        if subscription.name == QUEUE_SUBSCRIPTION:
            consumer.filter = compiled(request.filter)
        dispatcher.join(consumer)
        return consumer

    def serve_queue(self) -> Dispatcher:
        """Make the per-message dispatcher of a queue before its first consumer."""
        return self._serve(SubscriptionType.SHARED, per_message=True)

    def dealing(self) -> PerMessage | None:
        """The dispatcher if it is per-message, else None."""
        return self.dispatcher if isinstance(self.dispatcher, PerMessage) else None

    def stop(self) -> None:
        """Close the dispatcher; the next consumer gets a new one."""
        if self.dispatcher is not None:
            self.dispatcher.close()
            self.dispatcher, self.type = None, None

    def _fitting(self, request: SubscribeRequest) -> Dispatcher:
        per_message = self._is_per_message(request)
        same = (
            self.type is request.type
            and self.compacted == request.read_compacted
            and per_message == isinstance(self.dispatcher, PerMessage)
        )
        if self.dispatcher is not None and same:
            return self.dispatcher
        if self.consumers:
            kind = self.type.value if self.type is not None else ""
            raise SubscriptionBusyError(f"subscription {self._subscription.name!r} has consumers of type {kind}")
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.compacted = request.read_compacted
        return self._serve(request.type, per_message=per_message)

    def _is_per_message(self, request: SubscribeRequest) -> bool:
        """Per-message dispatch is for shared consumers of queues, of topics with priority levels, or by request;
        and for shared and key-shared subscriptions with a retry policy."""
        if request.type is SubscriptionType.KEY_SHARED:
            return self._failing.policy.active
        if request.type is not SubscriptionType.SHARED:
            return False
        exact = self._subscription.name == QUEUE_SUBSCRIPTION or request.per_message
        return exact or self._around.side.levels > 0 or self._failing.policy.active

    def _serve(self, kind: SubscriptionType, *, per_message: bool) -> Dispatcher:
        parts = self._dispatch_parts()
        if per_message:
            self.dispatcher = self._one_by_one(kind, parts)
        else:
            self.dispatcher = dispatcher_of(kind, parts, self._around.keys_of)
        self.type = kind
        return self.dispatcher

    def _dispatch_parts(self) -> DispatchParts:
        around, subscription = self._around, self._subscription
        source = around.view if self.compacted else around.source
        screen = self._screen.over(source.visible)
        return DispatchParts(
            subscription.cursor,
            around.settings,
            lambda wake: ScreenedFeed(
                source, around.clock, around.settings, around.tasks, wake, screen=screen, stuck=self._stuck
            ),
            lambda wake: Brake(around.clock, (around.topic_rate, subscription.rate), wake),
            screen.visible,
            self._counts,
            subscription.limits,
            self._unacked,
            around.partition,
            screen,
            around.clock.wall_ms,
        )

    def _one_by_one(self, kind: SubscriptionType, parts: DispatchParts) -> PerMessage:
        around, subscription = self._around, self._subscription
        by_key = kind is SubscriptionType.KEY_SHARED
        return PerMessage(
            parts,
            around.side,
            self._failing.counts,
            around.levels_of,
            queue=subscription.name == QUEUE_SUBSCRIPTION,
            retries=self._failing.retries,
            dead=partial(around.given_up.dead, subscription),
            groups_of=around.keys_of if by_key or is_fifo(subscription.properties) else None,
            owners=KeyOwners(around.keys_of) if by_key else None,
        )

    def _stuck(self, failure: ReadStuckError) -> None:
        for consumer in list(self.consumers):
            consumer.fail(failure)


#: How long a non-durable subscription waits for its consumers to reconnect after a seek.
_SEEK_GRACE_S = 30.0
_INDIVIDUAL = (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


class Subscription:
    """A topic makes its subscriptions. A non-durable subscription ends with its last consumer."""

    def __init__(
        self,
        around: SubscriptionParts,
        name: str,
        cursor: Cursor,
        *,
        durable: bool,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.durable = durable
        self.cursor = cursor
        self.properties: dict[str, str] = dict(properties or {})
        self.limits = UnackedLimits()
        self.rate = RateLimit(around.clock, Rate(), around.settings.rate_burst_s)
        self.meter = Meter(around.clock) if around.given is None else around.given()
        self.redelivered = 0  # by consumers that have left
        self.expired = 0
        #: The oldest unacknowledged offset and its append time, from the last `oldest_unacked`.
        self.oldest: tuple[int, int] | None = None
        self.last_active_ms = around.clock.wall_ms()
        self._around = around
        self._source = around.source
        self._log = around.log
        self._counts: dict[int, int] = {}
        self._screen = Screen(around.masks, cursor, around.source.visible, self._trace_filtered, name)
        self._screen.filter = stored_filter(name, self.properties)
        #: State of failed messages.
        self.failing = FailedMessages(self, around, self._dealing)
        self._served = ConsumerSide(self, around, self._screen, self.failing, self._counts)
        self._moved_at = 0  # consumers up to this number received their messages before the last seek
        self._moving: asyncio.Future[None] | None = None  # a seek in progress
        self._gone = False
        #: Consumers without per-message acknowledgement, as opposed to a queue's own.
        self.others = 0

    # --- properties -------------------------------------------------------------------------------------

    @property
    def type(self) -> SubscriptionType | None:
        """The type of its consumers; None before the first."""
        return self._served.type

    @property
    def consumers(self) -> Collection[BrokerConsumer]:
        """A live view: it changes when consumers join or leave."""
        return self._served.consumers

    @property
    def retains(self) -> bool:
        """Whether retention keeps messages until this subscription has acknowledged them."""
        return self.properties.get(RETAINS) != "false"

    @property
    def filtered(self) -> int:
        """How many messages its filter rejected; they count as acknowledged."""
        return self._screen.filtered

    @property
    def query(self) -> QueryProgress | None:
        """The last progress of the query that this position belongs to; None if it belongs to no query."""
        return progress_of_commit(self._around.state.get(commit_key(self.name))) if self.durable else None

    @property
    def gone(self) -> bool:
        return self._gone

    @property
    def retry(self) -> RetryPolicy:
        """The effective retry policy: the subscription's settings, and the topic's for those that it does not
        have."""
        return self.failing.policy

    @property
    def retries(self) -> Retries:
        """The retry state."""
        return self.failing.retries

    @property
    def deliveries(self) -> Redeliveries:
        """Redelivery counts per message, for per-message dispatch."""
        return self.failing.counts

    @property
    def backlog(self) -> int:
        """Unacknowledged messages up to the last stable offset."""
        return self._source.backlog(self.cursor)

    @property
    def source(self) -> ReadCommittedLog:
        """The log up to the last stable offset."""
        return self._source

    @property
    def unacked(self) -> int:
        """Messages delivered and not acknowledged."""
        dispatcher = self._served.dispatcher
        return 0 if dispatcher is None else dispatcher.unacked

    @property
    def read_at(self) -> int:
        """The next offset to scan."""
        dispatcher = self._served.dispatcher
        return self.cursor.mark_delete + 1 if dispatcher is None else dispatcher.read_at

    async def oldest_unacked(self) -> tuple[int, int] | None:
        """The first unacknowledged offset and its append time; None if the backlog is empty."""
        self.oldest = await oldest_unacked(self._source, self.cursor, self.oldest)
        return self.oldest

    # --- consumers --------------------------------------------------------------------------------------

    async def subscribe(
        self, request: SubscribeRequest, delivery_share: ByteShare | None = None
    ) -> BrokerConsumer:
        """Add a consumer, after the end of a seek in progress."""
        while self._moving is not None:
            await asyncio.shield(self._moving)
        return self.add(request, delivery_share)

    def add(self, request: SubscribeRequest, delivery_share: ByteShare | None = None) -> BrokerConsumer:
        """Add a consumer. Raises SubscriptionBusyError if it conflicts with the connected consumers."""
        if self._gone:
            raise SubscriptionBusyError(f"subscription {self.name!r} is being removed")
        if request.read_compacted and request.type in _INDIVIDUAL:
            raise NotAllowedError("a compacted view is for exclusive and failover subscriptions")
        properties = agreed(request, self.properties, self._screen.filter, busy=bool(self.consumers))
        if properties is not None:
            self.set_properties(properties)
        consumer = self._served.let_in(request, delivery_share)
        self.others += not request.per_message
        return consumer

    def per_message(self) -> PerMessage | None:
        """The dispatcher of a subscription that serves a queue; None if its consumers are of another type."""
        dispatcher = self._served.dispatcher
        if dispatcher is None:
            dispatcher = self._served.serve_queue()
        return dispatcher if isinstance(dispatcher, PerMessage) else None

    async def leave(self, consumer: BrokerConsumer, *, failed: bool = False) -> None:
        """Close the consumer on behalf of its client. `failed`: the connection broke without a close."""
        self.expel(consumer, "closed by the client", failed=failed)

    def expel(self, consumer: BrokerConsumer, reason: str, *, failed: bool = False) -> None:
        dispatcher = self._served.dispatcher
        if dispatcher is None or not consumer.open:
            return
        if (trace := self._around.trace) is not None and trace.on:
            trace.returned(self.name, consumer, None, reason)
        dispatcher.leave(consumer, failed=failed)
        self.others -= not consumer.request.per_message
        self.redelivered += consumer.redelivered
        consumer.shut(reason)
        self.last_active_ms = self._around.clock.wall_ms()
        if not self.durable and not dispatcher.consumers and self._moving is None:
            self.end("its last consumer has gone")

    def disconnect(self, reason: str) -> None:
        """Close every consumer."""
        for consumer in list(self.consumers):
            self.expel(consumer, reason)

    def renew(self, reason: str) -> None:
        """Close every consumer and the dispatcher: consumers that reconnect get a new dispatcher."""
        self.disconnect(reason)
        if not self._gone:
            self._served.stop()

    def end(self, reason: str) -> None:
        """Delete the subscription and its stored state."""
        if self._gone:
            return
        self._gone = True
        self.disconnect(reason)
        if self._served.dispatcher is not None:
            self._served.dispatcher.close()
        self.close()
        self._around.given_up.forget(self)
        if self.durable:
            for key in keys_of_subscription(self.name):
                self._around.state.delete(key)
        self._around.dropped(self)

    def close(self) -> None:
        """Stop all timers."""
        self.failing.close()

    async def unsubscribe(self, consumer: BrokerConsumer, *, force: bool) -> None:
        if len(self.consumers) > 1 and not force:
            raise SubscriptionBusyError(f"subscription {self.name!r} has other consumers")
        self.end("unsubscribed")
        await self._around.state.flush()

    # --- delivering and acknowledging -------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver all messages that can be delivered, after an append or another change."""
        dispatcher = self._served.dispatcher
        if dispatcher is not None and self._moving is None:
            dispatcher.pump()

    def demanded(self, consumer: BrokerConsumer) -> None:
        dispatcher = self._served.dispatcher
        if dispatcher is not None and self._moving is None:
            dispatcher.demanded(consumer)

    def set_limits(self, *, consumer: int, subscription: int) -> None:
        """Set the limits of unacknowledged messages; 0: no limit."""
        before = (self.limits.consumer, self.limits.subscription)
        self.limits.consumer, self.limits.subscription = consumer, subscription
        dispatcher = self._served.dispatcher
        if dispatcher is not None and before != (consumer, subscription):
            dispatcher.limits_changed()

    def give_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        dispatcher = self._served.dispatcher
        if dispatcher is not None and consumer.open:
            dispatcher.give_back(consumer, deliveries)

    def ack(self, consumer: BrokerConsumer | None, ranges: Sequence[tuple[int, int]]) -> None:
        if consumer is not None and consumer.number <= self._moved_at:
            return  # delivered before the last seek: this acknowledgement would undo the seek
        cursor, limit = self.cursor, self._log.end_offset
        new: list[Run] = []
        for first, end in ranges:
            stop = end if end < limit else limit
            if cursor.ack(first, stop):
                new.append((first, stop))
        if not new:
            return
        if self._counts:
            for first, end in new:
                forget_counts(self._counts, first, end)
        self._note(new)
        if (trace := self._around.trace) is not None and trace.on:
            trace.settled(self.name, new, *_became(consumer, "given up"))
        dispatcher = self._served.dispatcher
        if dispatcher is not None and dispatcher.settled(consumer, new):
            self.pump()

    def ack_up_to(self, consumer: BrokerConsumer | None, offset: int, why: str = "skipped") -> None:
        """`why`: the reason in traces, if no consumer acknowledges."""
        if consumer is not None and self._served.type in _INDIVIDUAL:
            raise NotAllowedError("messages of a shared subscription are acknowledged one by one")
        offset = min(offset, self._log.end_offset - 1)
        if offset <= self.cursor.mark_delete or (consumer is not None and consumer.number <= self._moved_at):
            return
        first = self.cursor.mark_delete + 1
        trace = self._around.trace
        if consumer is None and trace is not None and trace.on:
            gone = self.cursor.unacked_of(trace.kept(first, offset + 1))
            self.cursor.ack_up_to(offset)
            trace.passed_by(self.name, gone, why)
        else:
            self.cursor.ack_up_to(offset)
        if self._counts:
            forget_counts(self._counts, first, offset + 1)
        self._note()
        if trace is not None and trace.on:
            trace.settled(self.name, [(first, offset + 1)], *_became(consumer, why))
        dispatcher = self._served.dispatcher
        if dispatcher is not None and dispatcher.settled(consumer, [(first, offset + 1)]):
            self.pump()

    def _trace_filtered(self, batch: Batch, runs: Sequence[Run]) -> None:
        """Trace the messages that the filter rejected."""
        self._note(runs)
        if (trace := self._around.trace) is not None and trace.on:
            trace.dropped(self.name, batch, runs, "filtered")

    def pass_by(self, first: int, end: int) -> None:
        """Acknowledge messages that are addressed to another subscription; no consumer received them."""
        self.cursor.ack(first, end)
        self._note([(first, end)])

    def redeliver(
        self, consumer: BrokerConsumer, ranges: Sequence[Run] | None, *, delay_ms: int | None = None
    ) -> None:
        if (trace := self._around.trace) is not None and trace.on:
            trace.returned(self.name, consumer, ranges)
        if self._served.dispatcher is not None:
            self._served.dispatcher.redeliver(consumer, ranges, delay_ms=delay_ms)

    # --- failures ---------------------------------------------------------------------------------------

    def apply_retry(self, below: RetryPolicy | None) -> None:
        """Set the topic's retry policy. If that changes the kind of dispatch, shared consumers are closed and
        reconnect."""
        self.failing.below = below
        self._retry_changed()

    def _retry_changed(self) -> None:
        active = self.failing.apply().active
        if active and self.type in _INDIVIDUAL and self._dealing() is None:
            self.renew("the subscription now retries messages by a policy")

    @property
    def deals_parts(self) -> bool:
        return isinstance(self._served.dispatcher, PerMessage) or self._screen.filter is not None

    def _dealing(self) -> PerMessage | None:
        return self._served.dealing()

    def lease(self, consumer: BrokerConsumer, ranges: Sequence[Run], span_ms: int) -> None:
        self.failing.lease(consumer, ranges, span_ms)

    def reject(self, consumer: BrokerConsumer, ranges: Sequence[Run]) -> None:
        """Make these messages dead letters now."""
        self.failing.reject(consumer, ranges)

    def drop_ready(self) -> int:
        """Acknowledge all messages that no consumer has; return how many."""
        dispatcher = self.per_message()
        if dispatcher is None:
            raise SubscriptionBusyError(f"subscription {self.name!r} has consumers that are not a queue's")
        before, end = self.backlog, self._source.end_offset
        dropped = BitMap64()
        dropped.add_range(self.cursor.mark_delete + 1, end)
        dropped -= dispatcher.forget_ready(end)
        if (trace := self._around.trace) is not None and trace.on:
            trace.passed_by(self.name, self.cursor.unacked_of(dropped), "purged")
        self.cursor.ack_all(dropped, end)
        self._note()
        return before - self.backlog

    # --- for administrators -----------------------------------------------------------------------------

    def skip(self, messages: int) -> int:
        """Acknowledge the oldest messages; return how many."""
        messages = min(messages, self.backlog)
        if messages > 0:
            # Trimmed messages and messages that no consumer can see count as acknowledged.
            self.ack_up_to(None, self._source.start_offset - 1, "retention")
            self._source.skip_hidden(self.cursor)
            self.ack_up_to(None, self.cursor.nth_unacked(messages))
        return messages

    def skip_all(self) -> int:
        backlog = self.backlog
        self.ack_up_to(None, self._log.end_offset - 1)
        return backlog

    def expire_before(self, offset: int, why: str = "expired") -> int:
        """Acknowledge everything before the offset; return how many messages."""
        before = self.backlog
        self.ack_up_to(None, offset - 1, why)
        expired = before - self.backlog
        self.expired += expired
        return expired

    async def deliver_again(self, offset: int) -> bool:
        """Redeliver one message, durably, whether it is acknowledged, with a consumer, or waits for a redelivery
        delay. Return False if its delivery is due anyway. With cumulative acknowledgement or ordered message
        groups the consumers are closed: they reconnect, and their unacknowledged messages are redelivered as
        well."""
        if not self.durable or not self.retains or self._around.state.get(commit_key(self.name)) is not None:
            raise NotAllowedError(
                f"subscription {self.name!r} belongs to a consumer group or a reader: it has one position, and no"
                " acknowledgements of single messages",
                hint="move it to the message, or send a copy of the message to the topic",
            )
        source = self._around.view if self._served.compacted else self._source
        batch = await batch_for(self.name, source, self._screen.visible, offset)
        if self._moving is not None or self._gone:
            raise SubscriptionBusyError(f"subscription {self.name!r} is being moved")
        done = self._redeliver_one(batch, offset)
        await self.persisted()
        return done

    def _redeliver_one(self, batch: Batch, offset: int) -> bool:
        acked = self.cursor.unack(offset)
        if acked:
            self._note()
        if self._served.dispatcher is None:
            return acked
        done = self._served.dispatcher.deliver_again(batch, offset, acked=acked)
        if done is None:
            self._moved_at = self._served.last_number
            self.renew(f"the message at offset {offset} is delivered again")
        return done is not False

    async def waiting_batch(self, number: int) -> Batch | None:
        """The `number`th batch (counted from 1) that has an unacknowledged message."""
        return await waiting_batch(self._source, self.cursor, number)

    async def waiting(self, count: int) -> list[tuple[Batch, int]]:
        """The first unacknowledged messages in delivery order, each as its batch and its index in the batch."""
        levels_of = self._around.levels_of if self._around.side.levels else None
        return await waiting_messages(self._source, self.cursor, count, levels_of)

    # --- moving and persisting --------------------------------------------------------------------------

    async def seek(self, offset: int) -> None:
        """Set the cursor: everything before the offset is acknowledged, nothing from it on. Consumers are closed;
        when they reconnect, the new position is durable."""
        if self._moving is not None:
            raise SubscriptionBusyError(f"subscription {self.name!r} is being moved already")
        self._moving = asyncio.get_running_loop().create_future()
        try:
            self.disconnect("the subscription is moved")
            self._moved_at = self._served.last_number
            start = (self._around.view if self._served.compacted else self._source).start_offset
            end = self._log.end_offset
            self._reset(max(start, min(offset, end)))
            self._note()
            await self.persisted()
        finally:
            self._moving.set_result(None)
            self._moving = None
            if not self.durable:
                self._around.clock.call_later(_SEEK_GRACE_S, self._drop_if_idle)

    def place(self, offset: int) -> None:
        """Set the cursor as `seek` does, but without closing consumers; the caller makes it durable. A move
        forward leaves delivered messages with consumers; a move backward does not."""
        offset = min(offset, self._log.end_offset)
        if self.consumers and offset > self.cursor.mark_delete:
            self.ack_up_to(None, offset - 1, "the subscription was moved")
        else:
            self._reset(offset)
        self.last_active_ms = self._around.clock.wall_ms()
        self._note()

    def _reset(self, offset: int) -> None:
        self.cursor.reset(offset)
        self._counts.clear()
        if self._served.dispatcher is not None:
            self._served.dispatcher.rewind()

    def _drop_if_idle(self) -> None:
        """End a non-durable subscription if its consumers did not reconnect after a seek."""
        if not self.consumers:
            self.end("its last consumer has gone")

    async def persisted(self) -> None:
        if self.durable:
            await self._around.state.flush()

    def _note(self, runs: Sequence[Run] | None = None) -> None:
        if self._around.moved(self, runs) and self.durable:
            self._around.state.mark(cursor_key(self.name), self.cursor.to_bytes)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """A new filter or retry policy applies at once. Raises FilterError, or NotAllowedError for an invalid
        policy."""
        retry_of(properties)
        self._screen.filter = compiled(filter_in(properties))
        reordered = is_fifo(properties) != is_fifo(self.properties)
        self.properties = dict(properties)
        self.save()
        if reordered and self._dealing() is not None:
            self.renew("the delivery order of the subscription has changed")
        self._retry_changed()

    def save(self) -> None:
        """Write the record of a durable subscription, new or changed; durable with the next flush."""
        if self.durable:
            self._around.state.put(record_key(self.name), encode_subscription(self.properties))
            self._note()


def _became(consumer: BrokerConsumer | None, why: str) -> tuple[TraceKind, str]:
    """The trace event of acknowledged messages; `why`: the reason if no consumer acknowledged them."""
    return (TraceKind.DROPPED, why) if consumer is None else (TraceKind.ACKNOWLEDGED, "")
