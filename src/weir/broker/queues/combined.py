"""A topic with partitions as one queue: consumers get what any partition has, publishers put it into each in turn.

Order is that of each partition. An offset says its partition in its upper bits, so that what is settled finds it.
"""

import asyncio
from collections.abc import Sequence

from weir.broker.api import ConsumeRequest, Delivery, Queue, QueueConsumer, QueueCounts, QueueMessages
from weir.model.batch import Batch
from weir.model.bits import Run
from weir.model.queues import QueueDeclaration, QueuePolicy, QueueRules
from weir.runtime.byte_budget import ByteShare
from weir.runtime.interfaces import Clock

#: Bits of an offset within its partition.
_SHIFT = 46
_WITHIN = (1 << _SHIFT) - 1


class CombinedQueue:
    """Fills `api.Queue`. Dies with any of its parts: then all are looked for anew."""

    def __init__(self, declaration: QueueDeclaration, parts: Sequence[Queue], clock: Clock) -> None:
        self.declaration = declaration
        #: It is everybody's.
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
        """Its consumers are consumers of every part."""
        counts = [await part.counts(use=use) for part in self.parts]
        return QueueCounts(
            sum(one.ready for one in counts),
            sum(one.unacked for one in counts),
            max(one.consumers for one in counts),
        )

    def publish(self, messages: QueueMessages) -> "asyncio.Future[int]":
        if messages.stamp is not None:  # what comes again comes to the same one, which knows it
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
                joined.append(await part.consume(request, share=share))  # noqa: PERF401 - those that are there are closed
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
    """Fills `api.QueueConsumer`. `parts`: one of each partition, in their order."""

    def __init__(self, parts: Sequence[QueueConsumer], clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._turn = 0
        #: What came beyond the credit, since several parts answered at once.
        self._inbox: list[Delivery] = []

    async def next(self, credit: int) -> list[Delivery]:
        """Parts are asked in turn. Of those that are asked together, and answer together, all is taken."""
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
        """Put what the parts gave into the inbox, where it is safe from whoever cancels; why one failed."""
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
        """With the first of its parts."""
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
    """The first so many messages of a delivery, and the rest."""
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
