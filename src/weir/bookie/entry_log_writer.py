"""Writer of one entry log and its index, for flushes and for garbage collection."""

from collections.abc import Sequence
from typing import NamedTuple

from weir.bookie.folder import TEMPORARY_SUFFIX, Layout
from weir.bookie.settings import FlushSettings
from weir.model.ids import Buffer, EntryId, LedgerId
from weir.runtime.interfaces import Disk, File
from weir.wire.bookie_files import ROWS_PER_PAGE, Row, Run, encode_head, encode_page, pack_row, pack_run

#: Below this average size the writer joins entries into one buffer per write.
_JOIN_BELOW_BYTES = 16 * 1024
#: Limit of the work between two writes by number of entries, for small ones.
_CHUNK_ENTRIES = 4096
_PAGES_PER_WRITE = 64


class WrittenLog(NamedTuple):
    """A complete, synced log with its index; it takes effect when a checkpoint names it."""

    log: int
    size: int
    runs: list[Run]
    pages_offset: int


class LogWriter:
    """Writes one log. `put` only buffers; call `drain` to write when `is_due`."""

    def __init__(self, disk: Disk, layout: Layout, log: int, settings: FlushSettings) -> None:
        self._disk = disk
        self._layout = layout
        self._log = log
        self._settings = settings
        self._file: File | None = None
        self._pieces: list[Buffer] = []
        self._written = 0
        self._synced = 0
        self._rows: list[bytes] = []
        self._runs: list[Run] = []
        self._packed_runs: list[bytes] = []
        self.size = 0

    @property
    def is_due(self) -> bool:
        return self.size - self._written >= self._settings.chunk_bytes or len(self._pieces) >= _CHUNK_ENTRIES

    def put(self, ledger_id: LedgerId, entries: list[tuple[EntryId, Buffer]], confirmed: EntryId) -> None:
        """Buffer entries of a ledger, in order. Entries of a ledger must be adjacent, in one call or in
        several."""
        offset, first_row = self.size, len(self._rows)
        at = offset
        pieces, rows = self._pieces, self._rows
        for entry_id, data in entries:
            size = len(data)
            rows.append(pack_row(entry_id, at, size))
            pieces.append(data)
            at += size
        self.size = at
        first, last = entries[0][0], entries[-1][0]
        if self._runs and self._runs[-1].ledger_id == ledger_id:
            run = self._runs.pop()
            self._packed_runs.pop()
            first, first_row, offset = run.first, run.first_row, run.offset
            confirmed = max(confirmed, run.last_confirmed)
        whole = Run(ledger_id, first, last, first_row, len(rows) - first_row, offset, at - offset, confirmed)
        self._runs.append(whole)
        self._packed_runs.append(pack_run(*whole))

    async def drain(self) -> None:
        """Write the buffered entries."""
        pieces, self._pieces = self._pieces, []
        start, self._written = self._written, self.size
        if self._file is None:
            self._file = await self._disk.open(self._layout.log_file(self._log), create=True)
            await self._file.truncate(0)
        if len(pieces) > 1 and self._written - start < _JOIN_BELOW_BYTES * len(pieces):
            pieces = [b"".join(pieces)]
        await self._file.write_at(start, pieces)
        if self._written - self._synced >= self._settings.sync_every_bytes:
            await self._file.sync()
            self._synced = self._written

    async def finish(self) -> WrittenLog:
        """Write the rest and the index, and sync both."""
        await self.drain()
        await self._close_synced()
        head = encode_head(b"".join(self._packed_runs), len(self._rows), self.size)
        await _write_index(self._disk, self._layout.index_file(self._log), head, self._rows)
        await self._disk.sync_dir(self._layout.logs)
        return WrittenLog(self._log, self.size, self._runs, len(head))

    async def abandon(self) -> None:
        """Close after a failure. No checkpoint names the files, so the next open removes them."""
        if self._file is not None:
            await self._file.close()
            self._file = None

    async def _close_synced(self) -> None:
        if self._file is not None:
            await self._file.sync()
            await self._file.close()
            self._file = None


async def write_index(
    disk: Disk, layout: Layout, log: int, runs: Sequence[Run], *, rows: Sequence[Row], log_bytes: int
) -> int:
    """Replace the index of a log atomically; returns the offset of its pages."""
    head = encode_head(b"".join(pack_run(*run) for run in runs), len(rows), log_bytes)
    path = layout.index_file(log)
    await _write_index(disk, path + TEMPORARY_SUFFIX, head, [pack_row(*row) for row in rows])
    await disk.rename(path + TEMPORARY_SUFFIX, path)
    await disk.sync_dir(layout.logs)
    return len(head)


async def _write_index(disk: Disk, path: str, head: bytes, rows: Sequence[bytes]) -> None:
    file = await disk.open(path, create=True)
    try:
        await file.truncate(0)
        await file.write_at(0, [head])
        at = len(head)
        step = ROWS_PER_PAGE * _PAGES_PER_WRITE
        for first in range(0, len(rows), step):
            stretch = rows[first : first + step]
            pages = [
                encode_page(b"".join(stretch[row : row + ROWS_PER_PAGE]))
                for row in range(0, len(stretch), ROWS_PER_PAGE)
            ]
            await file.write_at(at, [b"".join(pages)])
            at += sum(map(len, pages))
        await file.sync()
    finally:
        await file.close()
