"""What was found of each ledger, as runs of entries and the offsets in them: the holes between are what is
lost."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from weir.datafolder.chart import Chart, LedgerUse, Role
from weir.model.errors import WireError
from weir.model.ids import EntryId, LedgerId
from weir.wire.batch import decode_batch
from weir.wire.entry import HEADER_BYTES, lost_entry

#: Nobody knows which.
UNKNOWN = -1


class FoundRun(NamedTuple):
    """Entries [first, last] of a ledger, and the offsets [base, end) of what is in them; UNKNOWN where they have
    none."""

    first: int
    last: int
    base: int
    end: int


class Hole(NamedTuple):
    """Entries [first, last] are nowhere; the offsets around them say which they had, or UNKNOWN."""

    first: int
    last: int
    base: int
    end: int


@dataclass(slots=True)
class FoundLedger:
    """What was found of one ledger."""

    runs: list[FoundRun] = field(default_factory=list)
    #: Entries that were lost before, and only keep their place: why.
    marked: dict[int, str] = field(default_factory=dict)
    #: Payloads by entry, of a ledger with state.
    payloads: dict[int, bytes] = field(default_factory=dict)
    bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0

    def add(self, entry: int, base: int, end: int) -> None:
        """In any order, and more than once if it must be."""
        if self.runs:
            last = self.runs[-1]
            if entry == last.last + 1 and base in (last.end, UNKNOWN):
                self.runs[-1] = last._replace(last=entry, end=end)
                return
            if last.first <= entry <= last.last:
                return
        self.runs.append(FoundRun(entry, entry, base, end))

    def settle(self) -> None:
        """Bring the runs in order and join what touches."""
        joined: list[FoundRun] = []
        for run in sorted(self.runs):
            before = joined[-1] if joined else None
            if before is None or run.first > before.last + 1:
                joined.append(run)
            elif run.last > before.last:
                joined[-1] = FoundRun(before.first, run.last, before.base, run.end)
        self.runs = joined

    def holes(self, last: int, begin: int, end: int) -> Iterator[Hole]:
        """What is missing of the entries up to `last`, whose offsets are [begin, end) in all. To be called once it
        is settled."""
        entry, base = 0, begin
        for run in self.runs:
            if run.first > last:
                break
            if run.first > entry:
                yield Hole(entry, run.first - 1, base, run.base)
            entry, base = run.last + 1, run.end
        if entry <= last:
            yield Hole(entry, last, base, end)


class Found:
    """What was found of all ledgers that a chart knows."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        self.ledgers: dict[LedgerId, FoundLedger] = {}

    def take(self, ledger_id: LedgerId, batch: Iterable[tuple[EntryId, bytes]], *, messages: bool = False) -> None:
        """Note whole entries of a ledger; `messages`: it is none of the chart's, and may be a topic's."""
        role = Role.MESSAGES if messages else self._chart.role(ledger_id)
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = FoundLedger()
        for entry_id, data in batch:
            why = lost_entry(data)
            if why is not None:
                found.marked[entry_id] = why
            elif role is Role.MESSAGES:
                _add_messages(found, entry_id, data)
            else:
                if role is Role.STATE:
                    found.payloads[entry_id] = data[HEADER_BYTES:]
                found.add(entry_id, UNKNOWN, UNKNOWN)
            found.bytes += len(data)

    def settle(self) -> None:
        """All of it has come: bring it in order, and learn what the states of streams say."""
        for ledger_id, found in self.ledgers.items():
            use = self._chart.uses.get(ledger_id)
            if use is not None and use.role is Role.STATE:
                self._chart.learn_state(use.stream, found.payloads)
            found.settle()

    def holes(self, ledger_id: LedgerId, use: LedgerUse | None, last: int) -> list[Hole]:
        """What is missing of a ledger whose last entry this is; entries that only keep a place count as there, and
        of a state what was written twice counts if one of the two is."""
        found = self.ledgers.get(ledger_id) or FoundLedger()
        span = None if use is None else use.span
        begin = UNKNOWN if span is None else span.first_offset
        end = UNKNOWN if span is None or span.end_offset is None else span.end_offset
        holes = [part for hole in found.holes(last, begin, end) for part in _without(hole, found.marked)]
        if use is not None and use.role is Role.STATE:
            twins = has_twins(found.payloads)
            holes = [hole for hole in holes if not (twins and _has_twin(hole, found.payloads))]
        return holes


def _add_messages(found: FoundLedger, entry_id: EntryId, data: bytes) -> None:
    try:
        batch = decode_batch(memoryview(data)[HEADER_BYTES:])
    except WireError:
        found.add(entry_id, UNKNOWN, UNKNOWN)
        return
    found.add(entry_id, batch.base_offset, batch.end_offset)
    found.first_ms = min(found.first_ms or batch.append_ms, batch.append_ms)
    found.last_ms = max(found.last_ms, batch.append_ms)


def _without(hole: Hole, marked: dict[int, str]) -> Iterator[Hole]:
    """The parts of a hole that are not known as lost already; with unknown offsets where it is cut."""
    known = [entry for entry in marked if hole.first <= entry <= hole.last]
    if not known:
        yield hole
        return
    first, base = hole.first, hole.base
    for entry in [*sorted(known), hole.last + 1]:
        if entry > first:
            yield Hole(first, entry - 1, base, hole.end if entry > hole.last else UNKNOWN)
        first, base = entry + 1, UNKNOWN


def has_twins(payloads: dict[int, bytes]) -> bool:
    """Whether each entry of a state's ledger was written twice: told by the first pair that is whole."""
    for entry in sorted(payloads):
        if entry % 2 == 0 and entry + 1 in payloads:
            return payloads[entry] == payloads[entry + 1]
    return True


def _has_twin(hole: Hole, payloads: dict[int, bytes]) -> bool:
    return all(entry ^ 1 in payloads for entry in range(hole.first, hole.last + 1))
