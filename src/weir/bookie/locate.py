"""Finds an entry's place in the entry logs: the runs in memory, then rows of index pages on disk."""

from typing import NamedTuple

from weir.bookie.index import LedgerRuns, LogRun
from weir.bookie.log_files import LogFiles
from weir.model.errors import WireError
from weir.model.ids import EntryId
from weir.wire.entrylog import ROWS_PER_PAGE, Row, row_at


class EntryLocation(NamedTuple):
    """Where an entry lies, and the run that it belongs to."""

    run: LogRun
    row: Row


async def find(files: LogFiles, runs: LedgerRuns, entry_id: int) -> EntryLocation | None:
    """The newest copy of the entry; None if no log holds it, which is certain. A WireError if the index page
    that would tell is damaged."""
    for run in runs.covering(entry_id):
        row = await at_or_after(files, run, entry_id)
        if row.entry_id == entry_id:
            return EntryLocation(run, row)
    return None


async def next_id(files: LogFiles, runs: LedgerRuns, entry_id: int) -> EntryId | None:
    """The lowest entry id at or above `entry_id` that any log holds."""
    covering, first = runs.covering(entry_id), runs.next_first(entry_id)
    candidates: list[int] = [(await at_or_after(files, run, entry_id)).entry_id for run in covering]
    if first is not None:
        candidates.append(first)
    return EntryId(min(candidates)) if candidates else None


async def at_or_after(files: LogFiles, run: LogRun, entry_id: int) -> Row:
    """The first row of the run whose entry is not below `entry_id`, which lies in the run's range. A WireError if
    the index on the disk does not fit the run: it is no proof that something is not here."""
    row = await _at_or_after(files, run, entry_id)
    if not entry_id <= row.entry_id <= run.last or (run.is_dense and row.entry_id != entry_id):
        raise WireError(f"entry {row.entry_id} stands in the index of log {run.log} where {entry_id} should")
    return row


async def _at_or_after(files: LogFiles, run: LogRun, entry_id: int) -> Row:
    if run.is_dense:
        return await _row(files, run, entry_id - run.first)
    low, high = 0, run.rows - 1  # the row asked for is in [low, high]
    # Stripes are regular: where the id would be if ids were spread evenly is nearly always the right page. From
    # there in growing steps, and never more than half of what is left.
    guess, step = (entry_id - run.first) * high // (run.last - run.first), ROWS_PER_PAGE
    while low < high:
        row = await _row(files, run, min(guess, high - 1))
        if row.entry_id == entry_id:
            return row
        middle = (low + high) // 2
        if row.entry_id < entry_id:
            low = min(guess, high - 1) + 1
            guess = min(low + step, max(low, middle))
        else:
            high = min(guess, high - 1)
            guess = max(high - step, min(middle, high - 1), low)
        step *= 2
    return await _row(files, run, low)


async def _row(files: LogFiles, run: LogRun, number: int) -> Row:
    page, slot = divmod(run.first_row + number, ROWS_PER_PAGE)
    return row_at(await files.page(run.log, page), slot)
