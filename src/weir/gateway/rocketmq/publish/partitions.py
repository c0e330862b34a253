"""A topic as one connection sends to it: a producer for each of its partitions that this broker has."""

from typing import TYPE_CHECKING
from zlib import crc32

from weir.broker.api import Producer, ProducerRequest, Topic
from weir.gateway.rocketmq.errors import Refused
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.wire.rocketmq.proto import api

if TYPE_CHECKING:
    from weir.gateway.rocketmq.connection.session import Session


class PublishedTopic:
    """`open` it before it is used, and again when it is not `ready` any more."""

    def __init__(self, session: "Session", role: str, name: TopicName) -> None:
        self._session = session
        self._role = role
        self.name = name
        self.count = 0
        self._topics: dict[int, Topic] = {}
        self._producers: dict[int, Producer] = {}
        self._turn = 0
        self._revision = -1

    @property
    def ready(self) -> bool:
        return bool(self._producers) and all(topic.alive for topic in self._topics.values())

    async def open(self) -> None:
        if self.ready:
            return
        broker = self._session.services.broker
        await self.close()
        partitions = await broker.partitions(self.name, role=self._role)
        self.count = max(1, partitions)
        elsewhere: WeirError | None = None
        for number in range(self.count):
            name = self.name.at(number) if partitions else self.name
            if partitions and not (await broker.owner(name, role=self._role)).here:
                continue
            try:
                topic = await broker.topic(name, role=self._role)
                request = ProducerRequest(self._role, address=self._session.peer)
                self._producers[number] = await topic.produce(request)
                self._topics[number] = topic
            except WeirError as refused:
                elsewhere = refused
        if not self._producers:
            raise elsewhere or Refused(api.Code.HA_NOT_AVAILABLE, "no queue of the topic is served here")

    def next(self) -> tuple[int, Producer]:
        """The partition whose turn it is, of those that this broker has."""
        numbers = list(self._producers)
        self._turn += 1
        number = numbers[self._turn % len(numbers)]
        return number, self._producers[number]

    def of_group(self, group: str) -> tuple[int, Producer]:
        """The one partition of a message group: the same whoever sends."""
        number = crc32(group.encode()) % self.count
        producer = self._producers.get(number)
        if producer is None:
            raise Refused(
                api.Code.HA_NOT_AVAILABLE, f"queue {number} of the message group is served by another broker"
            )
        return number, producer

    def topic(self, number: int) -> Topic | None:
        return self._topics.get(number)

    async def close(self) -> None:
        producers, self._producers, self._topics = self._producers, {}, {}
        for producer in producers.values():
            await producer.close()
