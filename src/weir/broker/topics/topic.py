"""A persistent topic: one stream with its state, producers, subscriptions and policies.

`open_topic` opens a persistent or a non-persistent topic.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

from weir.broker.api.consumers import StartAt, SubscribeRequest
from weir.broker.api.producers import ProducerRequest
from weir.broker.api.stats import TopicStats, UnreadWarning
from weir.broker.api.topics import AbortedTransaction, LogReader, Position, ProducerInfo
from weir.broker.context import BrokerContext
from weir.broker.dead_letters.outbox import TopicDeadLetters
from weir.broker.log.log_feed import ReadCommittedLog
from weir.broker.publish.producers import BrokerProducer
from weir.broker.rates import Meter, Traffic, traffic_of
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.queue_mode import QueueMode
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.subscriptions.subscription_state import wanted_retry
from weir.broker.topics import log_readers
from weir.broker.topics.lifecycle import GrowthListeners, Liveness, PassOn, end_logs
from weir.broker.topics.log_readers import Reads, reader_of
from weir.broker.topics.non_persistent import NonPersistentTopic
from weir.broker.topics.topic_admin import TopicAdmin
from weir.broker.topics.topic_compaction import Compaction, compaction_rules
from weir.broker.topics.topic_key_index import TopicKeyIndex
from weir.broker.topics.topic_stats import topic_stats
from weir.broker.topics.topic_subscriptions import Subscriptions
from weir.broker.topics.topic_tiering import TopicTiering
from weir.broker.topics.topic_writer import TopicWriter, Trimming
from weir.broker.topics.transient_messages import TransientMessages
from weir.broker.trace.message_trace import BothTraces, MessageTrace
from weir.broker.trace.spans import TopicSpans, note_fetched
from weir.broker.trace.topic_trace import TopicTrace
from weir.ledger.writer import LedgerWriter
from weir.model.batch import Batch, Run
from weir.model.errors import NotAllowedError, WeirError
from weir.model.policies import LAKE_SUBSCRIPTION, Policies, Roll
from weir.model.queues import QueueRules
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteShare
from weir.runtime.tasks import TaskScope
from weir.stream.compaction import CompactedView
from weir.stream.holding.area import HoldingArea
from weir.stream.key_index import KeyIndex
from weir.stream.log import Stream
from weir.stream.state_log import StateLog


def trace_of(context: BrokerContext, name: TopicName, stream: Stream) -> MessageTrace | None:
    clock = context.runtime.clock
    spans = None if context.tracing is None else TopicSpans(name, context.tracing, context.span_memory, clock)
    if context.trace is None:
        return spans
    written = TopicTrace(name, context.trace, clock, position_of=stream.position_of, follow=stream.on_stored)
    return written if spans is None else BothTraces(written, spans)


log = logging.getLogger(__name__)


def stream_name(topic: TopicName) -> str:
    """Name of the topic's stream in the metadata."""
    return f"{topic.namespace}/{topic.local_with_partition}"


