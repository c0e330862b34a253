"""What of a topic has to do with those who write to it: who is let in, what failed appends left behind, how
transactions end."""

import logging
from collections.abc import Callable

from weir.broker.api import ProducerRequest, StartAt
from weir.broker.context import BrokerContext
from weir.broker.half.messages import TopicHalfMessages
from weir.broker.publish.lazy_holding import open_lazily
from weir.broker.publish.producers import BrokerProducer, Producers
from weir.broker.publish.publishing import Publisher
from weir.broker.publish.topic_epoch import TopicEpoch
from weir.broker.topic.life import Life
from weir.broker.topic.producer_state_manager import ProducerStateManager
from weir.broker.topic.subscriptions import Subscriptions
from weir.broker.trace.message_trace import MessageTrace
from weir.broker.transactions.delayed_moves import DelayedMoves
from weir.broker.transactions.lost_markers import LostMarkers
from weir.model.batch import Stamp
from weir.model.errors import TooManyError
from weir.model.policies import Policies, Rate
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.tasks import TaskScope
from weir.stream.holding.area import HoldingArea
from weir.stream.log import Stream
from weir.stream.state import StateLog

log = logging.getLogger(__name__)


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
        self.half = TopicHalfMessages(context, name, state, tasks, area)
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
