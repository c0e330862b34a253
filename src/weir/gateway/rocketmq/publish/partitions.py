"""A topic as one connection sends to it: a producer for each of its partitions that this broker has."""

import asyncio
from typing import TYPE_CHECKING

from weir.broker.api import Producer, ProducerRequest, Topic
from weir.gateway.rocketmq.errors import MOVED
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.wire.rocketmq.message_groups import queue_of

if TYPE_CHECKING:
    from weir.gateway.rocketmq.connection.session import Session


class PublishedTopic:
    """`open` it before it is used, and again when it is not `ready` any more. It may be that none of its
    partitions is here."""

    def __init__(self, session: "Session", role: str, name: TopicName) -> None:
        self._session = session
        self._role = role
        self.name = name
        self.count = 0
        self._partitioned = False
        self._topics: dict[int, Topic] = {}
        self._producers: dict[int, Producer] = {}
        self._turn = 0
        self._opening = asyncio.Lock()

    @property
    def ready(self) -> bool:
        return bool(self._producers) and all(map(self._is_usable, self._topics))

    def _is_usable(self, number: int) -> bool:
        """Not if the topic has gone elsewhere, or a failed write has closed the producer."""
        return self._topics[number].alive and self._producers[number].open

    async def open(self) -> None:
        """A producer for each partition that is here and has none yet. TopicNotFoundError, NotAuthorisedError."""
        async with self._opening:
            for number in [number for number in self._topics if not self._is_usable(number)]:
                del self._topics[number]
                await self._producers.pop(number).close()
            broker = self._session.services.broker
            partitions = await broker.partitions(self.name, role=self._role)
            self.count, self._partitioned = max(1, partitions), partitions > 0
            failed: WeirError | None = None
            for number in range(self.count):
                if number in self._producers or not (await broker.owner(self.part(number), role=self._role)).here:
                    continue
                try:
                    await self._open(number)
                except MOVED:
                    continue  # it is looked for where it goes
                except WeirError as refused:
                    failed = refused
            if failed is not None and not self._producers:
                raise failed

    async def _open(self, number: int) -> None:
        topic = await self._session.services.broker.topic(self.part(number), role=self._role)
        request = ProducerRequest(self._role, address=self._session.peer)
        self._producers[number] = await topic.produce(request)
        self._topics[number] = topic

    def part(self, number: int) -> TopicName:
        return self.name.at(number) if self._partitioned else self.name

    def next(self) -> tuple[int, Producer | None]:
        """The partition whose turn it is, of those that this broker has; None if it has none."""
        self._turn += 1
        numbers = list(self._producers)
        if not numbers:
            return self._turn % self.count, None
        number = numbers[self._turn % len(numbers)]
        return number, self._producers[number]

    def of_group(self, group: str) -> tuple[int, Producer | None]:
        """The one partition of a message group, the same whoever sends; None if another broker has it."""
        number = queue_of(group, self.count)
        return number, self._producers.get(number)

    def producer(self, number: int) -> Producer | None:
        return self._producers.get(number)

    async def close(self) -> None:
        producers, self._producers, self._topics = self._producers, {}, {}
        for producer in producers.values():
            await producer.close()
