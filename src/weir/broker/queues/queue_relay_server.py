"""Server side of the queue relay: this broker's queues for the clients of other brokers.

The consumers of another broker end with it: when it stops sending requests or its registration ends, this broker
closes them and requeues their messages.
"""

import asyncio
from collections.abc import Callable
from itertools import accumulate, pairwise

from weir.broker.api.consumers import Delivery
from weir.broker.api.queues import ConsumeRequest, Queue, QueueConsumer, QueueMessages, Queues
from weir.broker.peers.peer_calls import PeerHandlers
from weir.model.batch import Stamp
from weir.model.errors import ConsumerClosedError, PeerFailedError, ReadStuckError
from weir.model.subscriptions import MessageFilter
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.exchanges import decode_argument
from weir.wire.peer import queue_calls as wire
from weir.wire.peer.calls import Done

#: Longest time without a request before a broker counts as gone.
SILENT_S = 30.0
_SWEEP_S = 5.0
#: Most payload bytes of one response.
_ANSWER_BYTES = 1024 * 1024


class _Relayed:
    """A relayed consumer: buffers its deliveries up to the granted credit."""

    def __init__(self, number: int, consumer: QueueConsumer, said: Callable[[], None], tasks: TaskScope) -> None:
        self._number = number
        self.consumer = consumer
        self._said = said
        self._credit = 0
        self._more = asyncio.Event()
        self.ready: list[Delivery] = []
        self.closed: str | None = None
        #: Why the next entry is unreadable, until the next response reports it.
        self.stuck: str | None = None
        self._pump = tasks.spawn(self._run(), "relayed consumer")
        self._watch = tasks.spawn(self._watch_end(), "end of a relayed consumer")

    @property
    def has_news(self) -> bool:
        return bool(self.ready) or self.closed is not None or self.stuck is not None

    def give(self, credit: int) -> None:
        if credit > 0:
            self._credit += credit
            self._more.set()

    async def _run(self) -> None:
        try:
            while True:
                while self._credit <= 0:
                    self._more.clear()
                    await self._more.wait()
                try:
                    found = await self.consumer.next(self._credit)
                except ReadStuckError as failure:  # report it and keep reading
                    self.stuck = failure.what
                    self._said()
                    continue
                self._credit -= sum(_messages(one) for one in found)
                self.ready += found
                self._said()
        except ConsumerClosedError:
            return

    async def _watch_end(self) -> None:
        self.closed = await self.consumer.closed()
        self._said()

    def settle(self, settled: wire.Settled) -> None:
        for ranges, does in (
            (settled.acked, self.consumer.ack),
            (settled.requeued, self.consumer.requeue),
            (settled.rejected, self.consumer.reject),
        ):
            if ranges:
                does(_ranges(ranges))
        self.give(settled.credit)

    def retire(self) -> None:
        self._pump.cancel()
        self.consumer.retire()

    async def close(self) -> None:
        self._pump.cancel()
        self._watch.cancel()
        await self.consumer.close()


