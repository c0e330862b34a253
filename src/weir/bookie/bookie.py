"""The bookie: stores entries of many ledgers durably and serves them. Composes the parts of this package, opens
the folder (removes leftovers of a crash, loads the logs of the checkpoint, replays the journal) and reports
statistics.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from struct import Struct

from weir.bookie.damage import Copies, Damages, Doubts, no_copies
from weir.bookie.entry_log_scan import load_log
from weir.bookie.entry_logs import LogFiles
from weir.bookie.flush import Flusher
from weir.bookie.folder import TEMPORARY_SUFFIX, Layout, claim_folder, index_ids, load_checkpoint, log_ids
from weir.bookie.garbage_collection import GarbageCollector
from weir.bookie.journal import Journal, JournalFiles
from weir.bookie.journal_scan import JournalReplay
from weir.bookie.reader import Reader
from weir.bookie.settings import BookieSettings
from weir.bookie.space import BookieState, SpaceMonitor, StateBox
from weir.bookie.store import Store
from weir.bookie.write_cache import Batch
from weir.model.diagnosis import Loss
from weir.model.errors import (
    BookieBusyError,
    BookieError,
    BookieReadOnlyError,
    BookieUnavailableError,
    DiskError,
    EntryCorruptError,
    EntryLogMissingError,
    FileMissingError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from weir.model.ids import NO_ENTRY, Buffer, EntryId, LedgerId
from weir.model.ledger import ReadResult
from weir.runtime.interfaces import Disk, FileLock, Runtime
from weir.runtime.loss_records import EndFile, load_end_record, record_accepted
from weir.runtime.tasks import TaskScope
from weir.wire.bookie_files import Checkpoint, Position, RecordKind
from weir.wire.checksum import crc32c
from weir.wire.entry import HEADER_BYTES, MAX_PAYLOAD_BYTES
from weir.wire.metadata import Cookie

#: The entry header (`weir.wire.entry`) up to the last-add-confirmed.
_ENTRY = Struct("<IIQQq")


def checked_batch(ledger_id: LedgerId, entries: Sequence[tuple[EntryId, Buffer]]) -> Batch:
    """The entries as a batch that owns its bytes; EntryCorruptError if the header, length or checksum of one is
    wrong. The check runs before the journal write, so that the writer still has the entry if the network damaged
    it."""
    owned: list[tuple[EntryId, Buffer]] = []
    total, highest, last = 0, NO_ENTRY, NO_ENTRY
    unpack = _ENTRY.unpack_from
    for entry_id, data in entries:
        if type(data) is not bytes:
            data = _owned(data)
        size = len(data)
        if size < HEADER_BYTES or size > HEADER_BYTES + MAX_PAYLOAD_BYTES:
            raise EntryCorruptError(f"entry {entry_id} of ledger {ledger_id} has {size} bytes")
        crc, length, owner, number, confirmed = unpack(data)
        if owner != ledger_id or number != entry_id or length != size - HEADER_BYTES:
            raise EntryCorruptError(f"entry {number} of ledger {owner} arrived as entry {entry_id} of {ledger_id}")
        if crc32c(memoryview(data)[4:]) != crc:
            raise EntryCorruptError(f"entry {entry_id} of ledger {ledger_id} arrived damaged")
        if confirmed > highest:  # noqa: PLR1730 - a call per entry would cost more than all the rest
            highest = confirmed
        if entry_id > last:  # noqa: PLR1730
            last = entry_id
        total += size
        owned.append((entry_id, data))
    return Batch(ledger_id, owned, total, highest, last)


def _owned(data: Buffer) -> Buffer:
    """Bytes to keep in the write cache: a small slice must not keep a large buffer alive."""
    if isinstance(data, memoryview) and 2 * data.nbytes >= memoryview(data.obj).nbytes:
        return data
    return bytes(data)


@dataclass(frozen=True, slots=True)
class BookieStats:
    """Statistics of one bookie."""

    state: BookieState
    ledgers: int
    fenced_ledgers: int
    queued_bytes: int
    journal_writes: int
    journal_bytes: int
    write_cache_bytes: int
    write_cache_entries: int
    read_cache_bytes: int
    read_cache_hits: int
    read_cache_misses: int
    flushes: int
    logs: int
    log_bytes: int
    live_bytes: int
    removed_logs: int
    rewritten_bytes: int
    damaged_logs: int
    #: Damaged entries now; entries that a whole copy replaced; indexes that the bookie rebuilt.
    damaged_entries: int
    healed_entries: int
    mended_indexes: int
    free_bytes: int
    polls: int


log = logging.getLogger(__name__)


async def settle_names(disk: Disk, layout: Layout) -> None:
    """Sync the folders: a process killed earlier may have left names that only the page cache has, and later
    writes must not depend on names that a power loss would remove."""
    for folder in (layout.logs, layout.journal, layout.root):
        await disk.sync_dir(folder)


async def remove_leftovers(disk: Disk, layout: Layout, checkpoint: Checkpoint) -> None:
    """Remove files left by a crash: logs that the checkpoint does not name, and temporary files."""
    named = dict.fromkeys(checkpoint.logs)
    names = await disk.list(layout.logs)
    paths = [layout.log_file(number) for number in log_ids(names) if number not in named]
    paths += [layout.index_file(number) for number in index_ids(names) if number not in named]
    paths += [f"{layout.logs}/{name}" for name in names if name.endswith(TEMPORARY_SUFFIX)]
    paths += [f"{layout.root}/{name}" for name in await disk.list(layout.root) if name.endswith(TEMPORARY_SUFFIX)]
    for path in paths:
        log.info("removing %s, left by a crash", path)
        await disk.remove(path)


async def load_logs(disk: Disk, layout: Layout, checkpoint: Checkpoint, *, store: Store, files: LogFiles) -> None:
    """Load every log of the checkpoint, oldest first; EntryLogMissingError if a file is missing."""
    for number in checkpoint.logs:
        try:
            written = await load_log(disk, layout, number)
        except FileMissingError as missing:
            raise EntryLogMissingError(
                f"the checkpoint names {layout.log_file(number)}, which is gone"
            ) from missing
        store.load_log(written)
        files.add(number, written.pages_offset)


class Bookie:
    """One storage node, in process. Implements `weir.ledger.interfaces.Bookie`; create it with `Bookie.open`."""

    def __init__(
        self, runtime: Runtime, settings: BookieSettings, lock: FileLock, cookie: Cookie, store: Store
    ) -> None:
        layout = Layout(settings.directory)
        self._runtime = runtime
        self._settings = settings
        self._lock = lock
        self._store = store
        self._state = StateBox()
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskScope(f"bookie-{settings.bookie_id}", on_failure=self._failed)
        self._files = LogFiles(runtime.disk, layout, settings.cache, index=store.index, damages=store.damages)
        self._reader = Reader(store, self._files)
        self._journal_files = JournalFiles(runtime.disk, layout, settings.journal)
        self._space = SpaceMonitor(runtime, settings.directory, settings.space, self._state, self._journal_files)
        self._end_file = EndFile(runtime, layout.journal_end)
        self._journal = Journal(
            runtime,
            self._journal_files,
            settings.journal,
            commit=store.commit,
            has_room=lambda: store.cache.has_room,
            on_synced=lambda place: self._end_file.advance(place.sequence, place.nonce, place.offset),
            on_failure=self._failed,
            on_full=self._space.journal_full,
        )
        self._flusher = Flusher(
            runtime, layout, settings.flush, store=store, files=self._files, journal_files=self._journal_files
        )
        self._gc = GarbageCollector(runtime, layout, settings.gc, settings.flush, store=store, files=self._files)
        #: The identity of the disk, for comparison with the metadata of this bookie id.
        self.cookie = cookie
        #: Records that journal replay skipped, because the operator accepted their loss.
        self.losses: tuple[Loss, ...] = ()
        self.doubts = Doubts(runtime.disk, layout)
        self._may_delete = asyncio.Event()
        self._may_delete.set()

    # --- life -------------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls, runtime: Runtime, settings: BookieSettings, *, accept_loss: bool = False, copies: Copies = no_copies
    ) -> "Bookie":
        """Open the folder, formatting it if it is new, and replay the journal. JournalCorruptError if the journal
        lacks acknowledged records, unless `accept_loss` is set; `copies` then names the ledgers that other bookies
        also have, so that this bookie does not deny their entries."""
        layout = Layout(settings.directory)
        for folder in (layout.root, layout.journal, layout.logs):
            await runtime.disk.make_dirs(folder)
        lock = await runtime.disk.lock(layout.lock)
        try:
            cookie = await claim_folder(runtime, layout, settings.bookie_id)
            await settle_names(runtime.disk, layout)
            checkpoint = await load_checkpoint(runtime.disk, layout)
            bookie = cls(runtime, settings, lock, cookie, Store(checkpoint, settings.cache.write_bytes))
            await remove_leftovers(runtime.disk, layout, checkpoint)
            await load_logs(runtime.disk, layout, checkpoint, store=bookie._store, files=bookie._files)
            await bookie._start(layout, checkpoint.position, copies if accept_loss else None)
        except BaseException:
            await lock.release()
            raise
        return bookie

    async def _start(self, layout: Layout, checkpoint: Position, copies: Copies | None) -> None:
        await self.doubts.load()
        end = await load_end_record(self._runtime.disk, layout.journal_end)
        scan = await JournalReplay(
            self._runtime.disk, layout, checkpoint, self._store.replay, end=end, accept_loss=copies is not None
        ).run()
        if scan.losses and copies is not None:
            await self.doubts.begin(await copies())
            await record_accepted(self._runtime, layout.root, scan.losses)
            self.losses = tuple(scan.losses)
        self._end_file.start(end)
        await self._journal_files.open(scan.next_sequence)
        try:
            # Replayed entries go to logs before the bookie serves anything: from then on nothing depends on pages
            # of the old journal, which the kernel may treat as written although an earlier sync of them failed.
            await self._flusher.flush(lambda: Position(scan.next_sequence, 0, 0))
        except DiskError as failed:
            log.error("flush of the replayed entries failed: %s", failed)
            self._space.flush_failed()
        try:
            await self._journal.start(scan.next_sequence, scan.previous)
        except BaseException:
            await self._end_file.close(final=False)
            await self._journal_files.close()
            await self._files.close()
            raise
        await self._space.look()
        self._tasks.spawn(self._flush(), "flush")
        self._tasks.spawn(self._gc.run(), "gc")
        self._tasks.spawn(self._space.run(), "space")

    async def _flush(self) -> None:
        await self._flusher.run(
            lambda: self._journal.position, self._journal.poke, self._flush_failed, self._space.flush_succeeded
        )

    def _flush_failed(self, failure: DiskError) -> None:
        self._space.flush_failed()
        if not self._store.cache.has_room:
            self._journal.refuse_queued_adds(
                lambda: BookieReadOnlyError(f"entries cannot be flushed: {failure.what}")
            )

    def _failed(self, failure: BaseException) -> None:
        if self._state.state is not BookieState.CLOSED:
            log.error("the bookie failed: %s", failure)
        self._state.become(BookieState.FAILED)
        self._store.ledgers.wake_all()

    async def close(self) -> None:
        """Refuse new requests, flush, and leave the folder so that the next start has nothing to replay."""
        if self._state.state is BookieState.CLOSED:
            return
        failed = self._state.state is BookieState.FAILED
        self._state.close()
        self._store.ledgers.wake_all()
        if not failed:
            await self._journal.idle()
        await self._tasks.close()
        if not failed:
            try:
                await self._flusher.flush_all(lambda: self._journal.position)
            except DiskError as unflushed:
                log.error("closed without a flush, the next start replays the journal: %s", unflushed)
        await self._journal.close()
        await self._end_file.close(final=not failed)
        await self._journal_files.close()
        await self._files.close()
        await self._lock.release()

    # --- the bookie's verbs -------------------------------------------------------------------------------------

    def add(
        self, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, Buffer]], *, recovery: bool = False
    ) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = self._loop.create_future()
        try:
            self._require_admission(ledger_id, recovery)
            batch = checked_batch(ledger_id, entries)
            if not self._journal.takes(batch.size):
                raise BookieBusyError(f"{self._journal.queued_bytes} bytes wait for the journal")
        except BookieError as refusal:
            # Its traceback has this frame and those of the callers: with the future it would be a cycle that keeps
            # the entries until the next garbage collection.
            future.set_exception(refusal.with_traceback(None))
            future.exception()  # the caller may have disconnected: no "never retrieved" warning
            return future
        if batch.entries:
            self._journal.put_batch(batch, future)
        else:
            future.set_result(None)
        return future

    async def read(self, ledger_id: LedgerId, first: EntryId, last: EntryId, *, max_bytes: int) -> ReadResult:
        self._require_open()
        self._require_known(ledger_id)
        try:
            entries = await self._reader.read(ledger_id, first, last, max_bytes)
        except NoSuchEntryError as denial:
            raise self.doubts.instead_of(denial, ledger_id) from None
        return ReadResult(entries, self._store.ledgers.last_confirmed(ledger_id))

    async def poll(self, ledger_id: LedgerId, after: EntryId, *, timeout_s: float) -> ReadResult:
        self._require_open()
        ledgers = self._store.ledgers
        deadline = self._runtime.clock.monotonic() + timeout_s
        while (confirmed := ledgers.last_confirmed(ledger_id)) <= after:
            left = deadline - self._runtime.clock.monotonic()
            if left <= 0 or await self._wait(ledger_id, left):
                self._require_open()
                confirmed = ledgers.last_confirmed(ledger_id)
                break
        if confirmed <= after:
            return ReadResult([], confirmed)
        entry_id = EntryId(after + 1)
        try:
            data = await self._reader.get(ledger_id, entry_id)
        except EntryCorruptError:  # a read of the entry reports it
            data = None
        return ReadResult([] if data is None else [(entry_id, data)], confirmed)

    async def _wait(self, ledger_id: LedgerId, timeout_s: float) -> bool:
        """Wait for the last-add-confirmed to advance. Returns True on a timeout, a fence or a deletion."""
        ledgers = self._store.ledgers
        if ledgers.waiters >= self._settings.max_polls:
            raise BookieBusyError(f"{ledgers.waiters} polls wait already")
        waiting = ledgers.wait(ledger_id)
        timer = self._runtime.clock.call_later(
            timeout_s, lambda: None if waiting.done() else waiting.set_result(True)
        )
        try:
            return await waiting
        finally:
            timer.cancel()
            ledgers.stop_waiting(ledger_id, waiting)

    async def last_confirmed(self, ledger_id: LedgerId) -> EntryId:
        self._require_open()
        self._require_known(ledger_id)
        return self._store.ledgers.last_confirmed(ledger_id)

    def confirm(self, ledger_id: LedgerId, last_confirmed: EntryId) -> None:
        self._store.ledgers.hint_confirmed(ledger_id, last_confirmed)

    async def fence(self, ledger_id: LedgerId) -> EntryId:
        self._require_open()
        ledgers = self._store.ledgers
        if not ledgers.is_fenced_durably(ledger_id):
            ledgers.begin_fence(ledger_id)
            try:
                await self._journaled(RecordKind.FENCE, ledger_id)
            finally:
                ledgers.end_fence(ledger_id)
        return ledgers.last_confirmed(ledger_id)

    async def delete(self, ledger_id: LedgerId) -> None:
        await self._may_delete.wait()
        self._require_open()
        self._store.ledgers.refuse(ledger_id)
        await self._journaled(RecordKind.DELETE, ledger_id)

    def _journaled(self, kind: RecordKind, ledger_id: LedgerId) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = self._loop.create_future()
        self._journal.put_ledger(kind, ledger_id, future)
        return future

    # --- for the owner of the bookie ----------------------------------------------------------------------------

    @property
    def state(self) -> BookieState:
        return self._state.state

    @property
    def why_read_only(self) -> str:
        """The reason for the read-only state; empty in any other state."""
        return self._state.why if self._state.state is BookieState.READ_ONLY else ""

    @property
    def free_bytes(self) -> int:
        """Free bytes of the disk at the last check."""
        return self._space.free_bytes

    async def state_changed(self, seen: BookieState) -> BookieState:
        """Wait until the state differs from `seen`, and return it."""
        return await self._state.changed_from(seen)

    @property
    def damages(self) -> Damages:
        """Entries that are damaged now."""
        return self._store.damages

    def ledgers(self) -> list[LedgerId]:
        """Every ledger that has entries or a fence here, sorted."""
        return self._store.known_ledgers()

    def highest_ledger(self) -> LedgerId:
        """The highest id of any ledger that this bookie has or has deleted; 0 without any."""
        return max([LedgerId(0), self._store.ledgers.highest_gone(), *self._store.known_ledgers()[-1:]])

    async def flush(self) -> None:
        """Write the cache to an entry log now."""
        self._require_open()
        await self._flusher.flush(lambda: self._journal.position, self._journal.poke)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Prevent removal and rewriting of entry logs while the block runs."""
        async with self._gc.paused():
            yield

    async def freeze(self, look: Callable[[], None]) -> Checkpoint:
        """A checkpoint of everything acknowledged before the call of `look`. With the entry logs that it names,
        which must stay `kept`, it makes a bookie of that moment, possibly with a few later entries. Deletions of
        ledgers wait until the checkpoint is complete."""
        self._require_open()
        self._may_delete.clear()
        try:
            await self.flush()
            look()
            store = self._store
            deleted, gone = tuple(store.tombstones.all()), store.ledgers.gone()
            for _ in range(2):  # the generation in flight, then the one active at `look`
                await self.flush()
            after = Position(self._journal.position.sequence + 1, 0, 0)
            return store.root(after, deleted, gone)
        finally:
            self._may_delete.set()

    async def collect(self, live_ledgers: Callable[[], Awaitable[Collection[LedgerId]]]) -> int:
        """Delete local ledgers that no longer exist, then collect garbage; returns the number of deleted ledgers.

        `live_ledgers` runs after the listing of the local ledgers: the metadata has a ledger before its first
        entry arrives here, so a ledger that is missing in the metadata by then was deleted.
        """
        local = self.ledgers()
        live = frozenset(await live_ledgers())
        gone = [ledger_id for ledger_id in local if ledger_id not in live]
        if gone:
            await self._may_delete.wait()
            self._require_open()
            await asyncio.gather(*(self._journaled(RecordKind.DELETE, ledger_id) for ledger_id in gone))
        await self._gc.collect()
        return len(gone)

    def stats(self) -> BookieStats:
        store, usage = self._store, self._store.index.usage()
        return BookieStats(
            state=self.state,
            ledgers=len(store.known_ledgers()),
            fenced_ledgers=len(store.ledgers.fenced()),
            queued_bytes=self._journal.queued_bytes,
            journal_writes=self._journal.writes,
            journal_bytes=self._journal.bytes_written,
            write_cache_bytes=store.cache.size,
            write_cache_entries=store.cache.count,
            read_cache_bytes=self._files.blocks.size,
            read_cache_hits=self._files.blocks.hits,
            read_cache_misses=self._files.blocks.misses,
            flushes=self._flusher.flushes,
            logs=len(usage),
            log_bytes=sum(use.size for use in usage),
            live_bytes=sum(use.live for use in usage),
            removed_logs=self._gc.removed_logs,
            rewritten_bytes=self._gc.rewritten_bytes,
            damaged_logs=len(self._gc.damaged),
            damaged_entries=store.damages.count,
            healed_entries=store.damages.healed_entries,
            mended_indexes=store.damages.mended_indexes,
            free_bytes=self._space.free_bytes,
            polls=store.ledgers.waiters,
        )

    # --- refusals -----------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        state = self._state.state
        if state in (BookieState.FAILED, BookieState.CLOSED):
            raise BookieUnavailableError(f"bookie {self._settings.bookie_id} is {state.value}")

    def _require_known(self, ledger_id: LedgerId) -> None:
        ledgers = self._store.ledgers
        if not ledgers.is_known(ledger_id) and not ledgers.is_fenced(ledger_id):
            denial = NoSuchLedgerError(f"ledger {ledger_id} is not on bookie {self._settings.bookie_id}")
            raise self.doubts.instead_of(denial, ledger_id)

    def _require_admission(self, ledger_id: LedgerId, recovery: bool) -> None:
        ledgers = self._store.ledgers
        refused = ledgers.is_fenced(ledger_id) or ledgers.is_gone(ledger_id) or ledger_id in self.doubts.ledgers
        fenced = refused and not recovery
        if not fenced and self._state.state is BookieState.WRITABLE:
            return
        self._require_open()
        if fenced:
            raise LedgerFencedError(
                f"ledger {ledger_id} is {'deleted' if ledgers.is_gone(ledger_id) else 'fenced'}"
            )
        # A recovery only restores entries acknowledged elsewhere: they may use the remaining space.
        if self.state is BookieState.READ_ONLY and not (recovery and self._store.cache.has_room):
            raise BookieReadOnlyError(
                f"bookie {self._settings.bookie_id} takes no entries for now: {self._state.why or 'see its log'}"
            )
