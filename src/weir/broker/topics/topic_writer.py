"""What of a topic has to do with those who write to it: who is let in, what failed appends left behind, how
transactions end.

Markers that were damaged in every copy: the decision is asked for, and stored again.

Without its marker a transaction would stay open in the topic for good, and everything behind its first message
unseen by those who want decided messages only. docs/adr/0021 says which decisions are still known.

Forgetting the beginning of a topic's log, in the order that a crash at any moment forgives.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from weir.broker.api.consumers import StartAt
from weir.broker.api.producers import ProducerRequest, Receipt
from weir.broker.context import BrokerContext
from weir.broker.log.producer_state_manager import ProducerStateManager
from weir.broker.prepared.prepared_messages import TopicHalfMessages
from weir.broker.publish.producers import BrokerProducer, Producers, TopicEpoch
from weir.broker.publish.publisher import Publisher
from weir.broker.topics.delayed_messages import DelayedMoves, open_lazily
from weir.broker.topics.lifecycle import Life
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

#: Between two looks at transactions that began before a loss and may still be open.
_LOOK_S = 1.0
#: The topic cannot take a marker any more, here or anywhere.
_OVER = (StreamClosedError, StreamFencedError, StreamTerminatedError)


class LostMarkers:
    """Of one topic. Costs nothing while nothing is lost. `settled` waits until it is known what failed appends
    left behind."""

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
        """What the log says is known by now."""
        self._opened = True
        if self._doubtful():
            self.look_soon()

    def _doubtful(self) -> list[int]:
        """Producers whose open transactions began before a loss, which may have taken their markers."""
        lost_to = max((run.end_offset for _, run in self._stream.lost), default=-1)
        return [
            who for who in self._producer_state.index.open_before(lost_to) if self._producer_state.is_open(who)
        ]

    def look_soon(self) -> None:
        """Messages were found lost."""
        if self._opened and self._looking is None:
            self._looking = self._tasks.spawn(self._look(), "look for lost markers")

    async def _look(self) -> None:
        try:
            while True:
                try:
                    await self._decide()
                except _OVER as over:
                    log.info("no marker is stored again in %s: %s", self._name, over)
                    return
                except WeirError as failed:
                    log.warning("markers of %s are lost, and tried again: %s", self._name, failed)
                if not self._producer_state.behind and not self._doubtful():
                    return
                await self._clock.sleep(_LOOK_S)
        finally:
            self._looking = None

    async def _decide(self) -> None:
        await self._settled()
        if self._producer_state.behind:
            return
        receipts = [await self._mark(who) for who in self._doubtful()]
        for receipt in receipts:
            if receipt is not None:
                await receipt

    async def _mark(self, producer_id: int) -> "asyncio.Future[Receipt] | None":
        states, index = self._producer_state.states, self._producer_state.index
        asked = index.open_since(producer_id), states.tip(producer_id)
        try:
            fate = await self._gate.fate(producer_id, self._name, states.seen_ms(producer_id))
        except StreamError as failed:  # of the coordinator's own topic
            raise NotOwnerError(f"the coordinator of transactions moves: {failed.what}") from failed
        # Nothing may have changed since it was asked: a transaction that begins meanwhile is not hit.
        if (index.open_since(producer_id), states.tip(producer_id)) != asked:
            return None
        if fate is Fate.OPEN:
            return None
        log.warning(
            "%s: the marker of producer %d is lost, whose transaction began at offset %d; stored again at %d: %s",
            self._name,
            producer_id,
            self._producer_state.index.open_since(producer_id),
            self._stream.end_offset,
            "aborted, since nobody knows how it ended" if fate is Fate.UNKNOWN else fate.value,
        )
        stamp = Stamp(producer_id, max(states.epoch(producer_id), 0))
        abort = fate is not Fate.COMMITTED
        return self._publisher.stamped.mark(stamp, abort=abort, decided_ms=self._clock.wall_ms())


class Trimming:
    """Nothing is trimmed that the state does not know of yet: the log is where it would be learnt from again."""

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
        """`trimmed`: told what the log begins with from then on."""
        self._stream = stream
        self._state = state
        self._publisher = publisher
        self._producer_state = producer_state
        self._moves = moves
        self._trimmed = trimmed

    async def forget_before(self, offset: int) -> None:
        """Trim the stream, once everything that must not fall back behind it is persisted."""
        await self._moves.before_trim(offset)
        if self._publisher.holding is not None:
            await self._publisher.holding.before_trim(offset)
        self._publisher.dedup_switch.mark()
        self._producer_state.save()
        await self._state.flush()
        await self._stream.trim(offset)
        self._producer_state.trimmed()
        self._trimmed(self._stream.start_offset)


class WriteSide:
    """`changed`: told that more may be read. `area`: where messages wait, once there is one."""

    def __init__(
        self,
        context: BrokerContext,
        name: TopicName,
        policies: Policies,
        *,
        stream: Stream,
        state: StateLog,
        tasks: TaskScope,
        life: Life,
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
        self.half = TopicHalfMessages(
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
        """Bring what is known of the log up to date."""
        await self.producer_state.open()
        self.publisher.holding = await open_lazily(
            self._context, str(self._name), self._stream, self._state, before_cancel=self.producer_state.save_moves
        )
        await self.publisher.split.open()
        self.half.open()
        self.moves.open()
        self._lost_markers.open()

    def limit(self, policies: Policies) -> None:
        """These policies hold from now on; `apply_dedup` comes last."""
        self.publisher.policies = policies
        self.publisher.rate.set(policies.publish_rate or Rate())

    async def apply_dedup(self, policies: Policies) -> None:
        await self.publisher.dedup_switch.turn(bool(policies.deduplication))

    def save(self) -> None:
        """What must be in the state before it is closed."""
        self.publisher.dedup_switch.mark()
        self.producer_state.save()
        self.publisher.split.save()

    # --- producers --------------------------------------------------------------------------------------

    async def produce(self, request: ProducerRequest) -> BrokerProducer:
        self._life.check()
        self._context.guard.check(request.role, self._name, Action.PRODUCE)
        version = await self._context.schemas.for_producer(self._name, request.schema, role=request.role)
        first = request.initial_subscription
        if first is not None:  # a subscription is for who may consume, whether there is one or not
            self._context.guard.check(request.role, self._name, Action.CONSUME, subscription=first)
            subscriptions = self._subscriptions()
            if first not in subscriptions.by_name:
                await subscriptions.create(first, StartAt(latest=False))
        await self.settled()
        self._life.check()
        self._context.guard.check(request.role, self._name, Action.PRODUCE)  # it may be taken back meanwhile
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
            raise TooManyError(f"{self._name} has {limit} producers, as many as it may have")

    def produce_as_broker(self, name: str) -> BrokerProducer:
        """One that is the broker's own, is counted nowhere and stands in nobody's way; once it fails, there shall
        be another after `settled`."""
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
        """Wait until it is known what failed appends left behind: that counts as stored. Unless `patient`, an
        attempt to find out that fails is raised, and not repeated."""
        while self.publisher.failed:
            failures = self._stream.failures
            await self._stream.settled(patient=patient)
            await self.publisher.dedup_switch.catch_up()
            await self.producer_state.catch_up()
            await self.publisher.split.catch_up()
            self.publisher.failed = self._stream.failures != failures

    # --- transactions -----------------------------------------------------------------------------------

    async def end_transaction(self, producer_id: int, epoch: int, *, commit: bool, nth: int | None) -> None:
        """Store the marker that decides the producer's open transaction; nothing if it has none here. Fine to ask
        again, after an error too. `nth`: which transaction is meant (`TransactionEnd`); whichever is open if it is
        not said."""
        while True:
            self._life.check()
            await self.settled()
            await self.producer_state.rounds.answered(producer_id)
            self._life.check()
            if not self.producer_state.is_open(producer_id):
                return
            late = False if nth is None else self.producer_state.rounds.is_late(producer_id, nth)
            if late:
                log.info("%s: a marker of producer %d came late, and is left out", self._name, producer_id)
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
