"""A persistent topic: one stream with its state, producers, subscriptions and policies."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from weir.broker.api import Outgoing, Position, ProducerRequest, Receipt, StartAt, SubscribeRequest
from weir.broker.consumer import BrokerConsumer
from weir.broker.context import BrokerContext
from weir.broker.dedup import KEY as DEDUP_KEY
from weir.broker.dedup import Deduplication
from weir.broker.lazy_holding import LazyHolding
from weir.broker.limits import RateLimit
from weir.broker.meters import Histogram
from weir.broker.ports import Holding
from weir.broker.producers import BrokerProducer, Producers
from weir.broker.publishing import Publisher
from weir.broker.stats import CompactionStatus, Latency, SubscriptionStats, TopicStats
from weir.broker.stats_of import flow_of, producer_stats, subscription_stats
from weir.broker.subscription import Subscription, Surroundings, load_subscriptions
from weir.model.batch import Batch
from weir.model.errors import (
    NotAllowedError,
    QuotaExceededError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TooManyError,
    TopicClosedError,
    WeirError,
)
from weir.model.policies import Policies, Rate
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.tasks import TaskScope
from weir.stream.compaction import CompactedView
from weir.stream.cursor import Cursor
from weir.stream.holding_ledger import LEDGER_KEYS
from weir.stream.log import Stream
from weir.stream.retention import bytes_from
from weir.stream.state import StateLog

log = logging.getLogger(__name__)

_EPOCH_KEY = "epoch"


def stream_name(topic: TopicName) -> str:
    """Where the metadata keeps the topic's stream."""
    return f"{topic.namespace}/{topic.local_with_partition}"


