"""Consumers of queues that this broker has."""

from collections.abc import Sequence
from typing import Protocol

from weir.broker.api import Delivery
from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.subscription import Subscription
from weir.model.errors import ConsumerClosedError


class ConsumedQueue(Protocol):
    """What a consumer asks of its queue."""

    async def accepted(self) -> None:
        """Wait until all that was published before can be seen."""

    async def shortened(self) -> None:
        """Wait until what was published before and exceeds the limits on length is dropped."""

    def taking(self) -> None:
        """A message is asked for."""

    def consumer_left(self) -> None:
        """It counts as consumer no more, because its client said so."""

    def reject(
        self, subscription: Subscription, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Not wanted by anybody."""


class LocalConsumer:
    """Fills `api.QueueConsumer`."""

    def __init__(self, queue: ConsumedQueue, subscription: Subscription, consumer: BrokerConsumer) -> None:
        self._queue = queue
        self._subscription = subscription
        self._consumer = consumer
        self._counts = consumer.request.counted

    @property
    def unacked(self) -> int:
        return self._consumer.unacked

    async def next(self, credit: int) -> list[Delivery]:
        return await self._consumer.next(credit)

    async def take(self) -> Delivery | None:
        consumer = self._consumer
        self._queue.taking()
        await self._queue.accepted()
        await self._queue.shortened()
        while True:
            dispatcher = self._subscription.per_message() if consumer.open else None
            if dispatcher is None or not dispatcher.has(consumer):
                raise ConsumerClosedError("the consumer is closed")
            found = dispatcher.take(consumer)
            if isinstance(found, Delivery):
                consumer.count_taken(found)
                return found
            if not found:
                return None
            await dispatcher.looked.wait()

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        if self._consumer.open:
            self._consumer.ack(ranges)

    def requeue(self, ranges: Sequence[tuple[int, int]]) -> None:
        if self._consumer.open:
            self._consumer.redeliver(ranges)

    def reject(self, ranges: Sequence[tuple[int, int]]) -> None:
        if self._consumer.open:
            self._queue.reject(self._subscription, self._consumer, ranges)

    async def persisted(self) -> None:
        """Wait until everything acknowledged so far survives a crash. ConsumerClosedError: that is not known."""
        if not self._consumer.open:
            raise ConsumerClosedError("the consumer is closed")
        await self._subscription.persisted()

    def retire(self) -> None:
        dispatcher = self._subscription.per_message()
        if self._consumer.open and not self._consumer.retired and dispatcher is not None:
            dispatcher.retire(self._consumer)
            self._left()

    async def closed(self) -> str:
        return await self._consumer.closed()

    async def close(self) -> None:
        was_open = self._consumer.open
        await self._consumer.close()
        if was_open:
            self._left()

    def _left(self) -> None:
        if self._counts:
            self._counts = False
            self._queue.consumer_left()


class StreamConsumer(LocalConsumer):
    """Of a stream: nothing is taken away. Whatever becomes of a message, it only gives credit."""

    def requeue(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.ack(ranges)

    def reject(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.ack(ranges)
