"""What a reader by offset sees of a topic: the whole log, or of a topic that compacts itself what that left."""

from typing import Protocol

from weir.broker.api import AbortedTransaction, Topic
from weir.broker.topic.topic import BrokerTopic
from weir.model.batch import Batch


class Readable(Protocol):
    @property
    def start_offset(self) -> int:
        """The first offset that may be asked for; messages after it may be missing."""

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        """What `read` would answer, if that can be told without waiting."""

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        """Batches from the one that holds `offset` on, or from the first after it; none only at the end."""

    async def offset_at(self, moment_ms: int) -> int:
        """The first offset appended at or after the moment, and still there; the end if there is none."""

    def visible(self, batch: Batch) -> int | None:
        """The messages of a batch that are still there, as bits; None for all of them."""

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """Aborted transactions of which [first, end) may hold messages."""


class WholeLog:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    @property
    def start_offset(self) -> int:
        return self._topic.start_offset

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        topic = self._topic
        return topic.stream.read_cached(offset, max_bytes) if isinstance(topic, BrokerTopic) else None

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return await self._topic.read(offset, max_bytes)

    async def offset_at(self, moment_ms: int) -> int:
        return await self._topic.offset_at(moment_ms)

    def visible(self, batch: Batch) -> int | None:
        return None

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        return self._topic.aborted(first, end)


class CompactedLog:
    def __init__(self, topic: BrokerTopic) -> None:
        self._topic = topic
        self._view = topic.view

    @property
    def start_offset(self) -> int:
        return self._view.start_offset

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        return self._view.read_cached(offset, max_bytes)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return await self._view.read(offset, max_bytes)

    async def offset_at(self, moment_ms: int) -> int:
        return await self._view.offset_at(moment_ms)

    def visible(self, batch: Batch) -> int | None:
        return self._view.visible(batch)

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """Compaction took the aborted messages with their markers. A reader that was told of a transaction whose
        marker never comes would take all that its producer sent later for aborted, too."""
        return [found for found in self._topic.aborted(first, end) if found.last_offset >= self._view.horizon]


def readable(topic: Topic) -> Readable:
    """Cheap: ask for each read, since a topic's policies may change."""
    return CompactedLog(topic) if isinstance(topic, BrokerTopic) and topic.compacts_itself else WholeLog(topic)
