"""Who publishes to queues and consumes them, and who empties them in the end."""

import asyncio
from collections.abc import Sequence
from random import Random

from weir.broker.api.queues import ConsumeRequest, NamespaceQueues, Queue, QueueConsumer, QueueMessages
from weir.broker.queues.local_queue import LocalConsumer
from weir.model.errors import InvariantError, WeirError
from weir.model.messages import Message
from weir.model.queues import QueueDeclaration
from weir.runtime.interfaces import Clock
from weir.testing.operations import FINAL, Pending
from weir.testing.queues.history import QueueHistory, QueueOpKind
from weir.testing.queues.plan import QueuePlan
from weir.wire.formats.messages import encode_message
from weir.wire.formats.table import messages_of

ROLE = "worker"
#: What is rejected in `work`, and is too old in `timed`, goes to `dead` and `late`.
WORK, TIMED, DEAD, LATE = "work", "timed", "dead", "late"
QUEUES = (WORK, TIMED, DEAD, LATE)
_PAUSE_S = 0.2
_ANSWER_S = 3.0
_QUIET_S = 1.0
_PATIENCE_S = 20.0
_BURSTS = (1, 1, 3, 8)
_CREDITS = (1, 3, 10)


def declarations(plan: QueuePlan) -> list[QueueDeclaration]:
    def to(name: str) -> dict[str, object]:
        return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}

    return [
        QueueDeclaration(DEAD),
        QueueDeclaration(LATE),
        QueueDeclaration(WORK, arguments=to(DEAD)),
        QueueDeclaration(TIMED, arguments={**to(LATE), "x-message-ttl": plan.ttl_ms}),
    ]


def failed(pending: Pending, failure: WeirError) -> None:
    pending.failed(failure)
    if isinstance(failure, InvariantError):
        raise failure


class Worker:
    """One broker's: it dies with it, and has another name in its next life."""

    def __init__(
        self,
        name: str,
        queues: NamespaceQueues,
        plan: QueuePlan,
        *,
        clock: Clock,
        rng: Random,
        story: QueueHistory,
        numbers: dict[str, int],
    ) -> None:
        self._name = name
        self._queues = queues
        self._plan = plan
        self._clock = clock
        self._rng = rng
        self._story = story
        self._numbers = numbers

    async def publish(self, queue_name: str) -> None:
        """Some at a time, in their order; each once, whatever comes of it."""
        for _ in range(self._plan.messages // 3):
            try:
                queue = await self._queues.look(queue_name)
                under_way = [self._send(queue, queue_name) for _ in range(self._rng.choice(_BURSTS))]
            except InvariantError:
                raise
            except WeirError:
                await self._clock.sleep(_PAUSE_S)
                continue
            await asyncio.gather(*under_way)
            await self._clock.sleep(self._rng.uniform(0, 0.3))

    def _send(self, queue: Queue, queue_name: str) -> "asyncio.Task[None]":
        number = self._numbers[queue_name] = self._numbers.get(queue_name, 0) + 1
        transient = self._rng.random() < self._plan.transient
        pending = self._story.begin(
            self._name, QueueOpKind.PUBLISH, queue=queue_name, number=number, transient=transient
        )
        encoded = [encode_message(Message(None, b"%d" % number))]
        answer = queue.publish(QueueMessages(encoded, persistent=not transient))
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())

        async def wait() -> None:
            try:
                await answer
            except WeirError as failure:
                failed(pending, failure)
            else:
                pending.ok()

        return asyncio.get_running_loop().create_task(wait())

    async def consume(self, queue_name: str) -> None:
        """For ever, on one consumer after the other."""
        while True:
            await self._clock.sleep(self._rng.uniform(0, 2 * _PAUSE_S))
            try:
                queue = await self._queues.look(queue_name)
                consumer = await queue.consume(ConsumeRequest(ROLE))
                handle = f"{self._name}.{self._story.step}"
                alone = self._plan.brokers == 1 and queue_name == WORK
                self._story.note(handle, QueueOpKind.CONSUME, queue=queue_name, alone=alone)
                try:
                    await _Session(self, handle, queue_name, consumer).run(self._rng.uniform(0.3, 3.0))
                finally:
                    await consumer.close()
            except InvariantError:
                raise
            except WeirError:
                continue


