"""A partitioned topic as one queue: consumers receive from all partitions, publishes rotate over the partitions.

Messages are in order within each partition. The upper bits of an offset contain the partition, so that
acknowledgments reach it. The name of a partitioned topic is the combined queue; the name of one partition is a
queue of its own. Topics of Kafka clients always have partitions, possibly only one.
"""

import asyncio
from collections.abc import Sequence

from weir.broker.api.consumers import Delivery
from weir.broker.api.queues import (
    ConsumeRequest,
    Exchanges,
    NamespaceExchanges,
    NamespaceQueues,
    Queue,
    QueueConsumer,
    QueueCounts,
    QueueMessages,
    QueueOutline,
    Queues,
)
from weir.broker.broker import Broker
from weir.broker.metadata.registry import Registry
from weir.broker.queues.queue_arguments import check_equivalent
from weir.broker.security.authorization import Authoriser
from weir.model.batch import Batch, Run
from weir.model.errors import InvalidNameError, QueueInUseError, TopicNotFoundError
from weir.model.queues import QueueDeclaration, QueueLimits, QueuePolicy, QueueRules, queue_in_vhost, vhost_of
from weir.model.registry import Action, TopicRecord
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.budgets import ByteShare
from weir.runtime.interfaces import Clock

#: Bits of an offset within its partition.
_SHIFT = 46
_WITHIN = (1 << _SHIFT) - 1


class CombinedQueue:
    """Implements `api.Queue`. It closes with any of its parts; the next lookup then opens all parts again."""

    def __init__(self, declaration: QueueDeclaration, parts: Sequence[Queue], clock: Clock) -> None:
        self.declaration = declaration
        #: It is never exclusive.
        self.connection = ""
        self._clock = clock
        self.parts = parts
        self._turn = 0

    @property
    def rules(self) -> QueueRules:
        return self.parts[0].rules

    @property
    def policy(self) -> QueuePolicy | None:
        return self.parts[0].policy

    @property
    def alive(self) -> bool:
        return all(part.alive for part in self.parts)

    async def counts(self, *, use: bool = False) -> QueueCounts:
        """Sums of the parts; each consumer is a consumer of every part."""
        counts = [await part.counts(use=use) for part in self.parts]
        return QueueCounts(
            sum(one.ready for one in counts),
            sum(one.unacked for one in counts),
            max(one.consumers for one in counts),
        )

    def publish(self, messages: QueueMessages) -> "asyncio.Future[int]":
        if messages.stamp is not None:  # a retry reaches the same part, which detects the duplicate
            return self.parts[messages.stamp.epoch % len(self.parts)].publish(messages)
        self._turn = (self._turn + 1) % len(self.parts)
        return self.parts[self._turn].publish(messages)

    @property
    def has_capacity(self) -> bool:
        return all(part.has_capacity for part in self.parts)

    async def wait_capacity(self) -> None:
        for part in self.parts:
            await part.wait_capacity()

    async def consume(self, request: ConsumeRequest, *, share: ByteShare | None = None) -> QueueConsumer:
        if len(self.parts) == 1:
            return await self.parts[0].consume(request, share=share)
        joined: list[QueueConsumer] = []
        try:
            for part in self.parts:
                joined.append(await part.consume(request, share=share))  # noqa: PERF401 - closed after a failure
        except BaseException:
            for consumer in joined:
                await consumer.close()
            raise
        return CombinedConsumer(joined, self._clock)

    async def getter(self, role: str) -> QueueConsumer:
        if len(self.parts) == 1:
            return await self.parts[0].getter(role)
        return CombinedConsumer([await part.getter(role) for part in self.parts], self._clock)

    async def purge(self) -> int:
        return sum([await part.purge() for part in self.parts])


