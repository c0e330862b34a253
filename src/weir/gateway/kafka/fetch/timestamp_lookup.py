"""Lookup of offsets by timestamp, by the records' own times.

Producers may send any timestamps in any order, so the times of a topic need not increase. A sparse index in memory
has the latest time in each stretch of the log. The first lookup builds it, and later ones extend it. A lookup
reads one stretch.
"""

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncIterator
from itertools import pairwise

from weir.broker.api.topics import Topic
from weir.model.batch import Batch, BatchFlags, BatchFormat
from weir.model.errors import WireError
from weir.model.ids import value
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.wire.formats.table import messages_of
from weir.wire.kafka.record_batch import parse_header
from weir.wire.kafka.records import iter_records

_READ_BYTES = 1024 * 1024
#: Stretches per topic; above this, each two merge into one.
_MAX_STRETCHES = 2048
_FIRST_STRETCH_BYTES = 1024 * 1024
#: Attempts to find the latest record, if compaction or trimming removed the candidates.
_MOST_LOOKS = 100
#: Topics with an index in memory.
_MAX_TOPICS = 1000


@value
class Moment:
    """A record's offset and timestamp."""

    offset: int
    time_ms: int


class Moments:
    """The time indexes of topics, least recently used first."""

    def __init__(self) -> None:
        self._topics: OrderedDict[TopicName, TopicMoments] = OrderedDict()

    def of(self, topic: Topic, clock: Clock) -> "TopicMoments":
        found = self._topics.get(topic.name)
        if found is None or found.topic is not topic:
            found = self._topics[topic.name] = TopicMoments(topic, clock)
            if len(self._topics) > _MAX_TOPICS:
                self._topics.popitem(last=False)
        self._topics.move_to_end(topic.name)
        return found


