"""Log readers: what a reader by offset sees of a topic, which is the whole log or the compacted log.

Also converts offsets of a stream to positions (ledger, distance) and back.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from weir.broker.api.topics import AbortedTransaction, LogReader, Position, Topic
from weir.broker.filters.message_filter import masks_of
from weir.broker.log.producer_state_manager import ProducerStateManager
from weir.broker.rates import Meter
from weir.model.batch import Batch, BatchFlags
from weir.model.policies import Policies
from weir.model.subscriptions import MessageFilter
from weir.stream.compaction import CompactedView
from weir.stream.log import Stream

B = TypeVar("B", list[Batch], list[Batch] | None)


class Reads(NamedTuple):
    """Counts the reads of all readers of a topic; calls `note`, if set, with the batches of each read."""

    meter: Meter
    note: Callable[[Sequence[Batch]], None] | None = None


class _Cached(Protocol):
    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None: ...


class WholeLog:
    """The whole log. `cached`: reads batches that are in memory, if available; `reads`: counts the reads."""

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
    """The log after compaction."""

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
        """Compaction removed the aborted messages with their markers. A reader that knows an aborted transaction
        without its marker would treat all later messages of the producer as aborted, too."""
        return [found for found in self._topic.aborted(first, end) if found.last_offset >= self._view.horizon]


def reader_of(topic: Topic, stream: Stream, view: CompactedView, policies: Policies, reads: Reads) -> LogReader:
    """The reader that the current policies select. A compacted part of the log stays compacted until retention
    deletes it. `reads`: shared by all readers of the topic."""
    policy = policies.log_compaction
    compacts = (policy is not None and policy.cleanup.compacts) or view.compacted.own
    return CompactedLog(topic, view, reads) if compacts else WholeLog(topic, stream, reads)


def _counted(batches: B, reads: Reads | None) -> B:
    """Count the batches, and return them."""
    if batches and reads is not None:
        meter, note = reads
        meter.count(sum(batch.count for batch in batches), sum(len(batch.payload) for batch in batches))
        if note is not None:
            note(batches)
    return batches


def position_of(stream: Stream, offset: int) -> tuple[int, int]:
    """Position of the offset; for the end offset, the position of the next message, or (-1, -1)."""
    found = stream.position_of(offset)
    if found is not None:
        return found
    spans = stream.chain.spans
    if spans and offset >= stream.end_offset:
        return spans[-1].ledger_id, stream.end_offset - spans[-1].first_offset
    return (-1, -1)


def offset_of(stream: Stream, ledger: int, entry: int) -> int:
    """The offset at the position, or the nearest existing one: see `api.Topic.offset_of`."""
    start, end = stream.start_offset, stream.end_offset
    if ledger < 0:
        return start
    for span in stream.chain.spans:
        if span.ledger_id == ledger:
            last = end if span.end_offset is None else span.end_offset
            return max(start, min(span.first_offset + max(entry, 0), last))
        if span.ledger_id > ledger:  # an empty or trimmed ledger before this one
            return max(start, span.first_offset)
    return end


async def last_position(stream: Stream, producer_state: ProducerStateManager) -> Position:
    """Position of the last message that consumers see, with its index in its batch. Skips lost messages: a reader
    that reads up to the last position would wait for them forever."""
    end = producer_state.stable_offset
    while True:
        last = producer_state.index.last_visible(stream.start_offset, end)
        if last is None:
            return Position(-1, -1)
        batch = (await stream.read(last, 1))[0]
        if not batch.flags & BatchFlags.LOST:
            break
        end = batch.base_offset
    ledger, entry = position_of(stream, batch.base_offset)
    return Position(ledger, entry, batch.count - 1 if batch.count > 1 else -1)
