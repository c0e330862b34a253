"""Index of entry logs: which logs hold which entries of a ledger. Compact runs stay in memory, rows on disk.

Each ledger has one array of runs, seven numbers each, sorted by first entry. A writer adds entries in order, so
runs do not overlap unless a recovery or a repair adds entries again; then the run in the newest log counts, since
log ids grow with time and garbage collection copies only current entries.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from weir.model.ids import EntryId, LedgerId
from weir.wire.bookie_files import Run

_STRIDE = 7


class LogRun(NamedTuple):
    """Entries of one ledger in one log."""

    first: int
    last: int
    log: int
    first_row: int
    rows: int
    offset: int
    size: int

    @property
    def is_dense(self) -> bool:
        """Whether no id between first and last is missing, so that a row is found by arithmetic."""
        return self.rows == self.last - self.first + 1


class LedgerRuns:
    """The runs of one ledger."""

    __slots__ = ("_numbers", "overlapping")

    def __init__(self) -> None:
        self._numbers = array("Q")
        self.overlapping = False

    def __len__(self) -> int:
        return len(self._numbers) // _STRIDE

    def __iter__(self) -> Iterator[LogRun]:
        numbers = self._numbers
        return (LogRun(*numbers[at : at + _STRIDE]) for at in range(0, len(numbers), _STRIDE))

    def add(self, run: LogRun) -> None:
        numbers = self._numbers
        if not numbers or run.first > numbers[-_STRIDE + 1]:
            numbers.extend(run)
            # Sorted by first entry, but an overlapping run before may reach further than the last one.
            return
        at = (self._after(run.first) + 1) * _STRIDE
        before_reaches = at > 0 and numbers[at - _STRIDE + 1] >= run.first
        reaches_after = at < len(numbers) and numbers[at] <= run.last
        self.overlapping = self.overlapping or before_reaches or reaches_after
        self._numbers = numbers[:at] + array("Q", run) + numbers[at:]

    def remove_logs(self, logs: dict[int, None]) -> None:
        """Remove the runs of these logs."""
        kept = LedgerRuns()
        for run in self:
            if run.log not in logs:
                kept.add(run)
        self._numbers, self.overlapping = kept._numbers, kept.overlapping

    def covering(self, entry_id: int) -> list[LogRun]:
        """The runs whose range includes the entry, newest log first."""
        if self.overlapping:
            found = [run for run in self if run.first <= entry_id <= run.last]
            return sorted(found, key=lambda run: -run.log)
        at = self._after(entry_id) * _STRIDE
        if at < 0 or self._numbers[at + 1] < entry_id:
            return []
        return [LogRun(*self._numbers[at : at + _STRIDE])]

    def next_first(self, entry_id: int) -> int | None:
        """The lowest first entry of any run that is above `entry_id`."""
        at = (self._after(entry_id) + 1) * _STRIDE
        return self._numbers[at] if at < len(self._numbers) else None

    @property
    def last(self) -> int:
        """The highest entry of any run; -1 without runs."""
        if self.overlapping:
            return max(run.last for run in self)
        return self._numbers[-_STRIDE + 1] if self._numbers else -1

    def _after(self, entry_id: int) -> int:
        """The number of the last run that starts at or before the entry; -1 if none does."""
        numbers = self._numbers
        low, high = 0, len(numbers) // _STRIDE
        while low < high:
            middle = (low + high) // 2
            if numbers[middle * _STRIDE] <= entry_id:
                low = middle + 1
            else:
                high = middle
        return low - 1


class LogUse(NamedTuple):
    """How much of a log is still needed."""

    log: int
    size: int
    live: int


class Index:
    """All ledgers' runs, and how many bytes of each log they need."""

    def __init__(self) -> None:
        self._ledgers: dict[LedgerId, LedgerRuns] = {}
        self._sizes: dict[int, int] = {}
        self._live: dict[int, int] = {}
        #: Logs with all their runs in memory; only these may be in a checkpoint or be collected.
        self._sealed: dict[int, None] = {}

    def __contains__(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._ledgers

    def ledgers(self) -> list[LedgerId]:
        return list(self._ledgers)

    def get(self, ledger_id: LedgerId) -> LedgerRuns | None:
        return self._ledgers.get(ledger_id)

    def add_log(self, log: int, size: int) -> None:
        """Register a log; its runs follow, then `seal`."""
        self._sizes[log] = size
        self._live[log] = 0

    def add_run(self, log: int, run: Run) -> None:
        runs = self._ledgers.get(run.ledger_id)
        if runs is None:
            runs = self._ledgers[run.ledger_id] = LedgerRuns()
        runs.add(LogRun(run.first, run.last, log, run.first_row, run.rows, run.offset, run.size))
        self._live[log] += run.size

    def seal(self, log: int) -> None:
        self._sealed[log] = None

    def unseal(self, logs: Iterable[int]) -> None:
        """Leave these logs out of later checkpoints: their live entries have been copied."""
        for log in logs:
            del self._sealed[log]

    def remove_runs(self, ledger_id: LedgerId, logs: dict[int, None]) -> None:
        runs = self._ledgers.get(ledger_id)
        if runs is None:
            return
        for run in runs:
            if run.log in logs:
                self._live[run.log] -= run.size
        runs.remove_logs(logs)
        if not len(runs):
            del self._ledgers[ledger_id]

    def forget(self, ledger_id: LedgerId) -> None:
        """Drop a deleted ledger: its bytes in every log are dead."""
        for run in self._ledgers.pop(ledger_id, ()):
            self._live[run.log] -= run.size

    def remove_logs(self, logs: Iterable[int]) -> None:
        """Drop the sizes of removed logs."""
        for log in logs:
            del self._sizes[log], self._live[log]

    def logs(self) -> list[int]:
        """Every sealed log, oldest first."""
        return sorted(self._sealed)

    def usage(self) -> list[LogUse]:
        """Every sealed log, oldest first."""
        return [LogUse(log, self._sizes[log], self._live[log]) for log in self.logs()]

    def runs_in(self, log: int) -> list[tuple[LedgerId, LogRun]]:
        """The live runs of a log, for repairs. Scans every run in memory."""
        return [(ledger_id, run) for ledger_id, runs in self._ledgers.items() for run in runs if run.log == log]

    def entries_of(self, ledger_id: LedgerId) -> int:
        """The number of rows that the logs have for the ledger."""
        return sum(run.rows for run in self._ledgers.get(ledger_id) or ())

    def last_entry(self, ledger_id: LedgerId) -> EntryId:
        runs = self._ledgers.get(ledger_id)
        return EntryId(runs.last if runs is not None else -1)