class CombinedConsumer:
    """Implements `api.QueueConsumer`. `parts`: a consumer of each partition, in the order of the partitions."""

    def __init__(self, parts: Sequence[QueueConsumer], clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._turn = 0
        #: Deliveries beyond the credit, because several parts answered at once.
        self._inbox: list[Delivery] = []

    async def next(self, credit: int) -> list[Delivery]:
        """Wait for deliveries of any part, in rotation. If several parts answer at once, their surplus deliveries
        stay in the inbox."""
        if self._inbox:
            return self._taken(credit)
        asked: dict[asyncio.Task[list[Delivery]], int] = {}
        try:
            for step in range(len(self._parts)):
                place = (self._turn + step) % len(self._parts)
                asked[asyncio.ensure_future(self._parts[place].next(credit))] = place
                await self._clock.sleep(0)
                if any(task.done() for task in asked):
                    break
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = [task for task in asked if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
            failed = self._keep(asked)
        if failed is not None and not self._inbox:
            raise failed
        return self._taken(credit)

    def _keep(self, asked: "dict[asyncio.Task[list[Delivery]], int]") -> BaseException | None:
        """Move deliveries of the parts into the inbox, where a cancellation cannot lose them; return the error of
        a failed part."""
        failed: BaseException | None = None
        for task, place in asked.items():
            if task.cancelled():
                continue
            if task.exception() is not None:
                failed = task.exception()
            else:
                self._inbox += [_shifted(delivery, place) for delivery in task.result()]
                self._turn = (place + 1) % len(self._parts)
        return failed

    def _taken(self, credit: int) -> list[Delivery]:
        taken: list[Delivery] = []
        while self._inbox and credit > 0:
            delivery = self._inbox.pop(0)
            credit -= _count(delivery)
            if credit < 0:
                delivery, rest = _split(delivery, _count(delivery) + credit)
                self._inbox.insert(0, rest)
            taken.append(delivery)
        return taken

    async def take(self) -> Delivery | None:
        if self._inbox:
            return self._taken(1)[0]
        for step in range(len(self._parts)):
            place = (self._turn + step) % len(self._parts)
            found = await self._parts[place].take()
            if found is not None:
                self._turn = place
                return _shifted(found, place)
        return None

    def ack(self, ranges: Sequence[Run]) -> None:
        for place, runs in _by_part(ranges).items():
            self._parts[place].ack(runs)

    def requeue(self, ranges: Sequence[Run]) -> None:
        for place, runs in _by_part(ranges).items():
            self._parts[place].requeue(runs)

    def reject(self, ranges: Sequence[Run]) -> None:
        for place, runs in _by_part(ranges).items():
            self._parts[place].reject(runs)

    def retire(self) -> None:
        for part in self._parts:
            part.retire()
        self._give_back()

    async def closed(self) -> str:
        """Wait until the first of its parts closes."""
        waiting = [asyncio.ensure_future(part.closed()) for part in self._parts]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in waiting:
                task.cancel()

    async def close(self) -> None:
        self._inbox.clear()
        for part in self._parts:
            await part.close()

    def _give_back(self) -> None:
        inbox, self._inbox = self._inbox, []
        for delivery in inbox:
            base, wanted = delivery.batch.base_offset, delivery.wanted
            places = [at for at in range(delivery.batch.count) if wanted is None or wanted >> at & 1]
            self.requeue([(base + at, base + at + 1) for at in places])


def _count(delivery: Delivery) -> int:
    return delivery.batch.count if delivery.wanted is None else delivery.wanted.bit_count()


def _split(delivery: Delivery, first: int) -> tuple[Delivery, Delivery]:
    """Split a delivery after its `first` messages."""
    wanted = (1 << delivery.batch.count) - 1 if delivery.wanted is None else delivery.wanted
    head, rest = 0, wanted
    for _ in range(first):
        lowest = rest & -rest
        head |= lowest
        rest ^= lowest
    return (
        Delivery(delivery.batch, head, delivery.redelivered),
        Delivery(delivery.batch, rest, delivery.redelivered),
    )


def _shifted(delivery: Delivery, place: int) -> Delivery:
    batch = delivery.batch
    return Delivery(
        Batch(
            batch.base_offset | place << _SHIFT,
            batch.count,
            batch.format,
            batch.append_ms,
            batch.payload,
            batch.flags,
        ),
        delivery.wanted,
        delivery.redelivered,
    )


def _by_part(ranges: Sequence[Run]) -> dict[int, list[Run]]:
    found: dict[int, list[Run]] = {}
    for first, end in ranges:
        base = first & ~_WITHIN
        found.setdefault(first >> _SHIFT, []).append((first - base, end - base))
    return found


class WholeTopicQueues:
    """Implements `api.Queues` on top of queues with one log each."""

    def __init__(
        self,
        queues: Queues,
        exchanges: Exchanges,
        registry: Registry,
        broker: Broker,
        *,
        authoriser: Authoriser,
        clock: Clock,
    ) -> None:
        self.logs = queues
        self._exchanges = exchanges
        self.registry = registry
        self.broker = broker
        self.authoriser = authoriser
        self.clock = clock
        self._namespaces: dict[NamespaceName, WholeTopicNamespace] = {}

    async def open(self, namespace: NamespaceName) -> "WholeTopicNamespace":
        queues, exchanges = await self.logs.open(namespace), await self._exchanges.open(namespace)
        found = self._namespaces.get(namespace)
        if found is None or found.queues is not queues:
            found = self._namespaces[namespace] = WholeTopicNamespace(self, namespace, queues, exchanges)
        return found


class WholeTopicNamespace:
    """Implements `api.NamespaceQueues`."""

    def __init__(
        self,
        service: WholeTopicQueues,
        namespace: NamespaceName,
        queues: NamespaceQueues,
        exchanges: NamespaceExchanges,
    ) -> None:
        self._service = service
        self._namespace = namespace
        self.queues = queues
        self._exchanges = exchanges
        self._combined: dict[str, CombinedQueue] = {}

    def find(self, name: str) -> Queue | None:
        found = self.queues.find(name)
        if found is not None:
            return found
        combined = self._combined.get(name)
        if combined is None or combined.alive:
            return combined
        del self._combined[name]
        return None

    async def get(self, role: str, name: str, *, connection: str = "") -> Queue:
        if self.queues.find(name) is None:
            record = await self._record(name)
            if record is not None:
                self._service.authoriser.check_lookup(role, record.name)
                return await self._whole(name, record)
        return await self.queues.get(role, name, connection=connection)

    async def look(self, name: str) -> Queue:
        if self.queues.find(name) is None:
            record = await self._record(name)
            if record is not None:
                return await self._whole(name, record)
        return await self.queues.look(name)

    async def outline(self, name: str) -> QueueOutline | None:
        return await self.queues.outline(name)

    async def declare(self, role: str, wanted: QueueDeclaration, *, connection: str = "") -> Queue:
        record = await self._record(wanted.name) if wanted.name and self.queues.find(wanted.name) is None else None
        if record is None:
            return await self.queues.declare(role, wanted, connection=connection)
        self._check_configure(role, record.name)
        check_equivalent(QueueDeclaration(wanted.name), wanted, vhost_of(self._namespace))
        return await self._whole(wanted.name, record)

    async def delayed(self, exchange: str) -> Queue:
        return await self.queues.delayed(exchange)

    async def forget_delayed(self, exchange: str) -> None:
        await self.queues.forget_delayed(exchange)

    async def delete(
        self, role: str, name: str, *, if_unused: bool = False, if_empty: bool = False, connection: str = ""
    ) -> int:
        record = await self._record(name) if self.queues.find(name) is None else None
        if record is None:
            return await self.queues.delete(
                role, name, if_unused=if_unused, if_empty=if_empty, connection=connection
            )
        self._check_configure(role, record.name)
        counts = await (await self._whole(name, record)).counts()
        said = queue_in_vhost(name, vhost_of(self._namespace))
        if if_empty and counts.ready:
            raise QueueInUseError(f"{said} is not empty")
        if if_unused and counts.consumers:
            raise QueueInUseError(f"{said} in use")
        await self._exchanges.forget_queue(name)
        self._combined.pop(name, None)
        try:
            await self._service.broker.delete(record.name, force=True)
        except TopicNotFoundError:
            return 0
        return counts.ready

    async def release(self, connection: str) -> None:
        await self.queues.release(connection)

    async def names(self) -> Sequence[str]:
        return await self.queues.names()

    @property
    def limits(self) -> QueueLimits:
        return self.queues.limits

    def policies(self) -> Sequence[QueuePolicy]:
        return self.queues.policies()

    async def set_policy(self, role: str, policy: QueuePolicy) -> None:
        await self.queues.set_policy(role, policy)

    async def clear_policy(self, role: str, name: str, *, operator: bool = False) -> None:
        await self.queues.clear_policy(role, name, operator=operator)

    # --- partitions -------------------------------------------------------------------------------------------

    async def _record(self, name: str) -> TopicRecord | None:
        """The record of the partitioned topic of this name; None for other topics. The lookup also loads the
        record of a single partition's topic into memory for the following calls."""
        try:
            topic = TopicName.parse(f"persistent://{self._namespace}/{name}")
        except InvalidNameError:
            return None
        record = await self._service.registry.topics.look(topic)
        if record is None or topic.partition is not None or not record.partitions:
            return None
        return record

    async def _whole(self, name: str, record: TopicRecord) -> Queue:
        found = self._combined.get(name)
        if found is not None and found.alive and len(found.parts) == record.partitions:
            return found
        parts = [await self.queues.look(f"{name}-partition-{at}") for at in range(record.partitions)]
        combined = self._combined[name] = CombinedQueue(QueueDeclaration(name), parts, self._service.clock)
        return combined

    def _check_configure(self, role: str, topic: TopicName) -> None:
        for action in (Action.PRODUCE, Action.CONSUME):
            self._service.authoriser.check(role, action, topic)