class BrokerTopic:
    """Fills `api.Topic`. Made by `open`; dies when another broker takes its stream over."""

    def __init__(
        self,
        context: BrokerContext,
        name: TopicName,
        policies: Policies,
        *,
        stream: Stream,
        state: StateLog,
        view: CompactedView,
    ) -> None:
        self._context = context
        self._clock = context.runtime.clock
        self._name = name
        self._stream = stream
        self._state = state
        self._view = view
        self._compacting: asyncio.Task[None] | None = None
        self._tasks = TaskScope(f"topic {name}")
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._closing = False
        epoch = state.get(_EPOCH_KEY)
        self._producers = Producers(None if epoch is None else int(epoch), self._epoch_moved)
        self._publisher = Publisher(context, stream, policies, self._producers.close)
        self._policies = policies
        self._dispatch_rate = RateLimit(self._clock, Rate(), context.settings.rate_burst_s)
        self._around = Surroundings(
            self._clock,
            context.settings,
            stream,
            view,
            state,
            self._tasks,
            context.keys_of,
            self._dispatch_rate,
            Histogram(),
            name.partition,
            self._dropped,
        )
        self._subscriptions: dict[str, Subscription] = load_subscriptions(self._around)
        self._name_count = 0
        #: Why producers are not let in, while the backlog is over its quota.
        self.over_quota: QuotaExceededError | None = None
        stream.listen(self._stream_changed)

    @classmethod
    async def open(cls, context: BrokerContext, name: TopicName, policies: Policies) -> "BrokerTopic":
        """Take the topic over from whoever had it, and bring its state up to date."""
        stream = await Stream.open(context.streams, stream_name(name), create_missing=True)
        state: StateLog | None = None
        try:
            state = await stream.open_state()
            view = await CompactedView.open(context.streams, stream, state)
            topic = cls(context, name, policies, stream=stream, state=state, view=view)
            await topic._open_holding()
            await topic.apply(policies)
        except BaseException:
            if state is not None:
                await state.close()
            await stream.close()
            raise
        return topic

    async def _open_holding(self) -> None:
        open_area = self._context.open_holding
        if open_area is None:
            return
        streams, stream, state = self._context.streams, self._stream, self._state
        holding = LazyHolding(str(self._name), lambda: open_area(streams, stream, state))
        self._publisher.holding = holding
        if state.keys(LEDGER_KEYS):
            await holding.open()

    # --- what it is -------------------------------------------------------------------------------------

    @property
    def name(self) -> TopicName:
        return self._name

    @property
    def policies(self) -> Policies:
        return self._policies

    @property
    def stream(self) -> Stream:
        return self._stream

    @property
    def state(self) -> StateLog:
        return self._state

    @property
    def holding(self) -> Holding | None:
        """Where messages wait that may not be seen yet; None while none ever did."""
        holding = self._publisher.holding
        return holding.area if isinstance(holding, LazyHolding) else holding

    @property
    def publisher(self) -> Publisher:
        return self._publisher

    @property
    def producers(self) -> Sequence[BrokerProducer]:
        return self._producers.all

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return self._subscriptions

    def subscription(self, name: str) -> Subscription:
        found = self._subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFoundError(f"{self._name} has no subscription {name!r}")
        return found

    @property
    def alive(self) -> bool:
        return not self._dead.done() and not self._closing

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call a plain function, soon, once the topic is of no more use."""
        self._dead.add_done_callback(lambda _: callback())

    async def apply(self, policies: Policies) -> None:
        """These policies hold from now on."""
        self._policies = policies
        self._publisher.policies = policies
        self._publisher.rate.set(policies.publish_rate or Rate())
        self._dispatch_rate.set(policies.dispatch_rate or Rate())
        for subscription in self._subscriptions.values():
            self._limit(subscription)
        if policies.deduplication and self._publisher.dedup is None:
            await self._start_dedup()
        elif not policies.deduplication:
            self._publisher.dedup = None
            self._state.delete(DEDUP_KEY)  # it would not know what is stored from now on

    def _limit(self, subscription: Subscription) -> None:
        subscription.limits.consumer = self._policies.max_unacked_per_consumer or 0
        subscription.limits.subscription = self._policies.max_unacked_per_subscription or 0
        subscription.rate.set(self._policies.subscription_dispatch_rate or Rate())

    async def _start_dedup(self) -> None:
        settings = self._context.settings
        dedup = Deduplication(
            self._mark_dedup,
            snapshot_every=settings.dedup_snapshot_every,
            forget_ms=int(settings.dedup_forget_s * 1000),
        )
        snapshot = self._state.get(DEDUP_KEY)
        if snapshot is not None:
            dedup.load(snapshot)
        else:
            await dedup.begin(self._stream, self._clock.wall_ms())
        await self._catch_up(dedup)
        self._publisher.dedup = dedup  # nothing was stored since it caught up: there was no wait in between

    async def _catch_up(self, dedup: Deduplication | None) -> None:
        """Bring deduplication up to date with what is held and stored."""
        holding, now_ms = self._publisher.holding, self._clock.wall_ms()
        if dedup is None:
            return
        if holding is not None:
            await dedup.catch_up_held(holding, now_ms)
        await dedup.catch_up(self._stream, now_ms)

    def _mark_dedup(self) -> None:
        if self._publisher.dedup is not None:
            self._state.mark(DEDUP_KEY, self._publisher.dedup.to_bytes)

    # --- producing --------------------------------------------------------------------------------------

    async def produce(self, request: ProducerRequest) -> BrokerProducer:
        self._check_alive()
        self._context.guard.check(request.role, self._name, Action.PRODUCE)
        version = await self._context.schemas.for_producer(self._name, request.schema, role=request.role)
        if request.initial_subscription is not None and request.initial_subscription not in self._subscriptions:
            await self.create_subscription(request.initial_subscription, StartAt(latest=False))
        if self._publisher.failed:  # what it left behind counts as stored
            await self._stream.settled()
            await self._catch_up(self._publisher.dedup)
            self._publisher.failed = False
        self._check_alive()
        if self.over_quota is not None:
            raise self.over_quota
        limit = self._policies.max_producers or 0
        if 0 < limit <= len(self._producers):
            raise TooManyError(f"{self._name} has {limit} producers, as many as it may have")
        producer = BrokerProducer(self, request.name or self._new_name(), request, version, self._clock)
        producer.failures_seen = self._stream.failures
        self._producers.join(producer)
        if producer.admitted and producer.epoch is not None:
            await self.epoch_persisted()
        return producer

    def _new_name(self) -> str:
        self._name_count += 1
        return f"weir-{self._context.runtime.rng.getrandbits(48):012x}-{self._name_count}"

    def publish(self, producer: BrokerProducer, outgoing: Outgoing) -> "asyncio.Future[Receipt]":
        return self._publisher.publish(producer, outgoing)

    def last_sequence(self, producer: str) -> int:
        dedup = self._publisher.dedup
        return -1 if dedup is None else dedup.last_stored(producer)

    async def relax(self) -> None:
        await self._publisher.relax()

    async def epoch_persisted(self) -> None:
        await self._state.flush()

    def _epoch_moved(self, epoch: int) -> None:
        self._state.put(_EPOCH_KEY, str(epoch).encode())

    async def leave(self, producer: BrokerProducer) -> None:
        self._producers.remove(producer, "closed by the client")

    # --- consuming --------------------------------------------------------------------------------------

    async def subscribe(self, request: SubscribeRequest) -> BrokerConsumer:
        self._check_alive()
        self._context.guard.check(request.role, self._name, Action.CONSUME, subscription=request.subscription)
        await self._context.schemas.for_consumer(self._name, request.schema, role=request.role)
        self._check_alive()
        self._check_consumers()
        subscription = self._subscriptions.get(request.subscription)
        fresh = subscription is None
        if subscription is None:
            subscription = self._new_subscription(request)
        try:
            consumer = await subscription.subscribe(request)
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

    def _check_consumers(self) -> None:
        limit = self._policies.max_consumers or 0
        if 0 < limit <= sum(len(s.consumers) for s in self._subscriptions.values()):
            raise TooManyError(f"{self._name} has {limit} consumers, as many as it may have")

    def _new_subscription(self, request: SubscribeRequest) -> Subscription:
        if request.durable and not self._policies.auto_subscription_creation:
            raise SubscriptionNotFoundError(
                f"{self._name} has no subscription {request.subscription!r}, and consumers may not make one"
            )
        return self._add_subscription(
            request.subscription,
            request.start,
            compacted=request.read_compacted,
            durable=request.durable,
            properties=request.subscription_properties,
        )

    def _add_subscription(
        self,
        name: str,
        start: StartAt,
        *,
        durable: bool,
        compacted: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> Subscription:
        limit = self._policies.max_subscriptions or 0
        if 0 < limit <= len(self._subscriptions):
            raise TooManyError(f"{self._name} has {limit} subscriptions, as many as it may have")
        subscription = Subscription(
            self._around,
            name,
            Cursor(self._start(start, compacted) - 1),
            durable=durable,
            properties=properties,
        )
        self._limit(subscription)
        self._subscriptions[name] = subscription
        subscription.save()
        return subscription

    async def create_subscription(
        self, name: str, start: StartAt, *, properties: dict[str, str] | None = None
    ) -> Subscription:
        """A durable subscription without consumers."""
        subscription = self._add_subscription(name, start, durable=True, properties=properties)
        await self._state.flush()
        return subscription

    def _start(self, start: StartAt, compacted: bool) -> int:
        first = self._view.start_offset if compacted else self._stream.start_offset
        if start.latest:
            return self._stream.end_offset
        if start.offset is None:
            return first
        return max(first, min(start.offset, self._stream.end_offset))

    def _dropped(self, subscription: Subscription) -> None:
        if self._subscriptions.get(subscription.name) is subscription:
            del self._subscriptions[subscription.name]

    # --- offsets and positions --------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._stream.start_offset

    @property
    def end_offset(self) -> int:
        return self._stream.end_offset

    async def offset_at(self, moment_ms: int) -> int:
        return await self._stream.offset_at(moment_ms)

    def position_of(self, offset: int) -> tuple[int, int]:
        found = self._stream.position_of(offset)
        if found is not None:
            return found
        spans = self._stream.chain.spans
        if spans and offset >= self._stream.end_offset:
            return spans[-1].ledger_id, self._stream.end_offset - spans[-1].first_offset
        return (-1, -1)

    def offset_of(self, ledger: int, entry: int) -> int:
        start, end = self._stream.start_offset, self._stream.end_offset
        if ledger < 0:
            return start
        for span in self._stream.chain.spans:
            if span.ledger_id == ledger:
                last = end if span.end_offset is None else span.end_offset
                return max(start, min(span.first_offset + max(entry, 0), last))
            if span.ledger_id > ledger:  # a ledger that stayed empty, or was trimmed away, before this one
                return max(start, span.first_offset)
        return end

    async def last_position(self) -> Position:
        end = self._stream.end_offset
        if end <= self._stream.start_offset:
            return Position(-1, -1)
        batch = (await self._stream.read(end - 1, 1))[0]
        ledger, entry = self.position_of(batch.base_offset)
        return Position(ledger, entry, batch.count - 1 if batch.count > 1 else -1)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return await self._stream.read(offset, max_bytes)

    async def wait_beyond(self, offset: int) -> None:
        await self._stream.wait_beyond(offset)

    # --- for administrators -----------------------------------------------------------------------------

    @property
    def terminated(self) -> bool:
        return self._stream.chain.terminated_at is not None

    async def terminate(self) -> Position:
        """Take no more messages, for good; answers the position of the last one."""
        await self._stream.terminate()
        return await self.last_position()

    async def truncate(self) -> None:
        """Forget every message; subscriptions go on from the end."""
        await self._stream.roll()
        end = self._stream.end_offset
        for subscription in self._subscriptions.values():
            subscription.skip_all()
        await self.forget_before(end)

    async def forget_before(self, offset: int) -> None:
        """Trim the stream, once everything that must not fall back behind it is persisted."""
        if self._publisher.holding is not None:
            await self._publisher.holding.before_trim(offset)
        self._mark_dedup()
        await self._state.flush()
        await self._stream.trim(offset)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """NotAllowedError while it has consumers, unless forced."""
        subscription = self.subscription(name)
        if subscription.consumers and not force:
            raise SubscriptionBusyError(f"subscription {name!r} has consumers")
        subscription.end("the subscription is deleted")
        await self._state.flush()

    @property
    def view(self) -> CompactedView:
        """The latest message of each key."""
        return self._view

    @property
    def compaction(self) -> CompactionStatus:
        """How the last compaction went."""
        task = self._compacting
        if task is None:
            return CompactionStatus.NOT_RUN
        if not task.done():
            return CompactionStatus.RUNNING
        failed = task.cancelled() or task.exception() is not None
        return CompactionStatus.ERROR if failed else CompactionStatus.SUCCESS

    def compact(self) -> None:
        """Begin a compaction; NotAllowedError while one is running."""
        if self.compaction is CompactionStatus.RUNNING:
            raise NotAllowedError(f"{self._name} is being compacted already")
        self._compacting = self._tasks.spawn(self._view.compact(self._context.keyed_of), "compact")

    async def compacted(self) -> None:
        """Wait until the compaction that is running has ended."""
        if self._compacting is not None:
            await asyncio.wait([self._compacting])

    def check_unused(self) -> None:
        """NotAllowedError while someone is connected."""
        if len(self._producers) or any(s.consumers for s in self._subscriptions.values()):
            raise NotAllowedError(f"{self._name} has producers or consumers")

    def has_producer(self, name: str) -> bool:
        return self._producers.has(name)

    def refuse_producers(self, why: QuotaExceededError) -> None:
        """The backlog is over its quota: producers are closed and may not come back until it is not."""
        self.over_quota = why
        self._producers.close(why.what)

    def backlog_bytes(self, subscription: Subscription) -> int:
        """About how many bytes lie from the first unacknowledged message on."""
        stream = self._stream
        return bytes_from(stream.chain, subscription.cursor.mark_delete + 1, stream.end_offset, stream.open_bytes)

    def stats(self) -> TopicStats:
        stream, publisher = self._stream, self._publisher
        hits, misses = stream.tail_reads
        return TopicStats(
            name=str(self._name),
            published=flow_of(publisher.meter),
            delivered=flow_of(*(s.meter for s in self._subscriptions.values())),
            storage_bytes=stream.size_bytes,
            start_offset=stream.start_offset,
            end_offset=stream.end_offset,
            ledgers=len(stream.chain.spans),
            terminated=self.terminated,
            duplicates=publisher.duplicates,
            cache_hits=hits,
            cache_misses=misses,
            publish_latency=Latency(*publisher.latency.snapshot()),
            dispatch_latency=Latency(*self._around.latency.snapshot()),
            producers=tuple(producer_stats(producer) for producer in self._producers.all),
            subscriptions=tuple(self._subscription_stats(s) for s in self._subscriptions.values()),
            epoch=self._producers.epoch,
        )

    def _subscription_stats(self, subscription: Subscription) -> SubscriptionStats:
        oldest = subscription.oldest if subscription.backlog else None
        return subscription_stats(
            subscription,
            subscription.read_at,
            self.backlog_bytes(subscription),
            oldest_s=0.0 if oldest is None else max(0.0, (self._clock.wall_ms() - oldest[1]) / 1000),
            unacked=subscription.unacked,
            expired=subscription.expired,
        )

    # --- living and ending ------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if not self.alive:
            why = self._dead.result() if self._dead.done() else "it is being closed"
            raise TopicClosedError(f"{self._name} is not served here any more: {why}")

    def _stream_changed(self) -> None:
        """The stream has grown, or it has died."""
        failure = self._stream.failure
        if failure is not None:
            self._die(failure)
            return
        for subscription in list(self._subscriptions.values()):
            subscription.pump()

    def _die(self, failure: WeirError) -> None:
        if self._dead.done():
            return
        if not self._closing:
            log.info("%s is no longer served here: %s", self._name, failure)
        self._dead.set_result(failure.what)
        self._disconnect(failure.what)

    def _disconnect(self, reason: str) -> None:
        self._producers.close(reason)
        for subscription in list(self._subscriptions.values()):
            subscription.disconnect(reason)

    async def close(self, reason: str = "the topic is unloaded") -> None:
        """Let go of the topic: everyone is disconnected, what is under way is stored. Closing twice is fine."""
        self._closing = True
        self._disconnect(reason)
        await self._let_go()
        await self._stream.close()

    async def delete(self) -> None:
        """Let go, and forget everything."""
        self._closing = True
        self._disconnect("the topic is deleted")
        if self._publisher.holding is not None:
            await self._publisher.holding.delete()
        await self._let_go()
        await self._view.delete()
        await self._stream.delete()

    async def _let_go(self) -> None:
        if self._publisher.holding is not None:
            await self._publisher.holding.close()
        self._mark_dedup()
        await self._tasks.close()
        await self._view.close()
        await self._state.close()
