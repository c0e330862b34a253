"""What a reader by offset sees of a topic: the whole log, or of a topic that compacts itself what that left."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from weir.broker.api import AbortedTransaction, LogReader, Topic
from weir.broker.filters.masks import masks_of
from weir.broker.topic.meters import Meter
from weir.model.batch import Batch
from weir.model.filters import MessageFilter
from weir.model.policies import Policies
from weir.stream.compaction import CompactedView
from weir.stream.log import Stream

B = TypeVar("B", list[Batch], list[Batch] | None)


class Reads(NamedTuple):
    """Of all readers of a topic: counts what is read, and hears of it where somebody wants to."""

    meter: Meter
    note: Callable[[Sequence[Batch]], None] | None = None


class _Cached(Protocol):
    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None: ...


class WholeLog:
    """All that is stored. `cached`: what of it is in memory, where anything is; `reads`: counts what is read."""

    whole = True

    def __init__(self, topic: Topic, cached: _Cached | None = None, reads: Reads | None = None) -> None:
        self._topic = topic
        self._cached = cached
        self._reads = reads

    @property
    def start_offset(self) -> int:
        return self._topic.start_offset

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        return None if self._cached is None else _counted(self._cached.read_cached(offset, max_bytes), self._reads)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return _counted(await self._topic.read(offset, max_bytes), self._reads)

    async def offset_at(self, moment_ms: int) -> int:
        return await self._topic.offset_at(moment_ms)

    def visible(self, batch: Batch) -> int | None:
        return None

    def passing(self, wanted: MessageFilter) -> Callable[[Batch], int | None]:
        return masks_of(wanted)

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        return self._topic.aborted(first, end)


class CompactedLog:
    """What compaction left."""

    whole = False

    def __init__(self, topic: Topic, view: CompactedView, reads: Reads | None = None) -> None:
        self._topic = topic
        self._view = view
        self._reads = reads

    @property
    def start_offset(self) -> int:
        return self._view.start_offset

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        return _counted(self._view.read_cached(offset, max_bytes), self._reads)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return _counted(await self._view.read(offset, max_bytes), self._reads)

    async def offset_at(self, moment_ms: int) -> int:
        return await self._view.offset_at(moment_ms)

    def visible(self, batch: Batch) -> int | None:
        return self._view.visible(batch)

    def passing(self, wanted: MessageFilter) -> Callable[[Batch], int | None]:
        return masks_of(wanted)

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """Compaction took the aborted messages with their markers. A reader that was told of a transaction whose
        marker never comes would take all that its producer sent later for aborted, too."""
        return [found for found in self._topic.aborted(first, end) if found.last_offset >= self._view.horizon]


def reader_of(topic: Topic, stream: Stream, view: CompactedView, policies: Policies, reads: Reads) -> LogReader:
    """By the policies as they are now. What was compacted once stays so until retention has taken it. `reads`: all
    readers of the topic are counted there."""
    policy = policies.log_compaction
    compacts = (policy is not None and policy.cleanup.compacts) or view.compacted.own
    return CompactedLog(topic, view, reads) if compacts else WholeLog(topic, stream, reads)


def _counted(batches: B, reads: Reads | None) -> B:
    """What was read, once it is counted."""
    if batches and reads is not None:
        meter, note = reads
        meter.count(sum(batch.count for batch in batches), sum(len(batch.payload) for batch in batches))
        if note is not None:
            note(batches)
    return batches