class _Session:
    """One consumer, for a while."""

    def __init__(self, worker: Worker, handle: str, queue: str, consumer: QueueConsumer) -> None:
        self._worker = worker
        self._handle = handle
        self._queue = queue
        self._consumer = consumer
        self._rng = worker._rng

    async def run(self, seconds: float) -> None:
        until = self._worker._clock.monotonic() + seconds
        while self._worker._clock.monotonic() < until:
            try:
                async with asyncio.timeout(_PAUSE_S):
                    found = _split(await self._consumer.next(self._rng.choice(_CREDITS)))
            except TimeoutError:
                continue
            for _, number in found:
                self._note(QueueOpKind.DELIVER, number)
            await self._worker._clock.sleep(self._rng.choice((0, 0.01, 0.2)))
            acked = [self._settle(offset, number) for offset, number in found]
            await self._persisted([pending for pending in acked if pending is not None])

    def _note(self, kind: QueueOpKind, number: int) -> None:
        self._worker._story.note(self._handle, kind, queue=self._queue, number=number)

    def _settle(self, offset: int, number: int) -> Pending | None:
        """What becomes of one message; the acknowledgement that is to be made durable, if it is one."""
        plan, die = self._worker._plan, self._rng.random()
        ranges = [(offset, offset + 1)]
        if die < plan.rejects:
            self._note(QueueOpKind.REJECT, number)
            self._consumer.reject(ranges)
        elif die < plan.rejects + plan.requeues:
            self._note(QueueOpKind.REQUEUE, number)
            self._consumer.requeue(ranges)
        elif self._rng.random() < 0.8:
            pending = self._worker._story.begin(self._handle, QueueOpKind.ACK, queue=self._queue, number=number)
            self._consumer.ack(ranges)
            return pending
        return None

    async def _persisted(self, acked: Sequence[Pending]) -> None:
        """Only this broker knows when: another one's word would come over the network."""
        if not acked or not isinstance(self._consumer, LocalConsumer) or self._rng.random() < 0.3:
            return
        try:
            await self._consumer.persisted()
        except WeirError as failure:
            for pending in acked:
                failed(pending, failure)
            raise
        for pending in acked:
            pending.ok()


def _split(deliveries: Sequence[object]) -> list[tuple[int, int]]:
    """Offset and number of each message."""
    found: list[tuple[int, int]] = []
    for delivery in deliveries:
        batch, wanted = delivery.batch, delivery.wanted  # type: ignore[attr-defined]
        for index, message in enumerate(messages_of(batch)):
            if wanted is None or wanted >> index & 1:
                found.append((batch.base_offset + index, int(bytes(message.value or b"0"))))
    return found


async def empty_all(queues: NamespaceQueues, clock: Clock, story: QueueHistory) -> None:
    """Take out everything there is, of every queue; with all faults healed this must work."""
    for name in QUEUES:
        until = clock.monotonic() + _PATIENCE_S
        while True:
            try:
                await _empty(await queues.look(name), clock, story)
                break
            except InvariantError:
                raise
            except WeirError as failure:
                if clock.monotonic() > until:
                    story.begin(FINAL, QueueOpKind.MISSING, queue=name).failed(failure)
                    break
                await clock.sleep(_PAUSE_S)


async def _empty(queue: Queue, clock: Clock, story: QueueHistory) -> None:
    consumer = await queue.consume(ConsumeRequest(ROLE))
    try:
        while True:
            try:
                async with asyncio.timeout(_QUIET_S):
                    found = _split(await consumer.next(50))
            except TimeoutError:
                break
            for offset, number in found:
                story.note(FINAL, QueueOpKind.CONTENT, queue=queue.declaration.name, number=number)
                consumer.ack([(offset, offset + 1)])
        story.note(FINAL, QueueOpKind.DRAINED, queue=queue.declaration.name)
    finally:
        await consumer.close()
