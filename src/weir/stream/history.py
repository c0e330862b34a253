"""Reads of a stream's older batches, from its ledgers or from their copies in the lake.

Entries of a ledger have batches of different sizes, so a read bisects over entries to find the entry of an offset.
Each entry that is read narrows later searches, and a sequential reader never searches.

Entries that are damaged in all copies are gaps. Offsets stay dense: readers get stand-ins for a gap, batches
without messages for consumers, so cursors, fetches and compactions pass it like a transaction marker.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from weir.ledger.client import LedgerClient
from weir.ledger.losses import Losses
from weir.ledger.reader import LedgerReader
from weir.model.batch import Batch, BatchFlags, BatchFormat
from weir.model.diagnosis import SALVAGED
from weir.model.errors import EntryLostError
from weir.model.ids import EntryId, LedgerId
from weir.model.stream import Chain, Segment, SegmentStore, Span
from weir.stream.segments import SegmentReads
from weir.wire.batch import MAX_COUNT, decode_batch

#: Known positions per ledger; with these, a search in a full ledger needs only a few reads.
_KEPT = 1024

Probe = Callable[[int], Awaitable[Batch]]


class Places:
    """Known (offset, entry) pairs of one ledger: the entry's first offset."""

    def __init__(self, first_offset: int) -> None:
        self._known: list[tuple[int, int]] = [(first_offset, 0)]

    def learn(self, offset: int, entry: int) -> None:
        """Record that `entry` begins at `offset`."""
        at = bisect_right(self._known, (offset, entry))
        if self._known[at - 1] != (offset, entry):
            insort(self._known, (offset, entry))
            if len(self._known) > _KEPT:
                del self._known[1::2]

    def around(self, offset: int, end_entry: int) -> tuple[int, int]:
        """The range [low, high) of entries that may have the offset."""
        at = bisect_right(self._known, offset, key=lambda pair: pair[0])
        if at and self._known[at - 1][0] == offset:  # a sequential reader
            return self._known[at - 1][1], self._known[at - 1][1] + 1
        low = self._known[at - 1][1] if at else 0
        high = self._known[at][1] if at < len(self._known) else end_entry
        return low, min(high, end_entry)


async def find_entry(places: Places, offset: int, end_entry: int, probe: Probe) -> int:
    """Find the entry with the offset; `probe` reads one entry. The ledger must have the offset."""
    low, high = places.around(offset, end_entry)
    while high - low > 1:
        middle = (low + high) // 2
        batch = await probe(middle)
        places.learn(batch.base_offset, middle)
        if batch.base_offset <= offset:
            low = middle
            if offset < batch.end_offset:
                break
        else:
            high = middle
    return low


async def find_time(moment_ms: int, end_entry: int, probe: Probe) -> int:
    """Find the first entry with an append time at or after the moment; `end_entry` if none has."""
    low, high = 0, end_entry
    while low < high:
        middle = (low + high) // 2
        if (await probe(middle)).append_ms < moment_ms:
            low = middle + 1
        else:
            high = middle
    return low


#: Maximum number of scans of the copies until two consecutive scans agree on the lost entries.
_LOOKS = 5


class Gap(NamedTuple):
    """Lost entries [first, last] of a ledger with their offsets [base_offset, end_offset)."""

    first: int
    last: int
    base_offset: int
    end_offset: int
    append_ms: int

    def batches(self, offset: int) -> list[Batch]:
        """Stand-ins, starting with the one that contains the offset."""
        start = self.base_offset + (offset - self.base_offset) // MAX_COUNT * MAX_COUNT
        return [
            stand_in(base, min(MAX_COUNT, self.end_offset - base), self.append_ms)
            for base in range(start, self.end_offset, MAX_COUNT)
        ]


def stand_in(base_offset: int, count: int, append_ms: int) -> Batch:
    """A batch in place of offsets whose messages are lost. It is never stored."""
    flags = BatchFlags.CONTROL | BatchFlags.LOST
    return Batch(base_offset, count, BatchFormat.MESSAGES, append_ms, b"", flags)


class End(NamedTuple):
    """Number of readable entries of a ledger, and the offset after them (None if unknown)."""

    entries: int
    offset: int | None


