"""Who publishes to a topic, who consumes its shared subscription and fails, and who puts dead letters back."""

import asyncio
from collections.abc import Sequence
from random import Random

from weir.broker.api.consumers import Consumer, Delivery, StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.queues import ConsumeRequest, NamespaceQueues, QueueConsumer, QueueMessages
from weir.broker.api.topics import LetterFilter
from weir.broker.broker import Broker
from weir.model.errors import InvariantError, TopicClosedError, WeirError
from weir.model.messages import Message, death_in
from weir.model.retry import MAX_DELIVERIES, SCHEDULE
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.testing.operations import FINAL, Pending
from weir.testing.retries.history import RetryHistory, RetryOpKind
from weir.testing.retries.plan import RetryPlan
from weir.wire.formats.messages import encode_message
from weir.wire.formats.table import messages_of

ROLE = "worker"
TASKS, CREW = "tasks", "crew"
LETTERS = f"{TASKS}-{CREW}-DLQ"
_TOPIC, _LETTERS = TopicName.parse(TASKS), TopicName.parse(LETTERS)
_PAUSE_S = 0.2
_QUIET_S = 2.0
_PATIENCE_S = 60.0
_BURSTS = (1, 1, 3)
_CREDITS = (1, 3, 10)


def request_of(plan: RetryPlan) -> SubscribeRequest:
    properties = {SCHEDULE: f"{plan.wait_ms}ms", MAX_DELIVERIES: str(plan.max_deliveries)}
    return SubscribeRequest(
        ROLE, CREW, SubscriptionType.SHARED, start=StartAt(), subscription_properties=properties
    )


class Worker:
    """One broker's: it dies with it, and has another name in its next life."""

    def __init__(
        self,
        name: str,
        broker: Broker,
        queues: NamespaceQueues,
        plan: RetryPlan,
        *,
        clock: Clock,
        rng: Random,
        story: RetryHistory,
        numbers: list[int],
    ) -> None:
        self._name = name
        self._broker = broker
        self._queues = queues
        self._plan = plan
        self._clock = clock
        self._rng = rng
        self._story = story
        #: The last number, over all publishers.
        self._numbers = numbers

    async def publish(self) -> None:
        """Some at a time; each once, whatever comes of it."""
        for _ in range(self._plan.messages // 2):
            try:
                queue = await self._queues.look(TASKS)
                for _ in range(self._rng.choice(_BURSTS)):
                    self._numbers[0] += 1
                    number = self._numbers[0]
                    pending = self._story.begin(self._name, RetryOpKind.PUBLISH, number=number)
                    try:
                        await queue.publish(QueueMessages([encode_message(Message(None, b"%d" % number))]))
                    except WeirError as failure:
                        pending.failed(failure)
                        raise
                    pending.ok()
            except InvariantError:
                raise
            except WeirError:
                await self._clock.sleep(_PAUSE_S)
            await self._clock.sleep(self._rng.uniform(0, 0.3))

    async def consume(self) -> None:
        """For ever, on one consumer after the other, where the topic is this broker's."""
        while True:
            await self._clock.sleep(self._rng.uniform(0, 2 * _PAUSE_S))
            try:
                topic = await self._broker.load(_TOPIC)
                consumer = await topic.subscribe(request_of(self._plan))
                try:
                    await self._work(consumer, self._rng.uniform(0.3, 2.0))
                finally:
                    await consumer.close(failed=self._rng.random() < 0.5)
            except InvariantError:
                raise
            except WeirError:
                continue

    async def _work(self, consumer: Consumer, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while self._clock.monotonic() < until:
            try:
                async with asyncio.timeout(_PAUSE_S):
                    found = _split(await consumer.next(self._rng.choice(_CREDITS)))
            except TimeoutError:
                continue
            for _, message in found:
                self._story.note(self._name, RetryOpKind.DELIVER, number=_number(message))
            await self._clock.sleep(self._rng.choice((0, 0.01, 0.2)))
            acked = [self._settle(consumer, offset, _number(message)) for offset, message in found]
            pending = [one for one in acked if one is not None]
            if pending:
                await self._persisted(consumer, pending)

    def _settle(self, consumer: Consumer, offset: int, number: int) -> Pending | None:
        plan, die, ranges = self._plan, self._rng.random(), [(offset, offset + 1)]
        if die < plan.fails:
            self._story.note(self._name, RetryOpKind.FAIL, number=number)
            consumer.redeliver(ranges)
        elif die < plan.fails + plan.rejects:
            self._story.note(self._name, RetryOpKind.REJECT, number=number)
            consumer.reject(ranges)
        elif self._rng.random() < 0.8:
            pending = self._story.begin(self._name, RetryOpKind.ACK, number=number)
            consumer.ack(ranges)
            return pending
        return None

    async def _persisted(self, consumer: Consumer, acked: Sequence[Pending]) -> None:
        try:
            await consumer.persisted()
        except WeirError as failure:
            for pending in acked:
                pending.failed(failure)
            raise
        for pending in acked:
            pending.ok()

    async def redrive(self) -> None:
        """For ever, where the dead letters are this broker's."""
        while self._plan.redrives:
            await self._clock.sleep(self._rng.uniform(0.2, 1.0))
            try:
                topic = await self._broker.load(_LETTERS, create=False)
                if topic.stored is not None:
                    async with asyncio.timeout(_QUIET_S):
                        await topic.stored.dead_letters.redrive(LetterFilter(), start=0, most=5)
            except InvariantError:
                raise
            except (WeirError, TimeoutError):
                continue

    # --- the end ------------------------------------------------------------------------------------------------

    async def drain_tasks(self) -> bool:
        """Take out what is not acknowledged, if the topic is this broker's; whether it was."""
        try:
            topic = await self._broker.load(_TOPIC)
            consumer = await topic.subscribe(request_of(self._plan))
        except InvariantError:
            raise
        except WeirError:
            return False
        try:
            await self._drain(consumer, TASKS)
        except TopicClosedError:
            return False
        return True

    async def drain_letters(self) -> None:
        until = self._clock.monotonic() + _PATIENCE_S
        while True:
            try:
                consumer = await (await self._queues.look(LETTERS)).consume(ConsumeRequest(ROLE))
                await self._drain(consumer, LETTERS)
            except InvariantError:
                raise
            except WeirError as failure:
                if "no queue" in str(failure):
                    return
                if self._clock.monotonic() > until:
                    self._story.begin(FINAL, RetryOpKind.MISSING, place=LETTERS).failed(failure)
                    return
                await self._clock.sleep(_PAUSE_S)
            else:
                return

    async def _drain(self, consumer: Consumer | QueueConsumer, place: str) -> None:
        while True:
            try:
                async with asyncio.timeout(_QUIET_S):
                    found = _split(await consumer.next(50))
            except TimeoutError:
                break
            for offset, message in found:
                death = death_in(message.headers)
                self._story.note(
                    FINAL,
                    RetryOpKind.CONTENT,
                    number=_number(message),
                    place=place,
                    reason="" if death is None else death.reason,
                    deliveries=0 if death is None else death.deliveries,
                )
                consumer.ack([(offset, offset + 1)])
        await consumer.close()


def _number(message: Message) -> int:
    return int(bytes(message.value or b"0"))


def _split(deliveries: Sequence[Delivery]) -> list[tuple[int, Message]]:
    """Offset and message of each."""
    return [
        (delivery.batch.base_offset + index, message)
        for delivery in deliveries
        for index, message in enumerate(messages_of(delivery.batch))
        if delivery.wanted is None or delivery.wanted >> index & 1
    ]
