"""The write side of a topic: admission of producers, recovery after failed appends, ends of transactions,
trimming.

`LostMarkers` replaces transaction markers with damage in every copy: it requests the decision from the
coordinator, and stores the marker again. Without its marker a transaction would stay open in the topic forever,
and readers of committed messages would see no message after its first one. docs/adr/0021 lists the decisions that
are still known.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from weir.broker.api.consumers import StartAt
from weir.broker.api.producers import ProducerRequest, Receipt
from weir.broker.context import BrokerContext
from weir.broker.log.producer_state_manager import ProducerStateManager
from weir.broker.prepared.prepared_messages import PreparedMessages
from weir.broker.publish.producers import BrokerProducer, Producers, TopicEpoch
from weir.broker.publish.publisher import Publisher
from weir.broker.topics.delayed_messages import DelayedMoves, open_lazily
from weir.broker.topics.lifecycle import Liveness
from weir.broker.topics.topic_subscriptions import Subscriptions
from weir.broker.trace.message_trace import MessageTrace
from weir.model.batch import Stamp
from weir.model.errors import (
    NotOwnerError,
    StreamClosedError,
    StreamError,
    StreamFencedError,
    StreamTerminatedError,
    TooManyError,
    WeirError,
)
from weir.model.policies import Policies, Rate
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.model.transactions import Fate
from weir.runtime.tasks import TaskScope
from weir.stream.holding.area import HoldingArea
from weir.stream.log import Stream
from weir.stream.state_log import StateLog

log = logging.getLogger(__name__)

#: Interval of checks of transactions that began before a loss and may still be open.
_LOOK_S = 1.0
#: The topic accepts no markers any more, on this broker or on any other.
_OVER = (StreamClosedError, StreamFencedError, StreamTerminatedError)


class LostMarkers:
    """Replaces lost markers of one topic; idle while no message is lost. `settled` waits until the outcome of
    failed appends is known."""

    def __init__(
        self,
        context: BrokerContext,
        name: TopicName,
        stream: Stream,
        publisher: Publisher,
        producer_state: ProducerStateManager,
        *,
        tasks: TaskScope,
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        self._gate = context.transactions
        self._clock = context.runtime.clock
        self._name = name
        self._stream = stream
        self._publisher = publisher
        self._producer_state = producer_state
        self._tasks = tasks
        self._settled = settled
        self._opened = False
        self._looking: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start; the producer state must be up to date with the log."""
        self._opened = True
        if self._doubtful():
            self.look_soon()

    def _doubtful(self) -> list[int]:
        """Producers with open transactions from before a loss: the lost messages may include their markers."""
        lost_to = max((run.end_offset for _, run in self._stream.lost), default=-1)
        return [
            producer
            for producer in self._producer_state.index.open_before(lost_to)
            if self._producer_state.is_open(producer)
        ]

    def look_soon(self) -> None:
        """Start a check, after a read found lost messages."""
        if self._opened and self._looking is None:
            self._looking = self._tasks.spawn(self._look(), "replace lost markers")

    async def _look(self) -> None:
        try:
            while True:
                try:
                    await self._decide()
                except _OVER as over:
                    log.info("replacement of lost markers of %s stopped: %s", self._name, over)
                    return
                except WeirError as failed:
                    log.warning(
                        "replacement of lost markers of %s failed (repeated after a pause): %s", self._name, failed
                    )
                if not self._producer_state.behind and not self._doubtful():
                    return
                await self._clock.sleep(_LOOK_S)
        finally:
            self._looking = None

    async def _decide(self) -> None:
        await self._settled()
        if self._producer_state.behind:
            return
        receipts = [await self._mark(producer) for producer in self._doubtful()]
        for receipt in receipts:
            if receipt is not None:
                await receipt

    async def _mark(self, producer_id: int) -> "asyncio.Future[Receipt] | None":
        states, index = self._producer_state.states, self._producer_state.index
        asked = index.open_since(producer_id), states.tip(producer_id)
        try:
            fate = await self._gate.fate(producer_id, self._name, states.seen_ms(producer_id))
        except StreamError as failed:  # of the topic of the coordinator
            raise NotOwnerError(
                f"the transaction coordinator is moving to another broker: {failed.what}"
            ) from failed
        # Store the marker only if the producer has not changed since the request: a new transaction must not end.
        if (index.open_since(producer_id), states.tip(producer_id)) != asked:
            return None
        if fate is Fate.OPEN:
            return None
        log.warning(
            "%s: transaction marker of producer %d lost (transaction began at offset %d), stored again at %d: %s",
            self._name,
            producer_id,
            self._producer_state.index.open_since(producer_id),
            self._stream.end_offset,
            "aborted, because its decision is unknown" if fate is Fate.UNKNOWN else fate.value,
        )
        stamp = Stamp(producer_id, max(states.epoch(producer_id), 0))
        abort = fate is not Fate.COMMITTED
        return self._publisher.stamped.mark(stamp, abort=abort, decided_ms=self._clock.wall_ms())