class _Asker:
    """Another broker and its consumers here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.consumers: dict[int, _Relayed] = {}
        self.heard_at = clock.monotonic()
        self.waiting = 0
        self._something = asyncio.Event()

    def said(self) -> None:
        self._something.set()

    def heard(self) -> None:
        self.heard_at = self._clock.monotonic()

    async def deliveries(self, wait_s: float) -> wire.Deliveries:
        self.waiting += 1
        try:
            self._something.clear()
            if self.consumers and not any(one.has_news for one in self.consumers.values()):
                async with asyncio.timeout(wait_s):
                    await self._something.wait()
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1
            self.heard()
        return self._taken()

    def _taken(self) -> wire.Deliveries:
        room = _ANSWER_BYTES
        found: list[wire.RelayedDelivery] = []
        closed: dict[int, str] = {}
        stuck: dict[int, str] = {}
        for number, one in list(self.consumers.items()):
            taken = 0
            while taken < len(one.ready) and room > 0:
                delivery = one.ready[taken]
                found.append(_relayed(number, delivery))
                room -= len(delivery.batch.payload)
                taken += 1
            del one.ready[:taken]
            if one.stuck is not None:
                stuck[number], one.stuck = one.stuck, None
            if one.closed is not None and not one.ready:
                closed[number] = one.closed
                del self.consumers[number]
        return wire.Deliveries(tuple(found), closed, stuck)


class RelayedQueues:
    """Answers requests of other brokers. `lives`: whether a broker of this id is registered."""

    def __init__(self, clock: Clock, queues: Queues, handlers: PeerHandlers, lives: Callable[[str], bool]) -> None:
        self._clock = clock
        self._queues = queues
        self._lives = lives
        self._askers: dict[str, _Asker] = {}
        self._tasks = TaskScope("relayed queues")
        self._sweeping = False
        handlers.on(wire.PublishToQueue, self._publish)
        handlers.on(wire.CountQueue, self._count)
        handlers.on(wire.PurgeQueue, self._purge)
        handlers.on(wire.DeleteQueue, self._delete)
        handlers.on(wire.ConsumeQueue, self._consume)
        handlers.on(wire.SettleQueues, self._settle)
        handlers.on(wire.TakeOne, self._take)
        handlers.on(wire.AwaitDeliveries, self._await)

    async def close(self) -> None:
        await self._tasks.close()

    # --- queues -------------------------------------------------------------------------------------------

    async def _publish(self, request: wire.PublishToQueue) -> wire.Refused:
        at = request.queue
        view = memoryview(request.encoded)
        if sum(request.sizes) != len(view) or any(size < 0 for size in request.sizes):
            raise PeerFailedError("messages and their sizes do not agree")
        cuts = [0, *accumulate(request.sizes)]
        namespace = await self._queues.open(at.namespace)
        queue = namespace.find(at.name)
        if queue is None or not queue.alive:
            queue = await namespace.look(at.name)
        refused = await queue.publish(
            QueueMessages(
                [view[first:end] for first, end in pairwise(cuts)],
                request.persistent,
                request.deliver_at_ms,
                request.expirations_ms,
                Stamp(*request.stamp) if request.stamp else None,
                request.kept,
            )
        )
        return wire.Refused(tuple(place for place in range(len(request.sizes)) if refused >> place & 1))

    async def _count(self, request: wire.CountQueue) -> wire.QueueNumbers:
        counts = await (await self._at(request.queue)).counts(use=request.use)
        return wire.QueueNumbers(counts.ready, counts.unacked, counts.consumers)

    async def _purge(self, request: wire.PurgeQueue) -> wire.MessageCount:
        return wire.MessageCount(await (await self._at(request.queue)).purge())

    async def _delete(self, request: wire.DeleteQueue) -> wire.MessageCount:
        at = request.queue
        namespace = await self._queues.open(at.namespace)
        return wire.MessageCount(
            await namespace.delete(
                request.role,
                at.name,
                if_unused=request.if_unused,
                if_empty=request.if_empty,
                connection=request.connection,
            )
        )

    async def _at(self, at: wire.QueueAt) -> Queue:
        namespace = await self._queues.open(at.namespace)
        return await namespace.look(at.name)

    # --- consumers ----------------------------------------------------------------------------------------

    async def _consume(self, request: wire.ConsumeQueue) -> wire.Consuming:
        queue = await self._at(request.queue)
        if request.getter:
            consumer = await queue.getter(request.role)
        else:
            consumer = await queue.consume(
                ConsumeRequest(
                    request.role,
                    request.tag,
                    request.exclusive,
                    request.priority,
                    request.no_ack,
                    request.prefetch,
                    request.address,
                    stream_offset=decode_argument(request.stream_offset) if request.stream_offset else None,
                    filter=MessageFilter(request.filter_sql, request.filter_tags) or None,
                )
            )
        asker = self._askers.setdefault(request.asker, _Asker(self._clock))
        if not self._sweeping:
            self._sweeping = True
            self._tasks.spawn(self._sweep(), "sweep")
        asker.heard()
        asker.consumers[request.number] = _Relayed(request.number, consumer, asker.said, self._tasks)
        return wire.Consuming()

    async def _settle(self, request: wire.SettleQueues) -> Done:
        asker = self._askers.get(request.asker)
        if asker is None:
            return Done()
        asker.heard()
        closing: list[_Relayed] = []
        for settled in request.settled:  # without a pause, to keep the client's order
            one = asker.consumers.get(settled.number)
            if one is None:
                continue
            one.settle(settled)
            if settled.ends == "retire":
                one.retire()
            elif settled.ends:
                del asker.consumers[settled.number]
                closing.append(one)
        if not asker.consumers:
            asker.said()  # no more deliveries will follow
        for one in closing:
            await one.close()
        return Done()

    async def _take(self, request: wire.TakeOne) -> wire.Deliveries:
        asker = self._askers.get(request.asker)
        one = None if asker is None else asker.consumers.get(request.number)
        if asker is None or one is None:
            raise ConsumerClosedError("the consumer is closed: its broker was silent for too long")
        asker.heard()
        found = await one.consumer.take()
        return wire.Deliveries(() if found is None else (_relayed(request.number, found),))

    async def _await(self, request: wire.AwaitDeliveries) -> wire.Deliveries:
        asker = self._askers.get(request.asker)
        if asker is None:
            raise ConsumerClosedError("the consumers are closed: their broker was silent for too long")
        asker.heard()
        return await asker.deliveries(request.wait_ms / 1000)

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(_SWEEP_S)
            now = self._clock.monotonic()
            for name, asker in list(self._askers.items()):
                silent = not asker.waiting and now - asker.heard_at > SILENT_S
                if silent or not self._lives(name.rpartition("/")[0]):
                    del self._askers[name]
                    for one in asker.consumers.values():
                        await one.close()


def _messages(delivery: Delivery) -> int:
    return delivery.batch.count if delivery.wanted is None else delivery.wanted.bit_count()


def _ranges(numbers: tuple[int, ...]) -> list[tuple[int, int]]:
    if len(numbers) % 2:
        raise PeerFailedError("a range has two ends")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _relayed(number: int, delivery: Delivery) -> wire.RelayedDelivery:
    batch, wanted = delivery.batch, delivery.wanted
    places = () if wanted is None else tuple(place for place in range(batch.count) if wanted >> place & 1)
    return wire.RelayedDelivery(
        number,
        batch.base_offset,
        batch.count,
        batch.format,
        batch.append_ms,
        bytes(batch.payload),
        places,
        delivery.redelivered,
    )
