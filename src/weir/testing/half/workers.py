"""Who prepares and decides, holds and cancels, sends and consumes, at one broker."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Protocol

from weir.broker.api.broker import Broker
from weir.broker.api.consumers import Consumer, StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.producers import Outgoing, ProducerRequest
from weir.broker.api.topics import HalfCheck, StoredTopic, Topic
from weir.model.batch import BatchFormat, HeldId
from weir.model.errors import InvariantError, TopicNotFoundError, WeirError
from weir.model.messages import Decision, Message, Preparation
from weir.model.retry import MAX_DELIVERIES, SCHEDULE
from weir.model.subscriptions import FIFO_PROPERTY
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.testing.half.history import HalfHistory, HalfOpKind
from weir.testing.half.plan import HalfPlan
from weir.testing.operations import Pending
from weir.wire.formats.messages import encode_messages
from weir.wire.formats.table import messages_of

ROLE = "worker"
HALF, RECALL, GROUPS = (TopicName.parse(name) for name in ("half", "recall", "groups"))
TOPICS = (HALF, RECALL, GROUPS)
PRODUCERS = "shop"
SUBSCRIPTION = "s"
_PAUSE_S = 0.2
_ANSWER_S = 5.0
_KINDS = {Decision.COMMIT: HalfOpKind.COMMIT, Decision.ROLL_BACK: HalfOpKind.ROLL_BACK}


class Known(Protocol):
    """What is known outside of all brokers."""

    half_plan: HalfPlan
    story: HalfHistory
    ids: dict[int, HeldId]
    fates: dict[int, Decision | None]
    numbers: dict[str, int]
    #: Topics that are to be read back.
    unread: dict[TopicName, None]


def failed(pending: Pending, failure: WeirError) -> None:
    pending.failed(failure)
    if isinstance(failure, InvariantError):
        raise failure


def outgoing(number: int, group: str = "", **more: Any) -> Outgoing:
    message = Message(group.encode() or None, b"%d" % number)
    return Outgoing(encode_messages([message]), 1, BatchFormat.MESSAGES, **more)


def stored_of(topic: Topic) -> StoredTopic:
    if topic.stored is None:
        raise InvariantError("the topics of this scenario are stored")
    return topic.stored


class Worker:
    """One broker's: it dies with it, and has another name in its next life."""

    def __init__(
        self, life: str, broker: Broker, known: Known, *, clock: Clock, rng: Random, tasks: TaskScope
    ) -> None:
        self._life = life
        self._broker = broker
        self._known = known
        self._plan = known.half_plan
        self._story = known.story
        self._clock = clock
        self._rng = rng
        self._tasks = tasks

    def start(self) -> None:
        spawn, kinds = self._tasks.spawn, self._plan.kinds
        if "half" in kinds:
            self._broker.half_checkers.register(PRODUCERS, self, role=ROLE)
            spawn(self._again(HALF, self._prepare), "prepare")
            spawn(self._decide_some(), "decide")
            spawn(self._consume(HALF, SubscriptionType.EXCLUSIVE), "see half messages")
        if "recall" in kinds:
            spawn(self._again(RECALL, self._hold), "hold")
            spawn(self._consume(RECALL, SubscriptionType.EXCLUSIVE), "see delayed messages")
        if "groups" in kinds:
            spawn(self._again(GROUPS, self._send), "send")
            for number in range(2):
                spawn(self._consume(GROUPS, SubscriptionType.SHARED), f"consume groups {number}")

    def _next(self, kind: str) -> int:
        self._known.numbers[kind] = number = self._known.numbers.get(kind, 0) + 1
        return number

    async def _again(self, name: TopicName, step: Callable[[Any], Awaitable[None]]) -> None:
        """Make a step with a producer of the topic, often; whoever has the topic elsewhere does the same there."""
        for _ in range(self._plan.messages):
            await self._clock.sleep(self._rng.uniform(0, 0.25))
            try:
                topic = await self._broker.topic(name, role=ROLE)
                producer = await topic.produce(ProducerRequest(ROLE))
            except InvariantError:
                raise
            except WeirError:
                await self._clock.sleep(_PAUSE_S)
                continue
            try:
                await step(producer)
            finally:
                await producer.close()

    # --- half messages ----------------------------------------------------------------------------------

    async def _prepare(self, producer: Any) -> None:
        number = self._next("half")
        answers = self._rng.random() < self._plan.answers
        fate = self._rng.choice((Decision.COMMIT, Decision.ROLL_BACK)) if answers else None
        self._known.fates[number] = fate
        pending = self._story.begin(self._life, HalfOpKind.PREPARE, topic="half", number=number)
        try:
            receipt = await producer.publish(outgoing(number, half=Preparation(PRODUCERS)))
        except WeirError as failure:
            failed(pending, failure)
            return
        self._known.ids[number] = HeldId(*receipt.position)
        pending.ok()

    async def _decide_some(self) -> None:
        """Anybody's, in any way, and again."""
        while True:
            await self._clock.sleep(self._rng.uniform(0, 0.4))
            latest = list(self._known.ids.items())[-12:]
            if latest:
                number, half = self._rng.choice(latest)
                decisions = (Decision.COMMIT, Decision.ROLL_BACK)
                fate = self._known.fates.get(number)
                await self._decide(number, half, fate or self._rng.choice(decisions))

    async def _decide(self, number: int, half: HeldId, decision: Decision) -> None:
        pending: Pending | None = None
        try:
            topic = await self._broker.topic(HALF, role=ROLE)
            pending = self._story.begin(self._life, _KINDS[decision], topic="half", number=number)
            async with asyncio.timeout(_ANSWER_S):
                decided = await stored_of(topic).half.decide(half, decision, role=ROLE)
        except TimeoutError:
            return  # whatever comes of it
        except WeirError as failure:
            if pending is not None:
                failed(pending, failure)
            elif isinstance(failure, InvariantError):
                raise
            return
        pending.ok(again=decided.again)

    def check_half(self, asked: HalfCheck) -> bool:
        """As `HalfChecker`: it knows, or it does not."""
        number = int(bytes(messages_of(asked.batch)[0].value or b"0"))
        self._story.note(self._life, HalfOpKind.CHECK, topic="half", number=number)
        fate = self._known.fates.get(number)
        if fate is not None:
            self._tasks.spawn(self._decide(number, asked.message.id, fate), f"answer {number}")
        return True

    # --- recalled messages ------------------------------------------------------------------------------

    async def _hold(self, producer: Any) -> None:
        number = self._next("recall")
        due_ms = self._clock.wall_ms() + self._rng.choice((50, 200, 800))
        pending = self._story.begin(self._life, HalfOpKind.HOLD, topic="recall", number=number, moment_ms=due_ms)
        try:
            receipt = await producer.publish(outgoing(number, deliver_at_ms=due_ms))
        except WeirError as failure:
            failed(pending, failure)
            return
        pending.ok()
        if receipt.held and self._rng.random() < self._plan.cancels:
            left_s = max(0, due_ms - self._clock.wall_ms()) / 1000
            self._tasks.spawn(self._cancel(number, HeldId(*receipt.position), left_s), f"cancel {number}")

    async def _cancel(self, number: int, held: HeldId, left_s: float) -> None:
        """About when it is due."""
        await self._clock.sleep(max(0.0, left_s + self._rng.choice((-0.1, -0.005, 0.0, 0.001, 0.01))))
        pending: Pending | None = None
        try:
            area = stored_of(await self._broker.topic(RECALL, role=ROLE)).held
            if area is None:
                return
            pending = self._story.begin(self._life, HalfOpKind.CANCEL, topic="recall", number=number)
            async with asyncio.timeout(_ANSWER_S):
                await area.cancel(held)
        except TimeoutError:
            return
        except WeirError as failure:
            if pending is not None:
                failed(pending, failure)
            return
        pending.ok()

    # --- messages of groups -----------------------------------------------------------------------------

    async def _send(self, producer: Any) -> None:
        under_way = []
        for _ in range(self._rng.choice((1, 1, 4))):
            number, group = self._next("groups"), f"g{self._rng.randrange(self._plan.groups)}"
            pending = self._story.begin(self._life, HalfOpKind.SEND, topic="groups", number=number, group=group)
            receipt = producer.publish(outgoing(number, group))
            receipt.add_done_callback(lambda done: done.cancelled() or done.exception())
            under_way.append((pending, receipt))
        for pending, receipt in under_way:
            try:
                await receipt
            except WeirError as failure:
                failed(pending, failure)
            else:
                pending.ok()

    # --- consumers --------------------------------------------------------------------------------------

    async def _consume(self, name: TopicName, kind: SubscriptionType) -> None:
        while True:
            await self._clock.sleep(self._rng.uniform(0, 2 * _PAUSE_S))
            try:
                topic = await self._broker.topic(name, role=ROLE)
                consumer = await subscribe(topic, kind)
                handle = f"{self._life}/{self._story.step}"
                try:
                    await self._session(name, handle, consumer)
                finally:
                    self._story.note(handle, HalfOpKind.END, topic=name.local)
                    await consumer.close()
            except InvariantError:
                raise
            except WeirError:
                continue

    async def _session(self, name: TopicName, handle: str, consumer: Consumer) -> None:
        until = self._clock.monotonic() + self._rng.uniform(0.3, 3.0)
        while self._clock.monotonic() < until:
            try:
                async with asyncio.timeout(_PAUSE_S):
                    deliveries = await consumer.next(self._rng.choice((1, 3, 10)))
            except TimeoutError:
                continue
            found = [
                (delivery.batch.base_offset + index, message)
                for delivery in deliveries
                for index, message in enumerate(messages_of(delivery.batch))
                if delivery.wanted is None or delivery.wanted >> index & 1
            ]
            for _, message in found:
                self._note(name, handle, HalfOpKind.SEEN, message)
            await self._clock.sleep(self._rng.choice((0, 0.01, 0.2)))
            for offset, message in found:
                fails = name == GROUPS and self._rng.random() < self._plan.fails
                self._note(name, handle, HalfOpKind.GIVE_BACK if fails else HalfOpKind.ACK, message)
                if fails:
                    consumer.redeliver([(offset, offset + 1)])
                else:
                    consumer.ack([(offset, offset + 1)])

    def _note(self, name: TopicName, handle: str, kind: HalfOpKind, message: Message) -> None:
        number, group = int(bytes(message.value or b"0")), (message.key or b"").decode()
        self._story.note(
            handle, kind, topic=name.local, number=number, group=group, moment_ms=self._clock.wall_ms()
        )


async def subscribe(topic: Topic, kind: SubscriptionType) -> Consumer:
    shared = kind is SubscriptionType.SHARED
    fifo = {FIFO_PROPERTY: "true", SCHEDULE: "0s", MAX_DELIVERIES: "0"} if shared else {}
    start = StartAt(offset=0)
    return await topic.subscribe(
        SubscribeRequest(ROLE, SUBSCRIPTION, kind, start=start, subscription_properties=fifo)
    )


async def whole(broker: Broker, name: TopicName) -> Topic | None:
    """The topic; None if nobody ever made it."""
    try:
        return await broker.topic(name, role=ROLE, create=False)
    except TopicNotFoundError:
        return None
