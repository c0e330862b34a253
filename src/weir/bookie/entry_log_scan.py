"""Loads or rebuilds the index of a log, and scans the entries of a log.

A rebuild reads damaged pages again from the runs, or the whole index from the entries. The new index names every
entry that the log has or had: a damaged entry keeps its row, so that reading it raises `EntryCorruptError` and is
never a denial. The scan also finds entries behind damage: an entry describes itself, and its checksum proves where
it begins.
"""

import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from weir.bookie.entry_index import LogRun
from weir.bookie.entry_log_writer import WrittenLog, write_index
from weir.bookie.folder import Layout, insist
from weir.model.errors import FileMissingError, WireError
from weir.model.ids import NO_ENTRY, EntryId, LedgerId
from weir.runtime.interfaces import Disk, File
from weir.wire.bookie_files import (
    HEADER_BYTES,
    PAGE_BYTES,
    ROWS_PER_PAGE,
    IndexHeader,
    Row,
    Run,
    decode_runs,
    entrylog_decode_header,
    row_at,
    verify_page,
)
from weir.wire.entry import HEADER_BYTES as ENTRY_HEADER_BYTES
from weir.wire.entry import entry_key, entry_size, last_confirmed_of, verify_entry

_WINDOW_BYTES = 1024 * 1024
#: Pattern of nearly every header: the high bytes of its numbers are zero. A regular expression, since the damaged
#: stretch may be megabytes long.
_HEADER_LIKE = re.compile(
    rb"(?=(?s:.{7}[\x00-\x04].{6}\x00\x00.{6}\x00\x00(?:.{6}\x00\x00|\xff{8}).{6}\x00\x00))", re.DOTALL
)


class Stretch(NamedTuple):
    """Bytes of a log: one whole entry, or damage that one or more entries may lie in."""

    offset: int
    size: int
    #: From the header; -1 if a damaged header is not plausible because its length does not reach the next entry.
    ledger_id: LedgerId
    entry_id: EntryId
    last_confirmed: EntryId
    damage: str | None