class BrokerTopic:
    """Fills `api.Topic`. Created by `open`; dies when another broker takes its stream over.

    Each component has one job. Upkeep, consumer groups and administrators (by `stored`) use components directly.
    """

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
        self.stream = stream
        self.state = state
        self.view = view
        self._tasks = TaskScope(f"topic {name}")
        self._life = Liveness(name)
        self.trace = trace_of(context, name, stream)
        self.writing = TopicWriter(
            context,
            name,
            policies,
            stream=stream,
            state=state,
            tasks=self._tasks,
            life=self._life,
            trace=self.trace,
            subscriptions=lambda: self._subscriptions,
            changed=self._stream_changed,
            area=self._area,
        )
        self.producers = self.writing.producers
        self.producer_state = self.writing.producer_state
        self.half = self.writing.half
        self.publisher = self.writing.publisher
        self._policies = policies
        self._subscriptions = Subscriptions(
            context,
            name,
            policies,
            stream=stream,
            state=state,
            view=view,
            producer_state=self.producer_state,
            tasks=self._tasks,
            moved=self._cursor_moved,
            trace=self.trace,
        )
        self.transient = TransientMessages(
            context, stream, state, self._subscriptions, self.producer_state, tasks=self._tasks
        )
        self.compaction = Compaction(
            name,
            view,
            context.keyed_of,
            self._tasks,
            context.compactions,
            rules=lambda: compaction_rules(self._policies, self),
        )
        trimmed = (lambda start: None) if self.trace is None else self.trace.trimmed
        self.trimming = Trimming(
            stream,
            state,
            publisher=self.publisher,
            producer_state=self.producer_state,
            moves=self.writing.moves,
            trimmed=trimmed,
        )
        self.tiering = TopicTiering(
            name,
            stream,
            self,
            rules=lambda: context.tiering.of(name),
            features=context.streams.features,
            tasks=self._tasks,
            shared=context.copies,
            clock=self._clock,
        )
        self.key_index = TopicKeyIndex(
            name,
            KeyIndex(context.streams, stream, state, known_to=lambda: self.producer_state.stable_offset),
            self._tasks,
            shared=context.compactions,
            visible=ReadCommittedLog(stream, self.producer_state).visible,
        )
        self.stored = TopicAdmin(
            self,
            stream,
            view,
            publisher=self.publisher,
            producers=self.producers,
            producer_state=self.producer_state,
            subscriptions=self._subscriptions,
            members=context.members,
            compaction=self.compaction,
            trimming=self.trimming,
            clock=self._clock,
            half=self.half,
            key_index=self.key_index,
        )
        self._queue_rules = QueueRules()
        tracing = context.tracing
        self._reads = Reads(
            Meter(self._clock, context.flows.given, name),
            None if tracing is None else partial(note_fetched, tracing, name),
        )
        self._growth = GrowthListeners()
        #: Ledgers that are still open after a handover of the topic.
        self.left_open: list[LedgerWriter] = []
        stream.listen(self._stream_changed)
        state.on_failure(self._die)

    @classmethod
    async def open(
        cls, context: BrokerContext, name: TopicName, policies: Policies, epoch: int = 0, *, written: bool = False
    ) -> "BrokerTopic":
        """Take the topic over from its former owner, in this leader epoch, and bring its state up to date.
        `written`: open a ledger at the same time, so that the first message does not wait for it."""
        stream = await Stream.open(context.streams, stream_name(name), create_missing=True, leader=epoch)
        state: StateLog | None = None
        try:
            if written:
                stream.prepare()
            state = await stream.open_state()
            view = await CompactedView.open(context.streams, stream, state)
            topic = cls(context, name, policies, stream=stream, state=state, view=view)
            await topic.transient.open()
            await topic.writing.open()
            await topic._subscriptions.move_to_end()
            await topic.apply(policies)
            topic.letters.open()
        except BaseException:
            if state is not None:
                await state.close()
            await stream.close()
            raise
        return topic

    def _area(self) -> HoldingArea | None:
        return self.stored.area

    # --- properties -------------------------------------------------------------------------------------

    @property
    def name(self) -> TopicName:
        return self._name

    @property
    def policies(self) -> Policies:
        return self._policies

    @property
    def unread_warnings(self) -> tuple[UnreadWarning, ...]:
        """Unread messages that policies delete soon, as of the last upkeep."""
        return self._subscriptions.unread

    def note_unread(self, warnings: tuple[UnreadWarning, ...]) -> None:
        self._subscriptions.unread = warnings

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return self._subscriptions.by_name

    @property
    def exported_to(self) -> int:
        """The offset after the last that the lake's table has; 0 if the lake is off."""
        lake = self.subscriptions.get(LAKE_SUBSCRIPTION)
        return 0 if lake is None or not lake.retains else lake.cursor.mark_delete + 1

    def reader(self) -> LogReader:
        self.transient.read_by_offset()
        return reader_of(self, self.stream, self.view, self._policies, self._reads)

    def traffic(self) -> Traffic:
        """Traffic since the topic was loaded, for the load balancer."""
        return traffic_of(
            self.publisher.meter, (self._reads.meter, *(s.meter for s in self.subscriptions.values()))
        )

    @property
    def alive(self) -> bool:
        return self._life.alive

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call a plain function soon after the topic dies."""
        self._life.on_death(callback)

    async def apply(self, policies: Policies) -> None:
        """Apply new policies."""
        self._policies = policies
        self.transient.apply(policies)
        self.writing.limit(policies)
        self._subscriptions.apply(policies)
        roll = policies.roll or Roll()
        self.stream.roll_when(roll.bytes, roll.ms / 1000)
        self.key_index.apply(policies)
        if self.trace is not None:
            self.trace.apply(policies)
        await self.writing.apply_dedup(policies)

    @property
    def queue_side(self) -> QueueMode:
        """State of the topic as a queue, for dispatchers."""
        return self._subscriptions.queue_side

    @property
    def letters(self) -> TopicDeadLetters:
        """Dead letters of its subscriptions."""
        return self._subscriptions.letters

    @property
    def queue_rules(self) -> QueueRules:
        """Rules of the topic as a queue."""
        return self._queue_rules

    def apply_queue(self, rules: QueueRules) -> None:
        """Apply new queue rules."""
        self._queue_rules = rules
        self._subscriptions.apply_queue(rules)

    # --- producing --------------------------------------------------------------------------------------

    async def produce(self, request: ProducerRequest) -> BrokerProducer:
        return await self.writing.produce(request)

    async def end_transaction(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        round: int | None = None,  # noqa: A002
    ) -> None:
        await self.writing.end_transaction(producer_id, epoch, commit=commit, nth=round)

    # --- consuming --------------------------------------------------------------------------------------

    async def subscribe(
        self, request: SubscribeRequest, *, delivery_share: ByteShare | None = None
    ) -> BrokerConsumer:
        self._life.check()
        self._context.guard.check(request.role, self._name, Action.CONSUME, subscription=request.subscription)
        retry = wanted_retry(request)
        named = None if retry is None else retry.named_topic(self._name)
        if named is not None:
            self._context.guard.check(request.role, named, Action.PRODUCE)
        await self._context.schemas.for_consumer(self._name, request.schema, role=request.role)
        self._life.check()
        self._context.guard.check(request.role, self._name, Action.CONSUME, subscription=request.subscription)
        return await self._subscriptions.subscribe(request, delivery_share)

    def ensure_subscription(self, name: str, start: StartAt, properties: Mapping[str, str]) -> Subscription:
        """The durable subscription of this name, created if policies allow it; the next flush of the state stores
        it."""
        self._life.check()
        return self._subscriptions.ensure(name, start, properties=properties)

    def keep_for_queue(self) -> None:
        """Create the subscription of the queue: messages stay until consumers of the queue acknowledge them."""
        self._subscriptions.ensure_queue()

    # --- offsets and positions --------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self.stream.start_offset

    @property
    def end_offset(self) -> int:
        return self.stream.end_offset

    async def offset_at(self, moment_ms: int) -> int:
        return await self.stream.offset_at(moment_ms)

    def position_of(self, offset: int) -> tuple[int, int]:
        return log_readers.position_of(self.stream, offset)

    def offset_of(self, ledger: int, entry: int) -> int:
        return log_readers.offset_of(self.stream, ledger, entry)

    async def last_position(self) -> Position:
        return await log_readers.last_position(self.stream, self.producer_state)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return await self.stream.read(offset, max_bytes)

    async def wait_beyond(self, offset: int) -> None:
        await self.stream.wait_beyond(offset)

    @property
    def leader_epoch(self) -> int:
        return self.stream.chain.leader

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return self.stream.chain.leader_end(epoch, self.stream.end_offset)

    def epoch_at(self, offset: int) -> int:
        return self.stream.chain.leader_at(offset)

    @property
    def stable_offset(self) -> int:
        return self.producer_state.stable_offset

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        return self.producer_state.index.aborted(first, end)

    def idempotent_producers(self) -> list[ProducerInfo]:
        return self.producer_state.infos()

    def on_growth(self, callback: Callable[[], None], *, own: bool = False) -> Callable[[], None]:
        """`own`: a callback of the broker itself, which does not keep the topic loaded."""
        return self._growth.add(callback, own=own)

    @property
    def has_watchers(self) -> bool:
        """Whether clients wait for new messages, or members of consumer groups read the topic."""
        return bool(self._growth.clients or self._context.members.on(self._name))

    # --- upkeep and administration ----------------------------------------------------------------------

    @property
    def terminated(self) -> bool:
        return self.stream.chain.terminated_at is not None

    def check_unused(self) -> None:
        """NotAllowedError while the topic has producers or consumers."""
        if len(self.producers) or self._subscriptions.consumer_count:
            raise NotAllowedError(f"{self._name} has producers or consumers")

    def stats(self) -> TopicStats:
        return topic_stats(
            self._name,
            self.stream,
            self.publisher,
            self.producers,
            self._subscriptions,
            reads=self._reads.meter,
            members=self._context.members,
            held=self.stored.held_messages,
            half=self.half.counts,
            lake=self.tiering.stats(),
            now_ms=self._clock.wall_ms(),
        )

    # --- lifecycle --------------------------------------------------------------------------------------

    def _cursor_moved(self, subscription: Subscription, runs: Sequence[Run] | None) -> bool:
        return self.transient.moved(subscription, runs)

    def _stream_changed(self) -> None:
        """Called when the stream has grown or failed."""
        failure = self.stream.failure
        if failure is not None:
            self._die(failure)
        else:
            if self.producer_state.behind:
                self.producer_state.catch_up_soon()
            self._subscriptions.pump()
            if self.key_index.on:
                self.key_index.grown(len(self.stream.chain.spans))
        self._growth.tell()

    def _die(self, failure: WeirError) -> None:
        if self._life.dead:
            return
        if self._life.alive:
            log.info("%s is no longer served by this broker: %s", self._name, failure)
        self._life.die(failure.what)
        self._disconnect(failure.what)
        self._subscriptions.close()
        self.letters.close()

    def _disconnect(self, reason: str) -> None:
        self.producers.close(reason)
        self._subscriptions.disconnect(reason)

    async def close(self, reason: str = "the topic is unloaded", pass_on: PassOn | None = None) -> None:
        """Release the topic: disconnect all clients, and store pending state. Idempotent. If `pass_on` hands the
        final state to the next broker, the caller then closes the ledgers in `left_open`."""
        self._life.closing()
        self._disconnect(reason)
        # In order from the last step to the first; each step runs even if another one fails.
        async with AsyncExitStack() as last:
            last.callback(self._growth.tell)  # waiting readers look up the new owner
            last.push_async_callback(self._end_logs, pass_on)
            last.push_async_callback(self.view.close)
            last.push_async_callback(self.key_index.close)
            last.push_async_callback(self._tasks.close)
            last.callback(self.letters.close)
            last.callback(self._subscriptions.close)
            if pass_on is None:
                last.callback(self._mark_all)
            last.push_async_callback(self.transient.close)
            if self.publisher.holding is not None:
                last.push_async_callback(self.publisher.holding.close)

    async def write_down(self) -> None:
        """Flush the state now, so that the close writes only the changes since then, in one entry."""
        if self.alive:
            await self.state.flush()

    async def _end_logs(self, pass_on: PassOn | None) -> None:
        self.left_open = await end_logs(self.stream, self.state, self._mark_all, pass_on)

    def _mark_all(self) -> None:
        """Set the values that the state must contain before it is closed."""
        self.writing.save()
        self._subscriptions.mark()


AnyTopic = BrokerTopic | NonPersistentTopic


async def open_topic(
    context: BrokerContext, name: TopicName, policies: Policies, epoch: int, *, written: bool = False
) -> AnyTopic:
    """`written`: open a ledger, too, so that the first message does not wait for it."""
    if name.persistent:
        return await BrokerTopic.open(context, name, policies, epoch, written=written)
    return NonPersistentTopic(context, name, policies, epoch)
