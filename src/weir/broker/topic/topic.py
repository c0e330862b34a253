"""A persistent topic: one stream with its state, producers, subscriptions and policies."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from weir.broker.api import (
    AbortedTransaction,
    CompactionStatus,
    ConsumerStats,
    HeldMessages,
    InternalStats,
    LogReader,
    Outgoing,
    Position,
    ProducerInfo,
    ProducerRequest,
    Receipt,
    StartAt,
    SubscribeRequest,
    TopicStats,
)
from weir.broker.context import BrokerContext
from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.subscription import Subscription
from weir.broker.ports import Holding
from weir.broker.publish.lazy_holding import LazyHolding
from weir.broker.publish.producers import BrokerProducer, Producers
from weir.broker.publish.publishing import Publisher
from weir.broker.topic import positions
from weir.broker.topic.compaction import Compaction, compaction_rules
from weir.broker.topic.held import HeldInTopic
from weir.broker.topic.producer_state_manager import ProducerStateManager
from weir.broker.topic.readable import CompactedLog, WholeLog
from weir.broker.topic.stats import backlog_bytes, internal_stats, topic_stats
from weir.broker.topic.subscriptions import Subscriptions
from weir.broker.transactions.delayed_moves import DelayedMoves
from weir.broker.transactions.lost_markers import LostMarkers
from weir.model.batch import Batch, Stamp
from weir.model.errors import (
    NotAllowedError,
    QuotaExceededError,
    SubscriptionBusyError,
    TooManyError,
    TopicClosedError,
    WeirError,
)
from weir.model.ids import LedgerId
from weir.model.policies import Policies, Rate, Roll
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.byte_budget import ByteShare
from weir.runtime.tasks import TaskScope
from weir.stream.compaction import CompactedView
from weir.stream.holding.area import HoldingArea
from weir.stream.holding.ledger import LEDGER_KEYS
from weir.stream.log import Stream
from weir.stream.retention import bytes_from
from weir.stream.state import StateLog
from weir.wire.snapshots.producers import decode_epoch, encode_epoch

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
        self._tasks = TaskScope(f"topic {name}")
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._closing = False
        epoch = state.get(_EPOCH_KEY)
        self._producers = Producers(None if epoch is None else decode_epoch(epoch), self._epoch_moved)
        self.producer_state = ProducerStateManager(
            context,
            name,
            stream=stream,
            state=state,
            tasks=self._tasks,
            changed=self._stream_changed,
            committed=self._delays_committed,
            lost=self._messages_lost,
        )
        self._publisher = Publisher(
            context,
            stream,
            self.producer_state,
            state=state,
            tasks=self._tasks,
            policies=policies,
            shut_all=self._producers.close,
        )
        self._moves = DelayedMoves(
            stream,
            self.producer_state,
            holding=lambda: self._publisher.holding,
            landed=self._publisher.moved,
            tasks=self._tasks,
            clock=self._clock,
            pause_s=context.settings.read_pause_s,
        )
        self._lost_markers = LostMarkers(
            context, name, stream, self._publisher, self.producer_state, tasks=self._tasks, settled=self._settled
        )
        self._policies = policies
        self._dedup = self._publisher.dedup_switch
        self._subscriptions = Subscriptions(
            context,
            name,
            policies,
            stream=stream,
            state=state,
            view=view,
            producer_state=self.producer_state,
            tasks=self._tasks,
        )
        self._compaction = Compaction(name, view, context.keyed_of, self._tasks, context.compactions)
        self._name_count = 0
        #: Why producers are not let in, while the backlog is over its quota.
        self.over_quota: QuotaExceededError | None = None
        self._growth: dict[int, Callable[[], None]] = {}
        self._growth_count = 0
        stream.listen(self._stream_changed)
        state.on_failure(self._die)

    @classmethod
    async def open(cls, context: BrokerContext, name: TopicName, policies: Policies) -> "BrokerTopic":
        """Take the topic over from whoever had it, and bring its state up to date."""
        stream = await Stream.open(context.streams, stream_name(name), create_missing=True)
        state: StateLog | None = None
        try:
            state = await stream.open_state()
            view = await CompactedView.open(context.streams, stream, state)
            topic = cls(context, name, policies, stream=stream, state=state, view=view)
            await topic.producer_state.open()
            await topic._open_holding()
            await topic._publisher.split.open()
            topic._moves.open()
            topic._lost_markers.open()
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
        holding = LazyHolding(
            str(self._name),
            lambda: open_area(streams, stream, state),
            before_cancel=self.producer_state.save_moves,
        )
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
        return self._subscriptions.by_name

    def subscription(self, name: str) -> Subscription:
        """SubscriptionNotFoundError if there is none."""
        return self._subscriptions.get(name)

    def members(self, subscription: str) -> Sequence[ConsumerStats]:
        """Members of the consumer group of this name that were given the topic."""
        return self._context.members.of(self._name, subscription)

    @property
    def groups(self) -> Sequence[str]:
        """Consumer groups that have members here, with a subscription or, before their first commit, without."""
        return list(self._context.members.on(self._name))

    @property
    def stored(self) -> "BrokerTopic":
        return self

    def reader(self) -> LogReader:
        return CompactedLog(self, self._view) if self.compacts_itself else WholeLog(self, self._stream)

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
        self._subscriptions.apply(policies)
        roll = policies.roll or Roll()
        self._stream.roll_when(roll.bytes, roll.ms / 1000)
        await self._dedup.turn(bool(policies.deduplication))

    # --- producing --------------------------------------------------------------------------------------

    async def produce(self, request: ProducerRequest) -> BrokerProducer:
        self._check_alive()
        self._context.guard.check(request.role, self._name, Action.PRODUCE)
        version = await self._context.schemas.for_producer(self._name, request.schema, role=request.role)
        first = request.initial_subscription
        if first is not None:  # a subscription is for who may consume, whether there is one or not
            self._context.guard.check(request.role, self._name, Action.CONSUME, subscription=first)
            if first not in self.subscriptions:
                await self.create_subscription(first, StartAt(latest=False))
        await self._settled()
        self._check_alive()
        self._context.guard.check(request.role, self._name, Action.PRODUCE)  # it may be taken back meanwhile
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

    async def _settled(self) -> None:
        """Wait until it is known what failed appends left behind: that counts as stored."""
        while self._publisher.failed:
            failures = self._stream.failures
            await self._stream.settled()
            await self._dedup.catch_up()
            await self.producer_state.catch_up()
            await self._publisher.split.catch_up()
            self._publisher.failed = self._stream.failures != failures

    async def end_transaction(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Store the marker that decides the producer's open transaction; nothing if it has none here. Fine to ask
        again, after an error too."""
        self._check_alive()
        await self._settled()
        self._check_alive()
        if self.producer_state.is_open(producer_id):
            stamp = Stamp(producer_id, epoch)
            await self._publisher.stamped.mark(stamp, abort=not commit, decided_ms=self._clock.wall_ms())

    def _new_name(self) -> str:
        self._name_count += 1
        return f"weir-{self._context.runtime.rng.getrandbits(48):012x}-{self._name_count}"

    def publish(self, producer: BrokerProducer, outgoing: Outgoing) -> "asyncio.Future[Receipt]":
        return self._publisher.publish(producer, outgoing)

    def publish_all(
        self, producer: BrokerProducer, outgoings: Sequence[Outgoing]
    ) -> "asyncio.Future[Receipt] | None":
        return self._publisher.publish_all(producer, outgoings)

    def last_sequence(self, producer: str) -> int:
        dedup = self._publisher.dedup
        return -1 if dedup is None else dedup.last_stored(producer)

    async def wait_capacity(self) -> None:
        await self._publisher.wait_capacity()

    async def epoch_persisted(self) -> None:
        await self._state.flush()

    def _epoch_moved(self, epoch: int) -> None:
        self._state.put(_EPOCH_KEY, encode_epoch(epoch))

    async def leave(self, producer: BrokerProducer) -> None:
        self.expel_producer(producer, "closed by the client")

    def expel_producer(self, producer: BrokerProducer, reason: str) -> None:
        self._producers.remove(producer, reason)

    # --- consuming --------------------------------------------------------------------------------------

    async def subscribe(
        self, request: SubscribeRequest, *, delivery_share: ByteShare | None = None
    ) -> BrokerConsumer:
        self._check_alive()
        self._context.guard.check(request.role, self._name, Action.CONSUME, subscription=request.subscription)
        await self._context.schemas.for_consumer(self._name, request.schema, role=request.role)
        self._check_alive()
        self._context.guard.check(request.role, self._name, Action.CONSUME, subscription=request.subscription)
        return await self._subscriptions.subscribe(request, delivery_share)

    async def create_subscription(
        self, name: str, start: StartAt, *, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """A durable subscription without consumers."""
        return await self._subscriptions.create(name, start, properties=properties)

    def ensure_subscription(self, name: str, start: StartAt, properties: Mapping[str, str]) -> Subscription:
        """A durable one, made now if there is none and policies allow; durable with the state's next flush."""
        self._check_alive()
        return self._subscriptions.ensure(name, start, properties=properties)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """SubscriptionBusyError while it has consumers, unless forced."""
        if self.members(name) and not force:
            raise SubscriptionBusyError(f"{self._name} is read by members of the group {name!r}")
        await self._subscriptions.delete(name, force=force)

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
        return positions.position_of(self._stream, offset)

    def offset_of(self, ledger: int, entry: int) -> int:
        return positions.offset_of(self._stream, ledger, entry)

    async def last_position(self) -> Position:
        return await positions.last_position(self._stream, self.producer_state)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return await self._stream.read(offset, max_bytes)

    async def wait_beyond(self, offset: int) -> None:
        await self._stream.wait_beyond(offset)

    @property
    def stable_offset(self) -> int:
        return self.producer_state.stable_offset

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        return self.producer_state.index.aborted(first, end)

    def idempotent_producers(self) -> list[ProducerInfo]:
        return self.producer_state.infos()

    def on_growth(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._growth_count += 1
        number = self._growth_count
        self._growth[number] = callback

        def stop() -> None:
            self._growth.pop(number, None)

        return stop

    def _tell_growth(self) -> None:
        for callback in list(self._growth.values()):
            callback()

    # --- for administrators -----------------------------------------------------------------------------

    @property
    def terminated(self) -> bool:
        return self._stream.chain.terminated_at is not None

    async def terminate(self) -> Position:
        """Take no more messages, for good; answers the position of the last one. Producers are closed: coming
        back, each is told why."""
        await self._stream.terminate()
        self._producers.close("the topic is terminated")
        return await self.last_position()

    async def truncate(self) -> None:
        """Forget every message; subscriptions go on from the end."""
        await self._stream.roll()
        end = self._stream.end_offset
        self._subscriptions.skip_all()
        await self.forget_before(end)

    async def delete_before(self, offset: int) -> None:
        """Forget every message before the offset, for every reader, whatever retention says."""
        await self.compacted()
        await self._view.forget_before(offset)
        await self.forget_before(offset)

    async def forget_before(self, offset: int) -> None:
        """Trim the stream, once everything that must not fall back behind it is persisted."""
        await self._moves.before_trim(offset)
        if self._publisher.holding is not None:
            await self._publisher.holding.before_trim(offset)
        self._dedup.mark()
        self.producer_state.save()
        await self._state.flush()
        await self._stream.trim(offset)
        self.producer_state.trimmed()

    @property
    def view(self) -> CompactedView:
        """The latest message of each key."""
        return self._view

    @property
    def compaction(self) -> CompactionStatus:
        """How the last compaction went."""
        return self._compaction.status

    @property
    def compaction_begun_at(self) -> int:
        """Where the log ended when the last compaction was begun; -1 if none was."""
        return self._compaction.begun_at

    @property
    def compacts_itself(self) -> bool:
        """Whether readers by offset see what compaction left instead of the whole log."""
        policy = self._policies.log_compaction
        return (policy is not None and policy.cleanup.compacts) or self._view.compacted.own

    def compact(self) -> None:
        """Begin a compaction; NotAllowedError while one is running."""
        self._compaction.start(lambda: compaction_rules(self._policies, self))

    async def compacted(self) -> None:
        """Wait until the compaction that is running has ended."""
        await self._compaction.ended()

    def check_unused(self) -> None:
        """NotAllowedError while someone is connected."""
        if len(self._producers) or self._subscriptions.consumer_count:
            raise NotAllowedError(f"{self._name} has producers or consumers")

    def has_producer(self, name: str) -> bool:
        return self._producers.has(name)

    def refuse_producers(self, why: QuotaExceededError) -> None:
        """The backlog is over its quota: producers are closed and may not come back until it is not."""
        self.over_quota = why
        self._producers.close(why.what)

    def backlog_bytes(self, subscription: Subscription) -> int:
        """About how many bytes lie from the first unacknowledged message on."""
        return backlog_bytes(self._stream, subscription)

    @property
    def deduplicates(self) -> bool:
        return bool(self._policies.deduplication)

    @property
    def size_bytes(self) -> int:
        return self._stream.size_bytes + self._view.size_bytes

    @property
    def log_bytes(self) -> int:
        return self._stream.size_bytes

    def bytes_from(self, offset: int) -> int:
        stream = self._stream
        return bytes_from(stream.chain, offset, stream.end_offset, stream.open_bytes)

    def ledger_range(self, ledger: int) -> tuple[int, int] | None:
        span = self._stream.chain.span_of(LedgerId(ledger))
        if span is None:
            return None
        return span.first_offset, self.end_offset if span.end_offset is None else span.end_offset

    @property
    def held(self) -> HeldMessages | None:
        area = self.holding
        return HeldInTopic(area, self.producer_state.save_moves) if isinstance(area, HoldingArea) else None

    def internal_stats(self) -> InternalStats:
        return internal_stats(self._stream, self._publisher, self._subscriptions)

    def stats(self) -> TopicStats:
        return topic_stats(
            self._name,
            self._stream,
            self._publisher,
            self._producers,
            self._subscriptions,
            members=self._context.members,
            now_ms=self._clock.wall_ms(),
        )

    # --- living and ending ------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if not self.alive:
            why = self._dead.result() if self._dead.done() else "it is being closed"
            raise TopicClosedError(f"{self._name} is not served here any more: {why}")

    def _messages_lost(self) -> None:
        self._lost_markers.look_soon()

    def _delays_committed(self) -> None:
        self._moves.wake()

    def _stream_changed(self) -> None:
        """The stream has grown, or it has died."""
        failure = self._stream.failure
        if failure is not None:
            self._die(failure)
        else:
            if self.producer_state.behind:
                self.producer_state.catch_up_soon()
            self._subscriptions.pump()
        if self._growth:
            self._tell_growth()

    def _die(self, failure: WeirError) -> None:
        if self._dead.done():
            return
        if not self._closing:
            log.info("%s is no longer served here: %s", self._name, failure)
        self._dead.set_result(failure.what)
        self._disconnect(failure.what)

    def _disconnect(self, reason: str) -> None:
        self._producers.close(reason)
        self._subscriptions.disconnect(reason)

    async def close(self, reason: str = "the topic is unloaded") -> None:
        """Let go of the topic: everyone is disconnected, what is under way is stored. Closing twice is fine."""
        self._closing = True
        self._disconnect(reason)
        # From the last step to the first; each is taken whatever the others say.
        async with AsyncExitStack() as last:
            last.callback(self._tell_growth)  # whoever watches looks for the topic anew
            last.push_async_callback(self._stream.close)
            last.push_async_callback(self._state.close)
            last.push_async_callback(self._view.close)
            last.push_async_callback(self._tasks.close)
            last.callback(self._mark_all)
            if self._publisher.holding is not None:
                last.push_async_callback(self._publisher.holding.close)

    def _mark_all(self) -> None:
        """What must be in the state before it is closed."""
        self._dedup.mark()
        self.producer_state.save()
        self._publisher.split.save()
