"""A subscription: a cursor, the consumers that share it, and the dispatcher that serves them."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from pyroaring import BitMap64

from weir.broker.api import Delivery, QueryProgress, SubscribeRequest, SubscriptionType
from weir.broker.dispatch.agreeing import agreed, stored_filter
from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.consumer_side import ConsumerSide
from weir.broker.dispatch.dispatcher import UnackedLimits, forget_counts
from weir.broker.dispatch.failing import FailureSide
from weir.broker.dispatch.per_message import PerMessage
from weir.broker.dispatch.redeliveries import Redeliveries
from weir.broker.dispatch.retries import Retries
from weir.broker.dispatch.subscription_parts import (
    RETAINS,
    SubscriptionParts,
    commit_key,
    cursor_key,
    keys_of_subscription,
    record_key,
)
from weir.broker.dispatch.waiting import batch_for, oldest_unacked, waiting_batch, waiting_messages
from weir.broker.filters.compiled import compiled
from weir.broker.filters.screen import Screen
from weir.broker.groups.query_progress import progress_of_commit
from weir.broker.publish.limits import RateLimit
from weir.broker.topic.meters import Meter
from weir.broker.transactions.decided_log import DecidedLog
from weir.model.batch import Batch
from weir.model.bits import Run
from weir.model.errors import NotAllowedError, SubscriptionBusyError
from weir.model.fifo import is_fifo
from weir.model.filters import filter_in
from weir.model.policies import Rate
from weir.model.retry import RetryPolicy, retry_of
from weir.model.trace import TraceKind
from weir.runtime.byte_budget import ByteShare
from weir.stream.cursor import Cursor
from weir.wire.snapshots.subscriptions import encode_subscription

log = logging.getLogger(__name__)

#: How long a subscription that is not durable waits for its consumers after a seek.
_SEEK_GRACE_S = 30.0
_INDIVIDUAL = (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


class Subscription:
    """Made by its topic. One that is not durable ends with its last consumer."""

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
        #: An unacknowledged offset and when it was appended, as far as somebody looked.
        self.oldest: tuple[int, int] | None = None
        self.last_active_ms = around.clock.wall_ms()
        self._around = around
        self._source = around.source
        self._log = around.log
        self._counts: dict[int, int] = {}
        self._screen = Screen(around.masks, cursor, around.source.visible, self._left_out, name)
        self._screen.filter = stored_filter(name, self.properties)
        #: Messages that fail.
        self.failing = FailureSide(self, around, self._dealing)
        self._served = ConsumerSide(self, around, self._screen, self.failing, self._counts)
        self._moved_at = 0  # consumers up to this number had their messages before the last seek
        self._moving: asyncio.Future[None] | None = None  # a seek under way
        self._gone = False
        #: Consumers that are no queue's own.
        self.others = 0

    # --- what it is -------------------------------------------------------------------------------------

    @property
    def type(self) -> SubscriptionType | None:
        """Of its consumers; None before the first."""
        return self._served.type

    @property
    def consumers(self) -> Collection[BrokerConsumer]:
        """A view: it changes with every consumer that comes or goes."""
        return self._served.consumers

    @property
    def retains(self) -> bool:
        """Whether messages stay for it until it has acknowledged them."""
        return self.properties.get(RETAINS) != "false"

    @property
    def filtered(self) -> int:
        """How many messages its filter has left out; they count as acknowledged."""
        return self._screen.filtered

    @property
    def query(self) -> QueryProgress | None:
        """What the query said last whose position this is; None if it is no query's."""
        return progress_of_commit(self._around.state.get(commit_key(self.name))) if self.durable else None

    @property
    def gone(self) -> bool:
        return self._gone

    @property
    def retry(self) -> RetryPolicy:
        """What becomes of messages that fail: its own words, and where these are silent the topic's."""
        return self.failing.policy

    @property
    def retries(self) -> Retries:
        """Those that failed."""
        return self.failing.retries

    @property
    def deliveries(self) -> Redeliveries:
        """How often messages were delivered in vain, where they are dealt one by one."""
        return self.failing.counts

    @property
    def backlog(self) -> int:
        """Messages that are not acknowledged, of those that are decided."""
        return self._source.backlog(self.cursor)

    @property
    def source(self) -> DecidedLog:
        """What there is to deliver."""
        return self._source

    @property
    def unacked(self) -> int:
        """Messages delivered and not acknowledged."""
        dispatcher = self._served.dispatcher
        return 0 if dispatcher is None else dispatcher.unacked

    @property
    def read_at(self) -> int:
        """The next offset that was never looked at."""
        dispatcher = self._served.dispatcher
        return self.cursor.mark_delete + 1 if dispatcher is None else dispatcher.read_at

    async def oldest_unacked(self) -> tuple[int, int] | None:
        """The first offset that is not acknowledged and when it was appended; None if all are."""
        self.oldest = await oldest_unacked(self._source, self.cursor, self.oldest)
        return self.oldest

    # --- consumers --------------------------------------------------------------------------------------

    async def subscribe(
        self, request: SubscribeRequest, delivery_share: ByteShare | None = None
    ) -> BrokerConsumer:
        """Let one more consumer in, once a seek that is under way has ended."""
        while self._moving is not None:
            await asyncio.shield(self._moving)
        return self.add(request, delivery_share)

    def add(self, request: SubscribeRequest, delivery_share: ByteShare | None = None) -> BrokerConsumer:
        """Let one more consumer in; raises if it does not fit to those that are there."""
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
        """The dispatcher of a subscription that is a queue; None if its consumers are of another type."""
        dispatcher = self._served.dispatcher
        if dispatcher is None:
            dispatcher = self._served.serve_queue()
        return dispatcher if isinstance(dispatcher, PerMessage) else None

    async def leave(self, consumer: BrokerConsumer, *, failed: bool = False) -> None:
        """The consumer closes itself. `failed`: no, its client is gone without a word."""
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
        """Close every consumer: those that come back have another dispatcher."""
        self.disconnect(reason)
        if not self._gone:
            self._served.stop()

    def end(self, reason: str) -> None:
        """It is no more: forget it."""
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
        """Nothing happens by itself any more."""
        self.failing.close()

    async def unsubscribe(self, consumer: BrokerConsumer, *, force: bool) -> None:
        if len(self.consumers) > 1 and not force:
            raise SubscriptionBusyError(f"subscription {self.name!r} has other consumers")
        self.end("unsubscribed")
        await self._around.state.flush()

    # --- delivering and acknowledging -------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver what can be delivered: the stream has grown, or something else has changed."""
        dispatcher = self._served.dispatcher
        if dispatcher is not None and self._moving is None:
            dispatcher.pump()

    def demanded(self, consumer: BrokerConsumer) -> None:
        dispatcher = self._served.dispatcher
        if dispatcher is not None and self._moving is None:
            dispatcher.demanded(consumer)

    def set_limits(self, *, consumer: int, subscription: int) -> None:
        """How many messages may be unacknowledged from now on; 0: any number."""
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
            return  # it was delivered before the subscription was moved, and would undo that
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
        """`why`: of what no consumer acknowledges, for traces."""
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

    def _left_out(self, batch: Batch, runs: Sequence[Run]) -> None:
        """By the filter."""
        self._note(runs)
        if (trace := self._around.trace) is not None and trace.on:
            trace.dropped(self.name, batch, runs, "filtered")

    def pass_by(self, first: int, end: int) -> None:
        """Acknowledge what is for another subscription alone; nobody was given it."""
        self.cursor.ack(first, end)
        self._note([(first, end)])

    def redeliver(
        self, consumer: BrokerConsumer, ranges: Sequence[Run] | None, *, delay_ms: int | None = None
    ) -> None:
        if (trace := self._around.trace) is not None and trace.on:
            trace.returned(self.name, consumer, ranges)
        if self._served.dispatcher is not None:
            self._served.dispatcher.redeliver(consumer, ranges, delay_ms=delay_ms)

    # --- what fails -------------------------------------------------------------------------------------

    def apply_retry(self, below: RetryPolicy | None) -> None:
        """The topic's policies say this of retries, from now on. Shared consumers may come back to a dispatcher
        that counts."""
        self.failing.below = below
        self._retry_changed()

    def _retry_changed(self) -> None:
        active = self.failing.apply().active
        if active and self.type in _INDIVIDUAL and self._dealing() is None:
            self.renew("the subscription retries messages by a policy now")

    @property
    def deals_parts(self) -> bool:
        return isinstance(self._served.dispatcher, PerMessage) or self._screen.filter is not None

    def _dealing(self) -> PerMessage | None:
        return self._served.dealing()

    def lease(self, consumer: BrokerConsumer, ranges: Sequence[Run], span_ms: int) -> None:
        self.failing.lease(consumer, ranges, span_ms)

    def reject(self, consumer: BrokerConsumer, ranges: Sequence[Run]) -> None:
        """Dead letters, from now on."""
        self.failing.reject(consumer, ranges)

    def drop_ready(self) -> int:
        """Acknowledge all that no consumer has; answers how many messages that were."""
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
        """Acknowledge the oldest messages; answers how many."""
        messages = min(messages, self.backlog)
        if messages > 0:
            # What was trimmed away, and what nobody will see, counts as acknowledged.
            self.ack_up_to(None, self._source.start_offset - 1, "retention")
            self._source.skip_hidden(self.cursor)
            self.ack_up_to(None, self.cursor.nth_unacked(messages))
        return messages

    def skip_all(self) -> int:
        backlog = self.backlog
        self.ack_up_to(None, self._log.end_offset - 1)
        return backlog

    def expire_before(self, offset: int, why: str = "expired") -> int:
        """Acknowledge everything before the offset; answers how many messages that were."""
        before = self.backlog
        self.ack_up_to(None, offset - 1, why)
        expired = before - self.backlog
        self.expired += expired
        return expired

    async def deliver_again(self, offset: int) -> bool:
        """One message, and no other, comes (again), whether it is acknowledged, with a consumer or waits to be
        tried again; durable then. False if it comes anyway. Where a consumer acknowledges all up to a message, or
        message groups are kept in order, consumers are closed: they come back, and what they had comes, too."""
        if not self.durable or not self.retains or self._around.state.get(commit_key(self.name)) is not None:
            raise NotAllowedError(
                f"subscription {self.name!r} is a consumer group's or a reader's: it has one position, and no word"
                " about single messages",
                hint="move it to the message, or send a copy of the message to the topic",
            )
        source = self._around.view if self._served.compacted else self._source
        batch = await batch_for(self.name, source, self._screen.visible, offset)
        if self._moving is not None or self._gone:
            raise SubscriptionBusyError(f"subscription {self.name!r} is being moved")
        done = self._bring_back(batch, offset)
        await self.persisted()
        return done

    def _bring_back(self, batch: Batch, offset: int) -> bool:
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
        """The `number`th batch, from 1 on, of which something is not acknowledged."""
        return await waiting_batch(self._source, self.cursor, number)

    async def waiting(self, count: int) -> list[tuple[Batch, int]]:
        """The first unacknowledged messages, each as its batch and its index there, as they would be delivered."""
        levels_of = self._around.levels_of if self._around.side.levels else None
        return await waiting_messages(self._source, self.cursor, count, levels_of)

    # --- moving and persisting --------------------------------------------------------------------------

    async def seek(self, offset: int) -> None:
        """Everything before the offset is acknowledged, nothing from it on. Consumers are closed; they come back
        to find the cursor moved, for good."""
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
        """Everything before the offset is acknowledged, nothing from it on, as with `seek`; but consumers stay,
        and the caller makes it durable. Going on takes nothing back from consumers; going back does."""
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
        """One that is not durable waits a while for its consumers to come back after a seek."""
        if not self.consumers:
            self.end("its last consumer has gone")

    async def persisted(self) -> None:
        if self.durable:
            await self._around.state.flush()

    def _note(self, runs: Sequence[Run] | None = None) -> None:
        if self._around.moved(self, runs) and self.durable:
            self._around.state.mark(cursor_key(self.name), self.cursor.to_bytes)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """A filter among them holds at once, and so does a retry policy. FilterError; NotAllowedError for what
        cannot be."""
        retry_of(properties)
        self._screen.filter = compiled(filter_in(properties))
        reordered = is_fifo(properties) != is_fifo(self.properties)
        self.properties = dict(properties)
        self.save()
        if reordered and self._dealing() is not None:
            self.renew("the subscription gets messages in another order now")
        self._retry_changed()

    def save(self) -> None:
        """Write the record of a durable subscription, new or changed; durable with the next flush."""
        if self.durable:
            self._around.state.put(record_key(self.name), encode_subscription(self.properties))
            self._note()


def _became(consumer: BrokerConsumer | None, why: str) -> tuple[TraceKind, str]:
    """Of messages that are acknowledged, for traces; `why`: of those that no consumer acknowledges."""
    return (TraceKind.DROPPED, why) if consumer is None else (TraceKind.ACKNOWLEDGED, "")