class TopicMoments:
    """The time index of one loaded topic."""

    def __init__(self, topic: Topic, clock: Clock) -> None:
        self.topic = topic
        self._clock = clock
        #: The first offset of each stretch, and the latest time in it (-1: none).
        self._starts: list[int] = []
        self._latest: list[int] = []
        self._end = 0
        self._stretch_bytes = _FIRST_STRETCH_BYTES
        self._filled_bytes = 0
        self._scan: asyncio.Task[None] | None = None

    async def first_at(self, moment_ms: int) -> Moment | None:
        """The first record with this timestamp or a later one."""
        await self._catch_up()
        self._forget_trimmed()
        latest, so_far = [], -1
        for time_ms in self._latest:
            so_far = max(so_far, time_ms)
            latest.append(so_far)
        at = bisect_left(latest, moment_ms)
        while at < len(self._starts):
            end = self._starts[at + 1] if at + 1 < len(self._starts) else self._end
            found = await self._first_in(self._starts[at], end, moment_ms)
            if found is not None:
                return found
            at += 1  # compacted or trimmed away meanwhile
        return None

    async def latest(self) -> Moment | None:
        """The record with the latest timestamp; the first of several."""
        await self._catch_up()
        self._forget_trimmed()
        for _ in range(_MOST_LOOKS):
            most = max(self._latest, default=-1)
            found = None if most < 0 else await self.first_at(most)
            if found is not None or most < 0:
                return found
            await self._look_again(most)
        return None

    # --- the index --------------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        """Read on to the end of the topic; callers at the same time share one scan."""
        while self._end < self.topic.end_offset:
            if self._scan is None or self._scan.done():
                self._scan = asyncio.get_running_loop().create_task(self._read_on(), name="scan for times")
                self._scan.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.shield(self._scan)

    async def _read_on(self) -> None:
        log, end = self.topic.reader(), self.topic.end_offset
        offset = max(self._end, log.start_offset)
        while offset < end:
            found = await log.read(offset, _READ_BYTES)
            if not found:
                break
            for batch in found:
                if batch.end_offset > offset:
                    self._note(batch)
                    offset = batch.end_offset
            await self._clock.sleep(0)  # yield: reads of cached batches never wait
        self._end = max(self._end, end)

    def _note(self, batch: Batch) -> None:
        if not self._starts or self._filled_bytes >= self._stretch_bytes:
            if len(self._starts) >= _MAX_STRETCHES:
                self._merge()
            self._starts.append(batch.base_offset)
            self._latest.append(-1)
            self._filled_bytes = 0
        self._latest[-1] = max(self._latest[-1], _latest_of(batch))
        self._filled_bytes += len(batch.payload)
        self._end = batch.end_offset

    def _merge(self) -> None:
        self._starts = self._starts[::2]
        pairs = zip(self._latest[::2], [*self._latest[1::2], -1], strict=False)
        self._latest = [max(pair) for pair in pairs]
        self._stretch_bytes *= 2

    def _forget_trimmed(self) -> None:
        start = self.topic.reader().start_offset
        gone = sum(1 for _, after in pairwise(self._starts) if after <= start)
        if gone:
            del self._starts[:gone], self._latest[:gone]

    async def _look_again(self, most: int) -> None:
        """Correct stretches whose latest record was compacted or trimmed away."""
        for start, end, was in list(zip(self._starts, [*self._starts[1:], self._end], self._latest, strict=True)):
            if was < most:
                continue
            latest, first = -1, self.topic.reader().start_offset
            async for batch, wanted in self._batches(start, end):
                times = [time_ms for offset, time_ms in _times(batch, wanted) if offset >= first]
                latest = max([latest, *times])
            at = bisect_left(self._starts, start)
            if self._starts[at : at + 1] == [start] and self._ends(at) == end:  # the stretch has not changed
                self._latest[at] = min(latest, most - 1)

    def _ends(self, at: int) -> int:
        return self._starts[at + 1] if at + 1 < len(self._starts) else self._end

    async def _first_in(self, start: int, end: int, moment_ms: int) -> Moment | None:
        first = max(start, self.topic.reader().start_offset)
        async for batch, wanted in self._batches(start, end):
            if _latest_of(batch) >= moment_ms:
                hit = _first_record(batch, wanted, moment_ms, first)
                if hit is not None:
                    return hit
        return None

    async def _batches(self, start: int, end: int) -> AsyncIterator[tuple[Batch, int | None]]:
        """The batches of a stretch, each with the mask of messages that compaction retained."""
        log = self.topic.reader()
        offset = max(start, log.start_offset)
        while offset < end:
            found = await log.read(offset, _READ_BYTES)
            if not found:
                return
            for batch in found:
                offset = max(offset, batch.end_offset)
                if batch.base_offset < end:
                    yield batch, log.visible(batch)


def _latest_of(batch: Batch) -> int:
    """The latest timestamp in a batch; -1 for a batch without visible records, such as a marker."""
    if batch.flags & BatchFlags.UNSEEN:
        return -1
    if batch.format is BatchFormat.KAFKA:
        try:
            return parse_header(batch.payload).max_timestamp
        except WireError:
            return batch.append_ms
    return max(time_ms for _, time_ms in _times(batch))


def _first_record(batch: Batch, wanted: int | None, moment_ms: int, start: int) -> Moment | None:
    for offset, time_ms in _times(batch, wanted):
        if time_ms >= moment_ms and offset >= start:
            return Moment(offset, time_ms)
    return None


def _times(batch: Batch, wanted: int | None = None) -> list[tuple[int, int]]:
    """Offset and time of each message, or of those in `wanted`, a bit mask."""
    base = batch.base_offset
    if batch.flags & BatchFlags.UNSEEN:
        return []
    if batch.format is BatchFormat.KAFKA:
        try:
            found = [(base + record.offset_delta, record.timestamp) for record in iter_records(batch.payload)]
        except WireError:
            return [(base, batch.append_ms)]  # its records cannot be decoded
    else:
        found = [
            (base + index, message.publish_ms if message.event_ms is None else message.event_ms)
            for index, message in enumerate(messages_of(batch))
        ]
        if len(found) != batch.count:
            wanted = None  # the one message stands for all of them
    if wanted is None:
        return found
    return [(offset, time_ms) for offset, time_ms in found if wanted >> (offset - base) & 1]
