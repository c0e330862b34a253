"""Gaps in the ledgers of a stream: entries that are damaged everywhere, and the offsets that they had.

Offsets stay dense: readers are given stand-ins for a gap, batches that carry nothing for consumers, so cursors,
fetches and compactions go on behind it as they do behind a transaction's marker.
"""

from typing import NamedTuple

from weir.ledger.losses import Losses
from weir.ledger.reader import LedgerReader
from weir.model.batch import Batch, BatchFlags, BatchFormat
from weir.model.errors import EntryLostError
from weir.model.ids import EntryId, LedgerId
from weir.model.loss import SALVAGED
from weir.model.stream import Span
from weir.wire.batch import MAX_COUNT, decode_batch

#: How often the copies are looked at until two looks in a row agree on what is lost.
_LOOKS = 5


class Gap(NamedTuple):
    """Entries [first, last] of a ledger are lost, and with them the offsets [base_offset, end_offset)."""

    first: int
    last: int
    base_offset: int
    end_offset: int
    append_ms: int

    def batches(self, offset: int) -> list[Batch]:
        """Stand-ins from the one that holds the offset on."""
        start = self.base_offset + (offset - self.base_offset) // MAX_COUNT * MAX_COUNT
        return [
            stand_in(base, min(MAX_COUNT, self.end_offset - base), self.append_ms)
            for base in range(start, self.end_offset, MAX_COUNT)
        ]


def stand_in(base_offset: int, count: int, append_ms: int) -> Batch:
    """For offsets whose messages are lost. It is never stored."""
    flags = BatchFlags.CONTROL | BatchFlags.LOST
    return Batch(base_offset, count, BatchFormat.MESSAGES, append_ms, b"", flags)


class End(NamedTuple):
    """How many entries of a ledger may be read, and the offset after them; None where that is not known."""

    entries: int
    offset: int | None


class Gaps:
    """What is known of one stream's gaps."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._known: dict[LedgerId, list[Gap]] = {}

    def at_offset(self, ledger_id: LedgerId, offset: int) -> Gap | None:
        return next((g for g in self._known.get(ledger_id, ()) if g.base_offset <= offset < g.end_offset), None)

    def at_entry(self, ledger_id: LedgerId, entry: int) -> Gap | None:
        return next((g for g in self._known.get(ledger_id, ()) if g.first <= entry <= g.last), None)

    def keep(self, ledgers: dict[LedgerId, None]) -> None:
        """Forget those of other ledgers."""
        self._known = {ledger_id: gaps for ledger_id, gaps in self._known.items() if ledger_id in ledgers}

    async def find(self, reader: LedgerReader, span: Span, lost: EntryLostError, end: End) -> Gap | None:
        """The gap around a lost entry, written down before anybody goes on behind it; None if the entry turns out
        to be whole. The loss itself is raised if nothing says which offsets it took along."""
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
        """What `weir salvage` wrote down is as it says, however many entries it is: nothing brings them back."""
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


#: First and last entry of a gap, and the batches before and after it; None at the ends of what may be read.
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
    """The entry's batch; None if it is lost."""
    try:
        return decode_batch((await reader.read(_id(entry), _id(entry)))[0].payload)
    except EntryLostError:
        return None


async def last_whole(reader: LedgerReader, end: int) -> tuple[int, Batch | None]:
    """The last entry up to and with `end` that is not lost, and its batch; -1 if all are."""
    while end >= 0:
        try:
            return end, decode_batch((await reader.read(_id(end), _id(end)))[0].payload)
        except EntryLostError as lost:
            if await reader.leave_out(lost):
                end -= 1
    return -1, None


def _id(entry: int) -> EntryId:
    return EntryId(entry)
