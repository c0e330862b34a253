"""Survey of the folder of a stopped bookie: reads every readable entry, despite damaged or missing files.

It reads entry logs from end to end, since an entry describes itself; the index names the entries inside damage. It
reads the journal from the checkpoint on, and also after damage. It writes nothing. It passes entries on in
batches; an entry may occur more than once, always with the same bytes."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from weir.bookie import entry_log_scan
from weir.bookie.damage import Doubts
from weir.bookie.entry_log_scan import LogWindow, Stretch
from weir.bookie.folder import (
    Layout,
    index_ids,
    journal_sequences,
    load_checkpoint,
    log_ids,
    read_cookie,
    read_small,
)
from weir.bookie.journal_scan import JournalReplay
from weir.model.errors import (
    BookieCookieError,
    DiskError,
    FileMissingError,
    JournalCorruptError,
    UnknownVersionError,
    WireError,
)
from weir.model.ids import Buffer, EntryId, LedgerId
from weir.runtime.interfaces import Disk, File, Runtime
from weir.runtime.loss_records import load_end_record
from weir.wire import bookie_files
from weir.wire.bookie_files import (
    PAGE_BYTES,
    ROWS_PER_PAGE,
    Checkpoint,
    IndexHeader,
    Position,
    Row,
    decode_checkpoint,
)
from weir.wire.entry import HEADER_BYTES, entry_key, entry_size, last_confirmed_of, verify_entry
from weir.wire.metadata import Cookie

_CHUNK_BYTES = 4 * 1024 * 1024
#: Size of a batch.
_BATCH_BYTES = 1024 * 1024

Batch = list[tuple[EntryId, bytes]]
#: Receives whole entries of one ledger.
Take = Callable[[LedgerId, Batch], Awaitable[None]]
#: Called with the processed bytes and the total bytes.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class FileDamage:
    """Bytes that fail verification or are missing."""

    path: str
    offset: int
    what: str
    #: The entry of these bytes, if known.
    ledger_id: LedgerId | None = None
    entry_id: EntryId | None = None


@dataclass(slots=True)
class BookieSurvey:
    """Result of a survey."""

    cookie: Cookie | None = None
    checkpoint: Checkpoint | None = None
    damages: list[FileDamage] = field(default_factory=list)
    #: The highest known entry of each ledger.
    last: dict[LedgerId, EntryId] = field(default_factory=dict)
    logs: int = 0
    entries: int = 0
    journal_records: int = 0
    bytes_read: int = 0

    def heard_of(self, ledger_id: LedgerId, entry_id: int) -> None:
        if entry_id > self.last.get(ledger_id, -1):
            self.last[ledger_id] = EntryId(entry_id)


async def survey(
    runtime: Runtime,
    directory: str,
    take: Take,
    progress: Progress = lambda _done, _all: None,
    *,
    entry_logs: bool = True,
) -> BookieSurvey:
    """Pass on every whole entry, and return the damage. The caller has the folder's lock. UnknownVersionError if a
    newer Weir wrote it. Without `entry_logs`, reads only what a start reads: of entry logs their indexes."""
    layout = Layout(directory.rstrip("/") or "/")
    return await _Surveyor(runtime, layout, take, progress, entry_logs=entry_logs).run()


class _Surveyor:
    """One pass over a folder."""

    def __init__(
        self, runtime: Runtime, layout: Layout, take: Take, progress: Progress, *, entry_logs: bool
    ) -> None:
        self._runtime = runtime
        self._disk = runtime.disk
        self._layout = layout
        self._take = take
        self._progress = progress
        self._entry_logs = entry_logs
        self._found = BookieSurvey()
        self._total = 0
        self._ledger = LedgerId(-1)
        self._batch: Batch = []
        self._batch_bytes = 0

    async def run(self) -> BookieSurvey:
        found = self._found
        await self._identity()
        await self._doubts()
        await self._checkpoint()
        logs = await self._logs()
        sizes = {number: await _size(self._disk, self._layout.log_file(number)) for number in logs}
        self._total = sum(size or 0 for size in sizes.values())
        for number, size in sizes.items():
            await self._log(number, size)
        await self._journal()
        await self._hand_on()
        found.logs = len(logs)
        return found

    def _damage(self, path: str, offset: int, what: str) -> None:
        self._found.damages.append(FileDamage(path, offset, what))

    async def _identity(self) -> None:
        try:
            self._found.cookie = await read_cookie(self._runtime, self._layout)
        except (BookieCookieError, FileMissingError) as bad:
            self._damage(self._layout.cookie, 0, bad.what)

    async def _doubts(self) -> None:
        try:
            await Doubts(self._disk, self._layout).load()
        except JournalCorruptError as bad:
            self._damage(self._layout.doubtful, 0, bad.what)

    async def _checkpoint(self) -> None:
        for path in self._layout.checkpoints:
            try:
                await read_small(self._disk, path, decode_checkpoint)
            except (WireError, FileMissingError) as bad:
                self._damage(path, 0, bad.what)
        with suppress(JournalCorruptError):  # reported above, per copy
            self._found.checkpoint = await load_checkpoint(self._disk, self._layout)

    async def _logs(self) -> list[int]:
        """The logs of the checkpoint; without one, all logs with a data or an index file."""
        if self._found.checkpoint is not None:
            return sorted(self._found.checkpoint.logs)
        names = await self._names(self._layout.logs)
        return sorted(dict.fromkeys([*log_ids(names), *index_ids(names)]))

    async def _names(self, folder: str) -> list[str]:
        try:
            return await self._disk.list(folder)
        except FileMissingError as gone:
            self._damage(folder, 0, gone.what)
            return []

    # --- handing on ---------------------------------------------------------------------------------------------

    async def _whole(self, data: Buffer) -> None:
        ledger_id, entry_id = entry_key(data)
        self._found.entries += 1
        self._found.heard_of(ledger_id, max(entry_id, last_confirmed_of(data)))
        if ledger_id != self._ledger or self._batch_bytes >= _BATCH_BYTES:
            await self._hand_on()
            self._ledger = ledger_id
        self._batch.append((entry_id, bytes(data)))
        self._batch_bytes += len(data)

    async def _hand_on(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            await self._take(self._ledger, batch)

    # --- entry logs ---------------------------------------------------------------------------------------------

    async def _log(self, number: int, size: int | None) -> None:
        path = self._layout.log_file(number)
        rows = await self._rows(number, size)
        if size is None:
            self._damage(path, 0, "the file is missing")
            self._lost_rows(path, rows, 0, "the file is missing")
            return
        try:
            if self._entry_logs:
                async with _opened(self._disk, path) as file:
                    await self._entries(file, size, rows)
        except DiskError as failed:
            self._damage(path, 0, failed.what)
        self._lost_rows(path, rows, size, f"the file ends at {size}")

    async def _entries(self, file: File, size: int, rows: "list[tuple[LedgerId, Row]]") -> None:
        before: Stretch | None = None
        damaged: Stretch | None = None
        async for stretch, data in _walk(file, 0, size):
            self._found.bytes_read += stretch.size
            if stretch.damage is not None:
                damaged = stretch
                continue
            if damaged is not None:
                self._damaged(file.path, damaged, rows, before, stretch)
                damaged = None
            await self._whole(data)
            before = stretch
            self._progress(self._found.bytes_read, self._total)
        if damaged is not None:
            self._damaged(file.path, damaged, rows, before, None)

    def _damaged(
        self,
        path: str,
        stretch: Stretch,
        rows: "list[tuple[LedgerId, Row]]",
        before: Stretch | None,
        after: Stretch | None,
    ) -> None:
        """Name the entries hidden by the damage: by the index, else by the neighboring entries."""
        begin, end = stretch.offset, stretch.offset + stretch.size
        named = [(ledger_id, row.entry_id, row.offset) for ledger_id, row in rows if begin <= row.offset < end]
        if not named and not rows:
            hidden = entry_log_scan.hidden_entries(stretch, before, after)
            named = [(each.ledger_id, each.entry_id, each.offset) for each in hidden if each.entry_id >= 0]
        if not named:
            self._damage(path, begin, f"{stretch.size} bytes: {stretch.damage}")
        for ledger_id, entry_id, offset in named:
            self._lost(path, offset, ledger_id, entry_id, stretch.damage or "")

    def _lost_rows(self, path: str, rows: "list[tuple[LedgerId, Row]]", end: int, why: str) -> None:
        for ledger_id, row in rows:
            if row.offset + row.size > end and row.offset >= end:
                self._lost(path, row.offset, ledger_id, row.entry_id, why)

    def _lost(self, path: str, offset: int, ledger_id: LedgerId, entry_id: EntryId, why: str) -> None:
        self._found.heard_of(ledger_id, entry_id)
        said = f"entry {entry_id} of ledger {ledger_id}: {why}"
        self._found.damages.append(FileDamage(path, offset, said, ledger_id, entry_id))

    async def _rows(self, number: int, size: int | None) -> "list[tuple[LedgerId, Row]]":
        """The rows of the index, page by page, without those of damaged pages."""
        path = self._layout.index_file(number)
        try:
            header, runs = await entry_log_scan.read_own_index(self._disk, self._layout, number)
        except UnknownVersionError:
            raise
        except (WireError, DiskError) as bad:
            self._damage(path, 0, bad.what)
            return []
        if size is not None and header.log_bytes != size:
            log_path = self._layout.log_file(number)
            self._damage(log_path, min(size, header.log_bytes), f"it has {size} bytes, not {header.log_bytes}")
        for run in runs:
            self._found.heard_of(run.ledger_id, max(run.last, run.last_confirmed))
        rows: dict[int, Row] = {}
        async with _opened(self._disk, path) as file:
            for page in range(header.pages):
                await self._page(file, header, page, rows)
        return [
            (run.ledger_id, rows[at])
            for run in runs
            for at in range(run.first_row, run.first_row + run.rows)
            if at in rows
        ]

    async def _page(self, file: File, header: IndexHeader, page: int, rows: dict[int, Row]) -> None:
        try:
            found = await entry_log_scan.read_page(file, header, page)
        except WireError as bad:
            what = f"{bad.what}; Weir rebuilds the index from the log automatically"
            self._damage(file.path, header.pages_offset + page * PAGE_BYTES, what)
            return
        first = page * ROWS_PER_PAGE
        rows.update(enumerate(found, first))

    # --- the journal --------------------------------------------------------------------------------------------

    async def _journal(self) -> None:
        records: list[tuple[bookie_files.RecordKind, bytes]] = []

        def keep(header: bookie_files.RecordHeader, body: memoryview) -> None:
            self._found.journal_records += 1
            if header.kind is bookie_files.RecordKind.ENTRIES:
                records.append((header.kind, bytes(body)))

        position = await self._journal_begin()
        if position is None:
            return
        end = await load_end_record(self._disk, self._layout.journal_end)
        replay = JournalReplay(self._disk, self._layout, position, keep, end=end, sync=False, accept_loss=True)
        try:
            await replay.run()
        except DiskError as failed:
            self._damage(self._layout.journal, 0, failed.what)
        for _, body in records:
            self._found.bytes_read += len(body)
            for _, _, data in bookie_files.split_entries(body):
                await self._whole(data)
        for path, offset, what in replay.stops:
            self._damage(path, offset, what)
            await self._behind(path, offset)

    async def _journal_begin(self) -> Position | None:
        if self._found.checkpoint is not None:
            return self._found.checkpoint.position
        present = journal_sequences(await self._names(self._layout.journal))
        return Position(present[0], 0, 0) if present else None

    async def _behind(self, path: str, offset: int) -> None:
        """Pass on the whole entries of a damaged journal record."""
        try:
            async with _opened(self._disk, path) as file:
                end = await _record_end(file, offset)
                async for stretch, data in _walk(file, offset + bookie_files.HEADER_BYTES, end):
                    if stretch.damage is None:
                        await self._whole(data)
                    elif stretch.entry_id >= 0:
                        self._lost(path, stretch.offset, stretch.ledger_id, stretch.entry_id, stretch.damage)
        except FileMissingError:
            return


async def _record_end(file: File, offset: int) -> int:
    """The end of a bad record's bytes: at the next header, and before its zero padding."""
    size, at = await file.size(), offset + bookie_files.BLOCK_BYTES
    while at < size:
        window = await file.read_at(at, _CHUNK_BYTES)
        marks = range(4, len(window), bookie_files.BLOCK_BYTES)
        found = next((mark for mark in marks if window[mark : mark + 4] == bookie_files.MAGIC), None)
        if found is not None:
            at += found - 4
            break
        if not window.strip(b"\0"):
            break
        at += len(window)
    end = min(at, size)
    while end > offset:
        begin = max(offset, end - _CHUNK_BYTES)
        filled = len((await file.read_at(begin, end - begin)).rstrip(b"\0"))
        if filled:
            return begin + filled
        end = begin
    return end