class LogWindow:
    """A stretch of a log in memory, which moves forward with the scan."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self.size = size
        self._data: bytes | bytearray = b""
        self._at = 0

    async def stretches(self, at: int, end: int) -> AsyncIterator[Stretch]:
        """Everything in [at, end), where both are boundaries between entries: whole entries, and each damage from
        the expected start of an entry to the next whole one."""
        while at < end:
            stretch = await self._stretch(at, end)
            yield stretch
            at += stretch.size

    async def _stretch(self, at: int, end: int) -> Stretch:
        try:
            data = await self._whole(at, end)
            return Stretch(at, len(data), *entry_key(data), last_confirmed_of(data), None)
        except WireError as bad:
            size = await self._next_whole(at, end) - at
            head = await self._bytes(at, ENTRY_HEADER_BYTES)
            ids = entry_key(head) if _leads_to(head, size) else (LedgerId(0), NO_ENTRY)
            return Stretch(at, size, *ids, NO_ENTRY, bad.what)

    async def _whole(self, at: int, end: int) -> bytes | bytearray:
        """The verified entry at `at`, after several attempts; WireError without one."""

        async def read() -> bytes | bytearray:
            try:
                data = await self._one(at, end)
                verify_entry(data)
            except WireError:
                self._data = b""  # read from the disk again
                raise
            return data

        return await insist(f"{self._file.path} at {at}", read)

    async def _next_whole(self, at: int, end: int) -> int:
        """The start of the first whole entry after `at`; `end` without one."""
        at += 1
        while at + ENTRY_HEADER_BYTES <= end:
            self._data = b""
            stretch = bytes(await self._bytes(at, min(_WINDOW_BYTES, end - at)))
            for match in _HEADER_LIKE.finditer(stretch):
                found = at + match.start()
                if await self._is_whole(found, end):
                    return found
            at += max(1, len(stretch) - ENTRY_HEADER_BYTES + 1)
        return end

    async def _is_whole(self, at: int, end: int) -> bool:
        try:
            head = await self._bytes(at, ENTRY_HEADER_BYTES)
            if len(head) < ENTRY_HEADER_BYTES or last_confirmed_of(head) >= entry_key(head)[1]:
                return False
            verify_entry(await self._one(at, end))
        except WireError:
            return False
        return True

    async def _one(self, at: int, end: int) -> bytes | bytearray:
        size = entry_size(await self._bytes(at, ENTRY_HEADER_BYTES))
        if at + size > end:
            raise WireError(f"an entry of {size} bytes runs over the end of its stretch")
        data = await self._bytes(at, size)
        if len(data) < size:
            raise WireError(f"an entry of {size} bytes runs over the end of the file")
        return data

    async def _bytes(self, at: int, length: int) -> bytes | bytearray:
        inside = at - self._at
        if inside < 0 or inside + length > len(self._data):
            self._at, inside = at, 0
            self._data = await self._file.read_at(at, max(length, _WINDOW_BYTES))
        return self._data[inside : inside + length]


def _leads_to(head: bytes | bytearray, size: int) -> bool:
    try:
        return entry_size(head) == size
    except WireError:
        return False


log = logging.getLogger(__name__)

Rows = list[Row]

#: A longer gap in a ledger cannot come from a single damaged stretch.
_MOST_HIDDEN = 10_000
#: Row of a deleted ledger.
_NO_ROW = Row(EntryId(0), 0, 0)


async def load_log(disk: Disk, layout: Layout, log_id: int) -> WrittenLog:
    """The log as its index describes it; rebuilds an index that is missing or has a damaged head. FileMissingError
    if the log itself is missing. The index of a log that was cut still names all its entries, so that the bookie
    reports the missing ones as damaged and never denies them."""
    async with _opened(disk, layout.log_file(log_id)) as data:
        size = await data.size()
    try:
        header, runs = await read_own_index(disk, layout, log_id)
        if header.log_bytes > size:
            path = layout.log_file(log_id)
            log.error("%s has %d bytes left of %d: entries at its end are lost", path, size, header.log_bytes)
        elif header.log_bytes < size:
            raise WireError(f"an index for a log of {header.log_bytes} bytes, which has {size}")
        return WrittenLog(log_id, header.log_bytes, runs, header.pages_offset)
    except (WireError, FileMissingError) as bad:
        log.error("%s: %s; rebuilding it from the log", layout.index_file(log_id), bad)
    return await rebuild_index(disk, layout, log_id)


async def read_index(disk: Disk, layout: Layout, log_id: int) -> tuple[IndexHeader, list[Run]]:
    """Header and runs, verified against the length of the log."""
    async with _opened(disk, layout.log_file(log_id)) as data:
        size = await data.size()
    header, runs = await read_own_index(disk, layout, log_id)
    if header.log_bytes != size:
        raise WireError(f"an index for a log of {header.log_bytes} bytes, which has {size}")
    return header, runs


async def read_own_index(disk: Disk, layout: Layout, log_id: int) -> tuple[IndexHeader, list[Run]]:
    """Header and runs, verified in themselves, even if the log has another length."""
    async with _opened(disk, layout.index_file(log_id)) as file:

        async def read() -> tuple[IndexHeader, list[Run]]:
            header = entrylog_decode_header(await file.read_at(0, HEADER_BYTES))
            if header.file_bytes != await file.size():
                raise WireError(f"an index of {await file.size()} bytes should have {header.file_bytes}")
            return header, decode_runs(header, await file.read_at(HEADER_BYTES, header.runs_bytes))

        return await insist(layout.index_file(log_id), read)


async def read_page(file: File, header: IndexHeader, page: int) -> Rows:
    """The rows of one page; WireError if the page is damaged."""

    async def read() -> Rows:
        data = await file.read_at(header.pages_offset + page * PAGE_BYTES, PAGE_BYTES)
        verify_page(data)
        return [row_at(data, slot) for slot in range(min(ROWS_PER_PAGE, header.rows - page * ROWS_PER_PAGE))]

    return await insist(f"index page {page} of {file.path}", read)


async def rebuild_index(
    disk: Disk, layout: Layout, log_id: int, progress: Callable[[int], None] = lambda _: None
) -> WrittenLog:
    """Rebuild the index and replace the old one atomically. Whole pages of the old one give the positions of
    entries. If its runs are damaged, the new index may have more rows than the old one (for entries inside
    damage): do not use this while a bookie has the old runs in memory (`rebuild_around`)."""
    try:
        return await rebuild_pages(disk, layout, log_id)
    except (WireError, FileMissingError):
        rows, runs = await _rows_of_log(disk, layout, log_id, progress)
    return await _put(disk, layout, log_id, rows, runs)


async def rebuild_pages(disk: Disk, layout: Layout, log_id: int) -> WrittenLog:
    """`rebuild_index` for an index with whole runs, which stay the same; WireError if they are damaged."""
    header, runs = await read_index(disk, layout, log_id)
    return await _put(disk, layout, log_id, await rows_of_pages(disk, layout, log_id, header, runs), runs)


async def rebuild_around(
    disk: Disk, layout: Layout, log_id: int, known: Sequence[tuple[LedgerId, LogRun]]
) -> WrittenLog:
    """`rebuild_index` for a bookie that has the runs in memory: they keep their rows whatever the file contains.
    Rows of deleted ledgers stay empty."""
    try:
        return await rebuild_pages(disk, layout, log_id)
    except (WireError, FileMissingError):
        pass
    count = max((run.first_row + run.rows for _, run in known), default=0)
    rows: list[Row | None] = [None] * count
    runs: list[Run] = []
    async with _opened(disk, layout.log_file(log_id)) as file:
        window = LogWindow(file, await file.size())
        for ledger_id, run in sorted(known, key=lambda item: item[1].first_row):
            begin, end = run.offset, run.offset + run.size
            stretches = [stretch async for stretch in window.stretches(begin, end)]
            fitted = fit_rows(stretches, ledger_id, run.first, run.last, run.rows)
            rows[run.first_row : run.first_row + run.rows] = fitted
            confirmed = max(stretch.last_confirmed for stretch in stretches)
            first, last = EntryId(run.first), EntryId(run.last)
            runs.append(Run(ledger_id, first, last, run.first_row, run.rows, run.offset, run.size, confirmed))
    return await _put(disk, layout, log_id, [row or _NO_ROW for row in rows], runs)


async def _put(disk: Disk, layout: Layout, log_id: int, rows: Rows, runs: list[Run]) -> WrittenLog:
    async with _opened(disk, layout.log_file(log_id)) as data:
        size = await data.size()
    pages_offset = await write_index(disk, layout, log_id, runs, rows=rows, log_bytes=size)
    return WrittenLog(log_id, size, runs, pages_offset)


# --- with the runs ----------------------------------------------------------------------------------------------


async def rows_of_pages(disk: Disk, layout: Layout, log_id: int, header: IndexHeader, runs: list[Run]) -> Rows:
    """Every row: from its page, or, if the page is damaged, from the entries between the known rows."""
    known: list[Row | None] = []
    async with _opened(disk, layout.index_file(log_id)) as file:
        for page in range(header.pages):
            try:
                known += await read_page(file, header, page)
            except WireError:
                known += [None] * min(ROWS_PER_PAGE, header.rows - page * ROWS_PER_PAGE)
    async with _opened(disk, layout.log_file(log_id)) as file:
        window = LogWindow(file, header.log_bytes)
        for run in runs:
            await _fill_run(window, run, known)
    found = [row for row in known if row is not None]
    if len(found) != header.rows:
        raise WireError(f"the runs of log {log_id} have {len(found)} rows, its header says {header.rows}")
    return found


async def _fill_run(window: LogWindow, run: Run, known: list[Row | None]) -> None:
    """Fill in the unknown rows of a run, stretch by stretch."""
    at, end = run.first_row, run.first_row + run.rows
    while at < end:
        if known[at] is not None:
            at += 1
            continue
        behind = next((row for row in range(at, end) if known[row] is not None), end)
        before = known[at - 1] if at > run.first_row else None
        after = known[behind] if behind < end else None
        begin = run.offset if before is None else before.offset + before.size
        stop = run.offset + run.size if after is None else after.offset
        first = run.first if before is None else before.entry_id + 1
        last = run.last if after is None else after.entry_id - 1
        stretches = [stretch async for stretch in window.stretches(begin, stop)]
        known[at:behind] = fit_rows(stretches, run.ledger_id, first, last, behind - at)
        at = behind


def fit_rows(stretches: list[Stretch], ledger_id: LedgerId, first: int, last: int, count: int) -> Rows:
    """`count` rows of a ledger, with ids in [first, last], for these stretches. Damage may hide several entries;
    the ids of their neighbors give their ids."""
    whole = [stretch for stretch in stretches if stretch.damage is None]
    hidden = count - len(whole)
    bad = len(stretches) - len(whole)
    if hidden < bad or (hidden and not bad) or any(stretch.ledger_id != ledger_id for stretch in whole):
        raise WireError(f"{len(whole)} entries and {bad} damaged places where {count} entries should be")
    rows: Rows = []
    wanted = first
    for number, stretch in enumerate(stretches):
        if stretch.damage is None:
            rows.append(Row(stretch.entry_id, stretch.offset, stretch.size))
            wanted = stretch.entry_id + 1
            continue
        following = next((s.entry_id for s in stretches[number + 1 :] if s.damage is None), last + 1)
        held = hidden - bad + 1 if following - wanted >= hidden - bad + 1 else 1
        ids = [EntryId(wanted + i) for i in range(held)]
        if held == 1 and stretch.ledger_id == ledger_id and wanted <= stretch.entry_id < following:
            ids = [stretch.entry_id]  # a striped ledger skips ids; trust the id in the damaged header
        rows += [Row(entry_id, stretch.offset, stretch.size) for entry_id in ids]
        wanted, hidden, bad = ids[-1] + 1, hidden - held, bad - 1
    if len(rows) != count:
        raise WireError(f"{count} entries do not fit {len(stretches)} places")
    return rows


# --- without anything -------------------------------------------------------------------------------------------


async def _rows_of_log(
    disk: Disk, layout: Layout, log_id: int, progress: Callable[[int], None]
) -> tuple[Rows, list[Run]]:
    """Rows and runs from the entries alone."""
    rows: Rows = []
    runs: list[Run] = []
    async for stretch in scan_log(disk, layout.log_file(log_id)):
        progress(stretch.offset + stretch.size)
        if stretch.entry_id < 0:
            path = layout.log_file(log_id)
            log.error(
                "%s at offset %d: the ledger of %d damaged bytes is unknown", path, stretch.offset, stretch.size
            )
            continue
        if runs and runs[-1].ledger_id == stretch.ledger_id:
            run = runs.pop()
            confirmed = max(run.last_confirmed, stretch.last_confirmed)
            size = stretch.offset + stretch.size - run.offset
            runs.append(
                run._replace(last=stretch.entry_id, rows=run.rows + 1, size=size, last_confirmed=confirmed)
            )
        else:
            runs.append(
                Run(
                    stretch.ledger_id,
                    stretch.entry_id,
                    stretch.entry_id,
                    len(rows),
                    1,
                    stretch.offset,
                    stretch.size,
                    stretch.last_confirmed,
                )
            )
        rows.append(Row(stretch.entry_id, stretch.offset, stretch.size))
    return rows, runs


async def scan_log(disk: Disk, path: str) -> AsyncIterator[Stretch]:
    """Everything in a log, one stretch per entry, with its ids. Each entry hidden by damage between two entries of
    a ledger gets a stretch with its derived ids; entry -1 if its ledger is unknown."""
    async with _opened(disk, path) as file:
        size = await file.size()
        before: Stretch | None = None
        damaged: Stretch | None = None
        async for stretch in LogWindow(file, size).stretches(0, size):
            if stretch.damage is not None:
                damaged = stretch
                continue
            if damaged is not None:
                for named in hidden_entries(damaged, before, stretch):
                    yield named
                damaged = None
            yield stretch
            before = stretch
        if damaged is not None:
            for named in hidden_entries(damaged, before, None):
                yield named


def hidden_entries(damaged: Stretch, before: Stretch | None, after: Stretch | None) -> list[Stretch]:
    """The entries that the damage hides. Between entries of one ledger: the ids between them (for a striped ledger
    this includes some ids that were never here, without harm). Between two ledgers: the ids of the damaged header
    if plausible, else the id after the previous entry, else the id before the next one."""
    if before is not None and after is not None and before.ledger_id == after.ledger_id:
        between = range(before.entry_id + 1, after.entry_id)
        if len(between) <= _MOST_HIDDEN:  # a striped ledger skips some of these ids, which does no harm
            return [damaged._replace(ledger_id=before.ledger_id, entry_id=EntryId(entry)) for entry in between]
    if damaged.entry_id >= 0:
        return [damaged]
    if before is not None:
        return [damaged._replace(ledger_id=before.ledger_id, entry_id=EntryId(before.entry_id + 1))]
    if after is not None and after.entry_id > 0:
        return [damaged._replace(ledger_id=after.ledger_id, entry_id=EntryId(after.entry_id - 1))]
    return [damaged._replace(entry_id=EntryId(-1))]


@asynccontextmanager
async def _opened(disk: Disk, path: str) -> AsyncIterator[File]:
    file = await disk.open(path)
    try:
        yield file
    finally:
        await file.close()