class Gaps:
    """The known gaps of one stream."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._known: dict[LedgerId, list[Gap]] = {}

    def at_offset(self, ledger_id: LedgerId, offset: int) -> Gap | None:
        return next((g for g in self._known.get(ledger_id, ()) if g.base_offset <= offset < g.end_offset), None)

    def at_entry(self, ledger_id: LedgerId, entry: int) -> Gap | None:
        return next((g for g in self._known.get(ledger_id, ()) if g.first <= entry <= g.last), None)

    def keep(self, ledgers: dict[LedgerId, None]) -> None:
        """Drop the gaps of all other ledgers."""
        self._known = {ledger_id: gaps for ledger_id, gaps in self._known.items() if ledger_id in ledgers}

    async def find(self, reader: LedgerReader, span: Span, lost: EntryLostError, end: End) -> Gap | None:
        """Find the gap around a lost entry, and record it durably before any reader continues after it. None if
        the entry is intact after all. Raises the loss itself if the lost offsets cannot be determined."""
        salvaged = self._salvaged(span, lost.entry_id)
        if salvaged is not None:
            return salvaged
        seen = await _extent(reader, lost.entry_id, end.entries)
        for _ in range(_LOOKS):
            if not self._all_known(span.ledger_id, seen):
                again = await self._losses.second_look(lambda: reader.read(_id(lost.entry_id), _id(lost.entry_id)))
                if again is None:
                    return None
                before, seen = seen, await _extent(reader, lost.entry_id, end.entries)
                if before[:2] != seen[:2]:
                    continue
            return await self._note(span, seen, lost, end)
        raise lost

    def _salvaged(self, span: Span, entry: int) -> Gap | None:
        """The gap that `weir salvage` recorded for the entry, of any size: such entries are lost for good."""
        for run in self._losses.of(span.ledger_id):
            if run.first <= entry <= run.last and run.first_offset >= 0 and run.what.startswith(SALVAGED):
                gap = Gap(run.first, run.last, run.first_offset, run.end_offset, span.first_ms)
                self._known[span.ledger_id] = sorted([*self._known.get(span.ledger_id, []), gap])
                return gap
        return None

    async def _note(self, span: Span, seen: "_Extent", lost: EntryLostError, end: End) -> Gap:
        first, last, before, after = seen
        base = span.first_offset if before is None else before.end_offset
        stop = end.offset if after is None else after.base_offset
        if stop is None or stop <= base:
            raise lost
        append_ms = before.append_ms if before is not None else span.first_ms
        gap = Gap(first, last, base, stop, append_ms)
        await self._losses.record(span.ledger_id, first, last, lost.what, offsets=(base, stop))
        gaps = [g for g in self._known.get(span.ledger_id, []) if g.last < first or g.first > last]
        self._known[span.ledger_id] = sorted([*gaps, gap])
        return gap

    def _all_known(self, ledger_id: LedgerId, seen: "_Extent") -> bool:
        return all(self._losses.is_known(ledger_id, entry) for entry in range(seen[0], seen[1] + 1))


#: First and last entry of a gap, and the batches before and after it; None at the ends of the readable range.
_Extent = tuple[int, int, Batch | None, Batch | None]


async def _extent(reader: LedgerReader, entry: int, end_entry: int) -> _Extent:
    first = last = entry
    before = after = None
    while first > 0 and (before := await _whole(reader, first - 1)) is None:
        first -= 1
    while last + 1 < end_entry and (after := await _whole(reader, last + 1)) is None:
        last += 1
    return first, last, before, after


async def _whole(reader: LedgerReader, entry: int) -> Batch | None:
    """The batch of an entry; None if it is lost."""
    try:
        return decode_batch((await reader.read(_id(entry), _id(entry)))[0].payload)
    except EntryLostError:
        return None


async def last_whole(reader: LedgerReader, end: int) -> tuple[int, Batch | None]:
    """The last intact entry up to and including `end`, and its batch; -1 if all are lost."""
    while end >= 0:
        try:
            return end, decode_batch((await reader.read(_id(end), _id(end)))[0].payload)
        except EntryLostError as lost:
            if await reader.leave_out(lost):
                end -= 1
    return -1, None


def _id(entry: int) -> EntryId:
    return EntryId(entry)


class History:
    """Open readers of one stream's ledgers, with known positions of offsets; returns stand-ins for lost entries.

    `written` returns the acknowledged end of the open ledger, from its writer; None for other ledgers.
    """

    def __init__(
        self, ledgers: LedgerClient, kept_readers: int, written: Callable[[LedgerId], End | None]
    ) -> None:
        self._ledgers = ledgers
        self._kept = kept_readers
        self._written = written
        self._gaps = Gaps(ledgers.context.losses)
        self._readers: OrderedDict[LedgerId, LedgerReader] = OrderedDict()
        self._places: dict[LedgerId, Places] = {}

    async def read(self, span: Span, offset: int, max_bytes: int) -> list[Batch]:
        """Read batches of one ledger, starting with the one that contains `offset`."""
        reader = await self._reader(span)
        while (gap := self._gaps.at_offset(span.ledger_id, offset)) is None:
            end = self._end(span, reader)
            try:
                return await self._read(span, reader, end, offset, max_bytes)
            except EntryLostError as lost:
                gap = await self._gaps.find(reader, span, lost, end)
                if gap is not None and not gap.base_offset <= offset < gap.end_offset:
                    raise
        self._places_of(span).learn(gap.end_offset, gap.last + 1)
        return gap.batches(offset)

    async def _read(self, span: Span, reader: LedgerReader, end: End, offset: int, max_bytes: int) -> list[Batch]:
        places = self._places_of(span)
        first = await find_entry(places, offset, end.entries, lambda entry: self._probe(span, reader, end, entry))
        found: list[Batch] = []
        size = 0
        for entry in await reader.read_some(EntryId(first), EntryId(end.entries - 1), max_bytes):
            batch = decode_batch(entry.payload)
            if found and size + len(batch) > max_bytes:
                break
            found.append(batch)
            size += len(batch)
            places.learn(batch.end_offset, entry.entry_id + 1)
        return found

    async def offset_at(self, span: Span, moment_ms: int) -> int | None:
        """The offset of the ledger's first batch with an append time at or after the moment."""
        reader = await self._reader(span)
        end = self._end(span, reader)
        entry = await find_time(moment_ms, end.entries, lambda entry: self._probe(span, reader, end, entry))
        return None if entry >= end.entries else (await self._probe(span, reader, end, entry)).base_offset

    async def forget(self, chain: Chain) -> None:
        """Close the readers of ledgers that left the chain or are read from the lake."""
        kept = {span.ledger_id: None for span in chain.spans if not span.in_lake}
        for ledger_id in [known for known in self._readers if known not in kept]:
            await self._readers.pop(ledger_id).close()
        self._places = {ledger_id: p for ledger_id, p in self._places.items() if ledger_id in kept}
        self._gaps.keep(kept)

    async def close(self) -> None:
        while self._readers:
            await self._readers.popitem()[1].close()

    async def _reader(self, span: Span) -> LedgerReader:
        """The ledger's reader. Reads with a reader that is closed here continue; it only stops following the
        ledger."""
        ledger_id = span.ledger_id
        while True:
            known = self._readers.get(ledger_id)
            if known is not None and (known.closed or not span.closed):
                self._readers.move_to_end(ledger_id)
                return known
            if known is not None:  # it does not know the end of the closed ledger yet
                await self._readers.pop(ledger_id).close()
            reader = await self._ledgers.open(ledger_id, recover=False)
            if span.closed and not reader.closed:  # the writer has not recorded the close in the ledger's metadata
                await reader.close()
                reader = await self._ledgers.open(ledger_id, recover=True)
            if ledger_id not in self._readers:
                break
            await reader.close()  # a concurrent call was faster
        self._readers[ledger_id] = reader
        for old in [self._readers.popitem(last=False)[1] for _ in range(len(self._readers) - self._kept)]:
            await old.close()
        return reader

    def _end(self, span: Span, reader: LedgerReader) -> End:
        written = self._written(span.ledger_id)
        if written is None:
            return End(reader.metadata.last_entry + 1, span.end_offset)
        reader.confirm(EntryId(written.entries - 1))
        return written

    def _places_of(self, span: Span) -> Places:
        return self._places.setdefault(span.ledger_id, Places(span.first_offset))

    async def _probe(self, span: Span, reader: LedgerReader, end: End, entry: int) -> Batch:
        while (gap := self._gaps.at_entry(span.ledger_id, entry)) is None:
            try:
                return decode_batch((await reader.read(EntryId(entry), EntryId(entry)))[0].payload)
            except EntryLostError as lost:
                await self._gaps.find(reader, span, lost, end)
        return gap.batches(gap.base_offset)[0]


class SpanReads:
    def __init__(self, history: History, segments: SegmentReads) -> None:
        self._history = history
        self._segments = segments

    async def read(self, chain: Chain, span: Span, offset: int, max_bytes: int) -> list[Batch]:
        """Read batches of the span, starting with the one that contains `offset`."""
        if span.segment is not None and span.in_lake:
            return await self._segments.read(_place(chain, span.segment), span, offset, max_bytes)
        return await self._history.read(span, offset, max_bytes)

    async def offset_at(self, chain: Chain, span: Span, moment_ms: int) -> int | None:
        """The offset of the span's first batch with an append time at or after the moment."""
        if span.segment is not None and span.in_lake:
            return await self._segments.offset_at(_place(chain, span.segment), span, moment_ms)
        return await self._history.offset_at(span, moment_ms)


def _place(chain: Chain, segment: Segment) -> SegmentStore:
    return chain.stores[segment.store]