async def _walk(file: File, begin: int, end: int) -> AsyncIterator[tuple[Stretch, Buffer]]:
    """Everything in these bytes of a file: whole entries with their bytes, and damage in between."""
    at = begin
    while at < end:
        data = await file.read_at(at, min(_CHUNK_BYTES, end - at))
        took = 0
        for stretch, entry in _whole_entries(data, at):
            yield stretch, entry
            took = stretch.offset + stretch.size - at
        at += took
        if took and at < end and len(data) == _CHUNK_BYTES:
            continue
        if at < end:
            stretch = await anext(LogWindow(file, end).stretches(at, end))
            whole = stretch.damage is None
            yield stretch, await file.read_at(at, stretch.size) if whole else b""
            at += stretch.size


def _whole_entries(data: bytes | bytearray, base: int) -> Iterator[tuple[Stretch, Buffer]]:
    """The whole entries at the start of these bytes, up to the first incomplete or damaged one."""
    view, at = memoryview(data), 0
    while len(view) - at >= HEADER_BYTES:
        try:
            size = entry_size(view, at)
            entry = view[at : at + size]
            verify_entry(entry)
        except WireError:
            return
        yield Stretch(base + at, size, *entry_key(entry), last_confirmed_of(entry), None), entry
        at += size


async def _size(disk: Disk, path: str) -> int | None:
    try:
        async with _opened(disk, path) as file:
            return await file.size()
    except FileMissingError:
        return None


@asynccontextmanager
async def _opened(disk: Disk, path: str) -> AsyncIterator[File]:
    file = await disk.open(path)
    try:
        yield file
    finally:
        await file.close()


def by_path(damages: Sequence[FileDamage]) -> dict[str, list[FileDamage]]:
    """Damage by file, in order of discovery."""
    found: dict[str, list[FileDamage]] = {}
    for damage in damages:
        found.setdefault(damage.path, []).append(damage)
    return found
