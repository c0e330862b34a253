"""Open files of entry logs and their indexes: a bounded number of handles, cached pages and blocks, shared reads.

A damaged index page makes the bookie rebuild the whole index from the log: a flipped bit in it costs a scan of the
log, and no entry. `find` locates an entry by the runs in memory, then by rows of index pages on disk.
"""

import asyncio
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from weir.bookie.damage import Damages
from weir.bookie.entry_index import Index, LedgerRuns, LogRun
from weir.bookie.entry_log_scan import rebuild_around
from weir.bookie.folder import Layout, insist
from weir.bookie.settings import CacheSettings
from weir.model.errors import FileMissingError, WireError
from weir.model.ids import EntryId
from weir.runtime.interfaces import Disk, File
from weir.wire.bookie_files import PAGE_BYTES, ROWS_PER_PAGE, Row, row_at, verify_page

K = TypeVar("K", bound=Hashable)


class BytesLru(Generic[K]):
    """LRU cache of at most `max_bytes` of values. A dict keeps insertion order: the front is the least recently
    used."""

    def __init__(self, max_bytes: int) -> None:
        self._limit = max_bytes
        self._values: dict[K, bytes | bytearray] = {}
        self.size = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: K) -> bytes | bytearray | None:
        value = self._values.pop(key, None)
        if value is None:
            self.misses += 1
            return None
        self._values[key] = value
        self.hits += 1
        return value

    def put(self, key: K, value: bytes | bytearray) -> None:
        self.drop(key)
        self._values[key] = value
        self.size += len(value)
        while self.size > self._limit and len(self._values) > 1:
            self.drop(next(iter(self._values)))

    def drop(self, key: K) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self.size -= len(value)


class _Handle:
    """An open file with the number of operations in progress on it."""

    __slots__ = ("file", "pins", "unwanted")

    def __init__(self, file: File) -> None:
        self.file = file
        self.pins = 0
        self.unwanted = False


