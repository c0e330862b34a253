"""Inspection of a stopped bookie's folder: contents, verification of every checksum, rebuild of indexes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from weir.bookie import entry_log_scan
from weir.bookie.damage import Doubts
from weir.bookie.entry_log_writer import WrittenLog
from weir.bookie.folder import (
    Layout,
    free_sequences,
    insist,
    journal_sequences,
    load_checkpoint,
    read_cookie,
    read_small,
)
from weir.bookie.journal_scan import JournalReplay
from weir.bookie.store import Store
from weir.model.errors import (
    BookieCookieError,
    DiskError,
    FileMissingError,
    JournalCorruptError,
    WireError,
)
from weir.model.ids import EntryId, LedgerId
from weir.runtime.interfaces import Disk, Runtime
from weir.runtime.loss_records import load_end_record
from weir.wire.bookie_files import PAGE_BYTES, Checkpoint, IndexHeader, Row, decode_checkpoint
from weir.wire.entry import entry_key, verify_entry

#: Called with the processed bytes and the total bytes.
Progress = Callable[[int, int], None]

_PROGRESS_EVERY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """Summary of one ledger in a folder."""

    ledger_id: LedgerId
    #: In entry logs, and in the journal only.
    logged_entries: int
    journaled_entries: int
    logged_bytes: int
    last_entry: EntryId
    last_confirmed: EntryId
    fenced: bool


@dataclass(frozen=True, slots=True)
class FileSummary:
    """One file, its size, and a remark."""

    path: str
    size: int
    note: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """Summary of a folder."""

    bookie_id: str
    instance: str
    checkpoint: Checkpoint
    ledgers: list[LedgerSummary]
    files: list[FileSummary]
    #: Unreadable files; `verify` finds more.
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that fail verification."""

    path: str
    offset: int
    what: str
    #: The entry of these bytes, if they belong to a single one.
    ledger_id: LedgerId | None = None
    entry_id: EntryId | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of a verification: the amount of data checked, and the damage."""

    journal_records: int
    logs: int
    entries: int
    bytes_read: int
    damages: list[Damage]


async def inspect(runtime: Runtime, directory: str) -> Inspection:
    """Summarize the folder. FileLockedError while its bookie runs."""
    async with _folder(runtime, directory) as layout:
        cookie = await read_cookie(runtime, layout)
        checkpoint = await load_checkpoint(runtime.disk, layout)
        store, problems = Store(checkpoint, write_cache_bytes=1), []
        files: list[FileSummary] = []
        for number in checkpoint.logs:
            try:
                header, runs = await entry_log_scan.read_index(runtime.disk, layout, number)
            except (WireError, FileMissingError) as bad:
                problems.append(f"{layout.index_file(number)}: {bad.what}")
                continue
            store.load_log(WrittenLog(number, header.log_bytes, runs, header.pages_offset))
            note = f"{header.rows} entries of {header.runs} ledgers"
            files.append(FileSummary(layout.log_file(number), header.log_bytes, note))
        end = await load_end_record(runtime.disk, layout.journal_end)
        replay = JournalReplay(runtime.disk, layout, checkpoint.position, store.replay, end=end, sync=False)
        try:
            await replay.run()
        except JournalCorruptError as bad:
            problems.append(bad.what)
        files += await _journal_files(runtime.disk, layout, replay)
        return Inspection(cookie.bookie_id, cookie.instance, checkpoint, _ledgers(store), files, problems)


async def verify(runtime: Runtime, directory: str, progress: Progress = lambda _done, _all: None) -> Verification:
    """Read every byte that counts and check every checksum. FileLockedError while the bookie runs."""
    async with _folder(runtime, directory) as layout:
        return await _Verifier(runtime.disk, layout, progress).run(runtime)


async def rebuild_index(
    runtime: Runtime, directory: str, progress: Progress = lambda _done, _all: None
) -> dict[int, int]:
    """Rebuild every log's index from its entries; returns the number of rows by log. Damaged entries keep their
    rows. FileMissingError for a missing log."""
    async with _folder(runtime, directory) as layout:
        logs = (await load_checkpoint(runtime.disk, layout)).logs
        sizes = {number: await _size(runtime.disk, layout.log_file(number)) for number in logs}
        done, total, rows = 0, sum(sizes.values()), {}
        for number, size in sizes.items():

            def so_far(offset: int, before: int = done) -> None:
                progress(before + offset, total)

            written = await entry_log_scan.rebuild_index(runtime.disk, layout, number, so_far)
            rows[number] = sum(run.rows for run in written.runs)
            done += size
            progress(done, total)
        return rows


@asynccontextmanager
async def _folder(runtime: Runtime, directory: str) -> AsyncIterator[Layout]:
    """Lock the folder of a stopped bookie for the duration of the block."""
    layout = Layout(directory.rstrip("/") or "/")
    if not await runtime.disk.exists(layout.cookie):
        raise FileMissingError(f"{directory} is not the folder of a bookie: it has no cookie")
    lock = await runtime.disk.lock(layout.lock)
    try:
        yield layout
    finally:
        await lock.release()


async def _size(disk: Disk, path: str) -> int:
    file = await disk.open(path)
    try:
        return await file.size()
    finally:
        await file.close()


async def _journal_files(disk: Disk, layout: Layout, replay: JournalReplay) -> list[FileSummary]:
    names = await disk.list(layout.journal)
    found = [
        (layout.journal_file(n), replay.cases[n].value if n in replay.cases else "not looked at")
        for n in journal_sequences(names)
    ]
    found += [(layout.free_file(n), "kept for reuse") for n in free_sequences(names)]
    return [FileSummary(path, await _size(disk, path), note) for path, note in found]


def _ledgers(store: Store) -> list[LedgerSummary]:
    return [
        LedgerSummary(
            ledger_id,
            store.index.entries_of(ledger_id),
            store.cache.entries_of(ledger_id),
            sum(run.size for run in store.index.get(ledger_id) or ()),
            store.last_entry(ledger_id),
            store.ledgers.last_confirmed(ledger_id),
            store.ledgers.is_fenced(ledger_id),
        )
        for ledger_id in store.known_ledgers()
    ]


class _Verifier:
    """One pass over a folder."""

    def __init__(self, disk: Disk, layout: Layout, progress: Progress) -> None:
        self._disk = disk
        self._layout = layout
        self._progress = progress
        self._damages: list[Damage] = []
        self._records = 0
        self._entries = 0
        self._done = 0
        self._total = 0
        self._told = 0

    async def run(self, runtime: Runtime) -> Verification:
        try:
            await read_cookie(runtime, self._layout)
        except BookieCookieError as bad:
            self._damages.append(Damage(self._layout.cookie, 0, bad.what))
        try:
            await Doubts(self._disk, self._layout).load()
        except JournalCorruptError as bad:
            self._damages.append(Damage(self._layout.doubtful, 0, bad.what))
        for path in self._layout.checkpoints:
            await self._checkpoint_copy(path)
        logs: tuple[int, ...] = ()
        try:
            checkpoint = await load_checkpoint(self._disk, self._layout)
        except JournalCorruptError as bad:
            self._damages.append(Damage(self._layout.checkpoints[0], 0, bad.what))
        else:
            logs = checkpoint.logs
            await self._measure(logs)
            await self._journal(checkpoint)
        for number in logs:
            await self._log(number)
        return Verification(self._records, len(logs), self._entries, self._done, self._damages)

    def _advance(self, count: int) -> None:
        self._done += count
        if self._done - self._told >= _PROGRESS_EVERY_BYTES or self._done == self._total:
            self._told = self._done
            self._progress(self._done, self._total)

    async def _checkpoint_copy(self, path: str) -> None:
        try:
            await read_small(self._disk, path, decode_checkpoint)
        except (WireError, FileMissingError) as bad:
            self._damages.append(Damage(path, 0, bad.what))

    async def _measure(self, logs: tuple[int, ...]) -> None:
        for number in logs:
            try:
                self._total += await _size(self._disk, self._layout.log_file(number))
            except FileMissingError:
                continue

    async def _journal(self, checkpoint: Checkpoint) -> None:
        def count(_header: object, _body: object) -> None:
            self._records += 1

        end = await load_end_record(self._disk, self._layout.journal_end)
        replay = JournalReplay(self._disk, self._layout, checkpoint.position, count, end=end, sync=False)
        try:
            await replay.run()
        except JournalCorruptError as bad:
            path, offset = replay.stopped_at or (self._layout.journal, 0)
            self._damages.append(Damage(path, offset, bad.what))

    async def _log(self, number: int) -> None:
        """Verify every entry: at the positions of the index, or, without an index, by a scan of the log."""
        rows = await self._index_rows(number)
        path = self._layout.log_file(number)
        try:
            if rows is None:
                await self._scan(path)
            else:
                await self._entries_at(path, rows)
        except DiskError as bad:
            self._damages.append(Damage(path, 0, bad.what))

    async def _scan(self, path: str) -> None:
        async for stretch in entry_log_scan.scan_log(self._disk, path):
            self._entries += 1
            self._advance(stretch.size)
            if stretch.damage is not None:
                self._damaged(path, stretch.offset, stretch.ledger_id, stretch.entry_id, stretch.damage)

    async def _entries_at(self, path: str, rows: "list[tuple[LedgerId, Row]]") -> None:
        file = await self._disk.open(path)
        try:
            for ledger_id, row in rows:
                self._entries += 1

                async def read(row: Row = row, ledger_id: LedgerId = ledger_id) -> None:
                    data = await file.read_at(row.offset, row.size)
                    verify_entry(data)
                    if entry_key(data) != (ledger_id, row.entry_id):
                        raise WireError(f"entry {entry_key(data)} lies in its place")

                try:
                    await insist(f"{path} at {row.offset}", read)
                except WireError as bad:
                    self._damaged(path, row.offset, ledger_id, row.entry_id, bad.what)
                self._advance(row.size)
        finally:
            await file.close()

    def _damaged(self, path: str, offset: int, ledger_id: LedgerId, entry_id: EntryId, what: str) -> None:
        said = f"entry {entry_id} of ledger {ledger_id}: {what}"
        self._damages.append(Damage(path, offset, said, ledger_id, entry_id))

    async def _index_rows(self, number: int) -> "list[tuple[LedgerId, Row]] | None":
        """Every row of a log's index, with its ledger, each page verified; None if the positions are unknown."""
        path = self._layout.index_file(number)
        try:
            header, runs = await entry_log_scan.read_index(self._disk, self._layout, number)
            await self._check_pages(path, header)
        except (WireError, DiskError) as bad:
            self._damages.append(Damage(path, 0, bad.what))
            return None
        try:
            rows = await entry_log_scan.rows_of_pages(self._disk, self._layout, number, header, runs)
        except WireError:
            return None
        return [(run.ledger_id, row) for run in runs for row in rows[run.first_row : run.first_row + run.rows]]

    async def _check_pages(self, path: str, header: IndexHeader) -> None:
        file = await self._disk.open(path)
        try:
            for page in range(header.pages):
                try:
                    await entry_log_scan.read_page(file, header, page)
                except WireError as bad:
                    self._damages.append(Damage(path, header.pages_offset + page * PAGE_BYTES, bad.what))
        finally:
            await file.close()
