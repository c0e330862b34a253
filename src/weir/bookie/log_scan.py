"""Reads logs from one end to the other: loads an index, checks it against its log, or makes it anew."""

import logging
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from weir.bookie.layout import Layout
from weir.bookie.log_writer import LogWriter, WrittenLog
from weir.bookie.settings import FlushSettings
from weir.bookie.small_files import insist
from weir.model.errors import EntryCorruptError, FileMissingError, WireError
from weir.model.ids import EntryId, LedgerId
from weir.runtime.interfaces import Disk, File
from weir.wire.entry import HEADER_BYTES as ENTRY_HEADER_BYTES
from weir.wire.entry import entry_key, entry_size, last_confirmed_of, verify_entry
from weir.wire.entrylog import HEADER_BYTES, IndexHeader, Run, decode_header, decode_runs

log = logging.getLogger(__name__)

_WINDOW_BYTES = 1024 * 1024


class ScannedEntry(NamedTuple):
    """An entry of a log, and what is wrong with it, if anything."""

    ledger_id: LedgerId
    entry_id: EntryId
    offset: int
    data: bytes | bytearray
    damage: str | None


async def load_log(disk: Disk, layout: Layout, log_id: int, settings: FlushSettings) -> WrittenLog:
    """The log as its index describes it; an index that is missing or damaged is made anew from the log.

    FileMissingError if the log itself is gone; EntryCorruptError if it cannot be indexed either.
    """
    try:
        header, runs = await read_index(disk, layout, log_id)
        return WrittenLog(log_id, header.log_bytes, runs, header.pages_offset)
    except (WireError, FileMissingError) as bad:
        log.error("%s: %s; making it anew from the log", layout.index_file(log_id), bad)
    return await rebuild_index(disk, layout, log_id, settings)


async def read_index(disk: Disk, layout: Layout, log_id: int) -> tuple[IndexHeader, list[Run]]:
    """Header and runs, verified, and of the right length for the log."""
    size = await _size(disk, layout.log_file(log_id))
    file = await disk.open(layout.index_file(log_id))
    try:

        async def read() -> tuple[IndexHeader, list[Run]]:
            header = decode_header(await file.read_at(0, HEADER_BYTES))
            if header.file_bytes != await file.size() or header.log_bytes != size:
                raise WireError(f"index of {await file.size()} bytes for a log of {size} does not fit {header}")
            return header, decode_runs(header, await file.read_at(HEADER_BYTES, header.runs_bytes))

        return await insist(layout.index_file(log_id), read)
    finally:
        await file.close()


async def rebuild_index(
    disk: Disk,
    layout: Layout,
    log_id: int,
    settings: FlushSettings,
    progress: Callable[[int], None] = lambda _: None,
) -> WrittenLog:
    """Make the index from the log's entries. A damaged entry keeps its place, so that it is reported when read."""
    writer = LogWriter(disk, layout, log_id, settings)
    async for entry in scan_log(disk, layout.log_file(log_id)):
        writer.put(entry.ledger_id, [(entry.entry_id, entry.data)], last_confirmed_of(entry.data))
        if writer.is_due:
            writer.forget_pieces()
            progress(entry.offset)
    return await writer.finish_index()


async def scan_log(disk: Disk, path: str) -> AsyncIterator[ScannedEntry]:
    """Every entry. One that is damaged is yielded as such if its length can be believed, because a whole entry
    (or the end) follows; EntryCorruptError if not, since nothing says where the next one starts."""
    file = await disk.open(path)
    try:
        window = _Window(file, await file.size())
        at = 0
        while at < window.size:
            entry = await window.entry(at)
            if entry.damage is not None and not await window.whole_at(at + len(entry.data)):
                raise EntryCorruptError(f"{path} at offset {at}: {entry.damage}, and nothing whole follows")
            yield entry
            at += len(entry.data)
    finally:
        await file.close()


async def _size(disk: Disk, path: str) -> int:
    file = await disk.open(path)
    try:
        return await file.size()
    finally:
        await file.close()


class _Window:
    """A stretch of a file in memory, moved forward as entries are taken."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self.size = size
        self._data: bytes | bytearray = b""
        self._at = 0

    async def entry(self, at: int) -> ScannedEntry:
        """The entry at `at`, damaged or not; EntryCorruptError if not even its length makes sense."""

        async def read() -> bytes | bytearray:
            try:
                data = await self._one(at)
                verify_entry(data)
            except WireError:
                self._data = b""  # read from the disk again
                raise
            return data

        damage: str | None = None
        try:
            data = await insist(f"{self._file.path} at {at}", read)
        except WireError as bad:
            damage = bad.what
            try:
                data = await self._one(at)
            except WireError as unreadable:
                raise EntryCorruptError(f"{self._file.path} at offset {at}: {unreadable.what}") from unreadable
        return ScannedEntry(*entry_key(data), at, data, damage)

    async def whole_at(self, at: int) -> bool:
        if at == self.size:
            return True
        try:
            return (await self.entry(at)).damage is None
        except EntryCorruptError:
            return False

    async def _one(self, at: int) -> bytes | bytearray:
        size = entry_size(await self._bytes(at, ENTRY_HEADER_BYTES))
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