class LogFiles:
    """Reads logs by position. FileMissingError for a log that garbage collection removed."""

    def __init__(
        self, disk: Disk, layout: Layout, settings: CacheSettings, *, index: Index, damages: Damages
    ) -> None:
        self._disk = disk
        self._index = index
        self._damages = damages
        self._mending: dict[int, asyncio.Task[None]] = {}
        self._layout = layout
        self._block_bytes = settings.read_ahead_bytes
        self._max_open = settings.max_open_logs
        self._handles: dict[str, _Handle] = {}
        self._to_close: list[File] = []
        self._pages_at: dict[int, int] = {}
        self._reading: dict[tuple[int, int], asyncio.Task[bytes | bytearray]] = {}
        self.pages: BytesLru[tuple[int, int]] = BytesLru(settings.index_bytes)
        self.blocks: BytesLru[tuple[int, int]] = BytesLru(settings.read_bytes)

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    def add(self, log: int, pages_offset: int) -> None:
        """Make a log readable; the pages of its index start at `pages_offset`."""
        self._pages_at[log] = pages_offset

    async def remove(self, log: int) -> None:
        """Close a log before its removal, as soon as the last read of it ends."""
        self._pages_at.pop(log, None)
        for path in (self._layout.log_file(log), self._layout.index_file(log)):
            handle = self._handles.pop(path, None)
            if handle is not None:
                handle.unwanted = True
                self._let_go(handle)
        await self._close_some()

    async def close(self) -> None:
        await asyncio.gather(*self._mending.values(), return_exceptions=True)
        handles, self._handles = list(self._handles.values()), {}
        self._to_close += [handle.file for handle in handles]
        await self._close_some()

    async def read(self, log: int, offset: int, length: int) -> bytes | bytearray:
        """Read from the log without the cache."""
        return await self._read(self._layout.log_file(log), offset, length)

    def drop_blocks(self, log: int, offset: int, size: int) -> None:
        """Drop the cached blocks of damaged bytes, so that the next read goes to the disk."""
        for block in range(offset // self._block_bytes, (offset + size) // self._block_bytes + 1):
            self.blocks.drop((log, block))

    async def block(self, log: int, block: int) -> bytes | bytearray:
        """The aligned block of the log with this number; concurrent callers share one read."""
        key = (log, block)
        cached = self.blocks.get(key)
        if cached is not None:
            return cached
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.ensure_future(
                self.read(log, block * self._block_bytes, self._block_bytes)
            )
            reading.add_done_callback(lambda done: self._block_read(key, done))
        return await asyncio.shield(reading)

    def _block_read(self, key: tuple[int, int], done: "asyncio.Task[bytes | bytearray]") -> None:
        del self._reading[key]
        if not done.cancelled() and done.exception() is None:
            self.blocks.put(key, done.result())

    def log_path(self, log: int) -> str:
        return self._layout.log_file(log)

    async def page(self, log: int, page: int) -> bytes | bytearray:
        """A verified page of the log's index; WireError if it is damaged and the rebuild fails."""
        cached = self.pages.get((log, page))
        if cached is not None:
            return cached
        try:
            return await self._page(log, page)
        except WireError as bad:
            await self.mend(log, f"page {page}: {bad.what}")
            return await self._page(log, page)

    async def mend(self, log: int, damage: str) -> None:
        """Rebuild the log's index once for all concurrent callers; WireError if that fails."""
        mending = self._mending.get(log)
        if mending is None:
            mending = self._mending[log] = asyncio.ensure_future(self._mend(log, damage))
            mending.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(mending)

    async def _mend(self, log: int, damage: str) -> None:
        """Cached pages and the runs in memory stay valid."""
        try:
            self._damages.index_mended(self._layout.index_file(log), damage)
            made = await rebuild_around(self._disk, self._layout, log, self._index.runs_in(log))
            if log in self._pages_at:
                self._pages_at[log] = made.pages_offset
            handle = self._handles.pop(self._layout.index_file(log), None)
            if handle is not None:  # the handle of the replaced file
                handle.unwanted = True
                self._let_go(handle)
        finally:
            del self._mending[log]

    async def _page(self, log: int, page: int) -> bytes | bytearray:

        async def read() -> bytes | bytearray:
            pages_at = self._pages_at.get(log)
            if pages_at is None:
                raise FileMissingError(f"log {log} was removed")
            data = await self._read(self._layout.index_file(log), pages_at + page * PAGE_BYTES, PAGE_BYTES)
            verify_page(data)
            return data

        data = await insist(f"index page {page} of log {log}", read)
        self.pages.put((log, page), data)
        return data

    async def _read(self, path: str, offset: int, length: int) -> bytes | bytearray:
        handle = await self._pin(path)
        try:
            return await handle.file.read_at(offset, length)
        finally:
            handle.pins -= 1
            self._let_go(handle)

    async def _pin(self, path: str) -> _Handle:
        handle = self._handles.pop(path, None)
        if handle is None:
            await self._close_some()
            handle = _Handle(await self._disk.open(path))
            if path in self._handles:  # a concurrent read opened it first; close this one after use
                handle.unwanted = True
        if not handle.unwanted:
            self._handles[path] = handle  # at the back: used just now
        handle.pins += 1
        return handle

    def _let_go(self, handle: _Handle) -> None:
        """Schedule the file for closing without waiting, since a cancelled reader must not block here."""
        if handle.unwanted and not handle.pins:
            self._to_close.append(handle.file)

    async def _close_some(self) -> None:
        """Close unused files, and the least recently used ones above the limit."""
        while len(self._handles) >= self._max_open:
            path = next((p for p, handle in self._handles.items() if not handle.pins), None)
            if path is None:
                break
            self._to_close.append(self._handles.pop(path).file)
        while self._to_close:
            await self._to_close.pop().close()


class EntryLocation(NamedTuple):
    """The row of an entry and its run."""

    run: LogRun
    row: Row


async def find(files: LogFiles, runs: LedgerRuns, entry_id: int) -> EntryLocation | None:
    """The newest copy of the entry; None if certainly no log has it. WireError if the index page is damaged."""
    for run in runs.covering(entry_id):
        row = await at_or_after(files, run, entry_id)
        if row.entry_id == entry_id:
            return EntryLocation(run, row)
    return None


async def next_id(files: LogFiles, runs: LedgerRuns, entry_id: int) -> EntryId | None:
    """The lowest entry id at or above `entry_id` in any log."""
    covering, first = runs.covering(entry_id), runs.next_first(entry_id)
    candidates: list[int] = [(await at_or_after(files, run, entry_id)).entry_id for run in covering]
    if first is not None:
        candidates.append(first)
    return EntryId(min(candidates)) if candidates else None


async def at_or_after(files: LogFiles, run: LogRun, entry_id: int) -> Row:
    """The first row of the run with an entry at or above `entry_id`, which must be in the run's range. WireError
    if the index on disk contradicts the run: such an index does not prove that an entry is absent."""
    row = await _at_or_after(files, run, entry_id)
    if not entry_id <= row.entry_id <= run.last or (run.is_dense and row.entry_id != entry_id):
        raise WireError(f"entry {row.entry_id} is in the index of log {run.log} in place of entry {entry_id}")
    return row


async def _at_or_after(files: LogFiles, run: LogRun, entry_id: int) -> Row:
    if run.is_dense:
        return await _row(files, run, entry_id - run.first)
    low, high = 0, run.rows - 1  # the wanted row is in [low, high]
    # Stripes are regular: interpolation by id nearly always hits the right page. From there the search moves in
    # growing steps, and at most half of the remaining range.
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