class Trimming:
    """Trims the log, safe against a crash at any moment: stores the state first, since a recovery would read the
    missing facts from the log."""

    def __init__(
        self,
        stream: Stream,
        state: StateLog,
        *,
        publisher: Publisher,
        producer_state: ProducerStateManager,
        moves: DelayedMoves,
        trimmed: Callable[[int], None] = lambda start: None,
    ) -> None:
        """`trimmed`: callback invoked with the new start offset."""
        self._stream = stream
        self._state = state
        self._publisher = publisher
        self._producer_state = producer_state
        self._moves = moves
        self._trimmed = trimmed

    async def forget_before(self, offset: int) -> None:
        """Store all state that depends on earlier messages, then trim the stream."""
        await self._moves.before_trim(offset)
        if self._publisher.holding is not None:
            await self._publisher.holding.before_trim(offset)
        self._publisher.dedup_switch.mark()
        self._producer_state.save()
        await self._state.flush()
        await self._stream.trim(offset)
        self._producer_state.trimmed()
        self._trimmed(self._stream.start_offset)


class TopicWriter:
    """`changed`: callback invoked when readers may see more messages. `area`: the holding area, if it is open."""

    def __init__(
        self,
        context: BrokerContext,
        name: TopicName,
        policies: Policies,
        *,
        stream: Stream,
        state: StateLog,
        tasks: TaskScope,
        life: Liveness,
        trace: MessageTrace | None,
        subscriptions: Callable[[], Subscriptions],
        changed: Callable[[], None],
        area: Callable[[], HoldingArea | None],
    ) -> None:
        self._context = context
        self._clock = context.runtime.clock
        self._name = name
        self._stream = stream
        self._state = state
        self._life = life
        self._subscriptions = subscriptions
        self._name_count = 0
        self.producers = Producers(TopicEpoch(state))
        self.producer_state = ProducerStateManager(
            context,
            name,
            stream=stream,
            state=state,
            tasks=tasks,
            changed=changed,
            committed=self._delays_committed,
            lost=self._messages_lost,
        )
        self.half = PreparedMessages(
            name,
            state,
            tasks,
            area,
            streams=context.streams,
            settings=context.settings.half,
            checkers=context.half_checkers,
            guard=context.guard,
        )
        self.publisher = Publisher(
            context,
            stream,
            self.producer_state,
            state=state,
            tasks=tasks,
            policies=policies,
            shut_all=self.producers.close,
            topic=name,
            half=self.half,
            trace=trace,
            addressees=subscriptions,
        )
        self.moves = DelayedMoves(
            stream,
            self.producer_state,
            holding=lambda: self.publisher.holding,
            landed=self.publisher.moved,
            tasks=tasks,
            clock=self._clock,
            pause_s=context.settings.read_pause_s,
        )
        self._lost_markers = LostMarkers(
            context, name, stream, self.publisher, self.producer_state, tasks=tasks, settled=self.settled
        )

    async def open(self) -> None:
        """Bring the state up to date with the log, and start the background work."""
        await self.producer_state.open()
        self.publisher.holding = await open_lazily(
            self._context, str(self._name), self._stream, self._state, before_cancel=self.producer_state.save_moves
        )
        await self.publisher.split.open()
        self.half.open()
        self.moves.open()
        self._lost_markers.open()

    def limit(self, policies: Policies) -> None:
        """Apply policies, except for deduplication: the caller calls `apply_dedup` last."""
        self.publisher.policies = policies
        self.publisher.rate.set(policies.publish_rate or Rate())

    async def apply_dedup(self, policies: Policies) -> None:
        await self.publisher.dedup_switch.turn(bool(policies.deduplication))

    def save(self) -> None:
        """Set the values that the state must contain before it is closed."""
        self.publisher.dedup_switch.mark()
        self.producer_state.save()
        self.publisher.split.save()

    # --- producers --------------------------------------------------------------------------------------

    async def produce(self, request: ProducerRequest) -> BrokerProducer:
        self._life.check()
        self._context.guard.check(request.role, self._name, Action.PRODUCE)
        version = await self._context.schemas.for_producer(self._name, request.schema, role=request.role)
        first = request.initial_subscription
        if first is not None:  # requires the permission to consume, whether the subscription exists or not
            self._context.guard.check(request.role, self._name, Action.CONSUME, subscription=first)
            subscriptions = self._subscriptions()
            if first not in subscriptions.by_name:
                await subscriptions.create(first, StartAt(latest=False))
        await self.settled()
        self._life.check()
        self._context.guard.check(
            request.role, self._name, Action.PRODUCE
        )  # permissions may have changed meanwhile
        self._check_room()
        producer = BrokerProducer(
            self.publisher, self.producers, request.name or self._new_name(), request, version, clock=self._clock
        )
        producer.failures_seen = self._stream.failures
        self.producers.join(producer)
        if producer.admitted and producer.epoch is not None:
            await self.producers.epoch_persisted()
        return producer

    def _check_room(self) -> None:
        if self.producers.over_quota is not None:
            raise self.producers.over_quota
        full = self._context.streams.ledgers.full(self._context.streams.settings.quorum)
        if full is not None:
            raise full
        limit = self.publisher.policies.max_producers or 0
        if 0 < limit <= len(self.producers):
            raise TooManyError(f"{self._name} has {limit} producers, which is its limit")

    def produce_as_broker(self, name: str) -> BrokerProducer:
        """A producer of the broker itself: not counted, and independent of access modes. After a failure, the
        caller waits for `settled` and creates another one."""
        producer = BrokerProducer(
            self.publisher, self.producers, name, ProducerRequest("", name=name), b"", clock=self._clock
        )
        producer.failures_seen = self._stream.failures
        producer.admit(None)
        return producer

    def _new_name(self) -> str:
        self._name_count += 1
        return f"weir-{self._context.runtime.rng.getrandbits(48):012x}-{self._name_count}"

    async def settled(self, *, patient: bool = True) -> None:
        """Wait until the outcome of failed appends is known: entries that are in the log count as stored. Unless
        `patient`, raise a failure of the recovery instead of repeating it."""
        while self.publisher.failed:
            failures = self._stream.failures
            await self._stream.settled(patient=patient)
            await self.publisher.dedup_switch.catch_up()
            await self.producer_state.catch_up()
            await self.publisher.split.catch_up()
            self.publisher.failed = self._stream.failures != failures

    # --- transactions -----------------------------------------------------------------------------------

    async def end_transaction(self, producer_id: int, epoch: int, *, commit: bool, nth: int | None) -> None:
        """Store the marker that decides the producer's open transaction; does nothing if the producer has none in
        this topic. Idempotent, also after an error. `nth`: number of the transaction (`TransactionEnd`); None for
        the open one."""
        while True:
            self._life.check()
            await self.settled()
            await self.producer_state.rounds.answered(producer_id)
            self._life.check()
            if not self.producer_state.is_open(producer_id):
                return
            late = False if nth is None else self.producer_state.rounds.is_late(producer_id, nth)
            if late:
                log.info(
                    "%s: late marker of producer %d ignored (its transaction has ended)", self._name, producer_id
                )
                return
            if late is not None:
                break
            since = self.producer_state.index.open_since(producer_id)
            await self._context.transactions.confirm_end(producer_id, self._name, commit=commit)
            if self.producer_state.index.open_since(producer_id) == since and self._life.alive:
                break
        stamp = Stamp(producer_id, epoch)
        await self.publisher.stamped.mark(stamp, abort=not commit, decided_ms=self._clock.wall_ms())

    def _messages_lost(self) -> None:
        self._lost_markers.look_soon()

    def _delays_committed(self) -> None:
        self.moves.wake()
