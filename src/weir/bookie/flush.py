"""Flushes the write cache to entry logs, writes the checkpoint, then releases journal files."""

import asyncio
import logging
from collections.abc import Callable

from weir.bookie.entry_log_writer import LogWriter, WrittenLog
from weir.bookie.entry_logs import LogFiles
from weir.bookie.folder import Layout
from weir.bookie.journal import JournalFiles
from weir.bookie.settings import FlushSettings
from weir.bookie.store import Store
from weir.bookie.write_cache import Generation
from weir.model.errors import DiskError, FileMissingError
from weir.model.ids import Buffer, EntryId
from weir.runtime.interfaces import Clock, Disk, Runtime
from weir.wire.bookie_files import Position

log = logging.getLogger(__name__)

#: Index insertions of runs, and entries put into a log, between two yields to the event loop.
RUNS_PER_TURN = 1000
_ENTRIES_PER_TURN = 2048


class Flusher:
    """One flush at a time. Readers always find an entry: it leaves the cache after it enters the index."""

    def __init__(
        self,
        runtime: Runtime,
        layout: Layout,
        settings: FlushSettings,
        *,
        store: Store,
        files: LogFiles,
        journal_files: JournalFiles,
    ) -> None:
        self._runtime = runtime
        self._layout = layout
        self._settings = settings
        self._store = store
        self._files = files
        self._journal_files = journal_files
        self._running = asyncio.Lock()
        #: The journal position at which the generation in flight was closed.
        self._due = store.flushed
        #: The first flush always writes a checkpoint: one copy of the loaded one may be old or damaged.
        self._checkpointed: Position | None = None
        self._leisurely = False  # no caller waits for the current flush
        self.flushes = 0

    async def run(
        self,
        position: Callable[[], Position],
        on_room: Callable[[], None],
        on_failure: Callable[[DiskError], None],
        on_success: Callable[[], None],
    ) -> None:
        """Flush when the cache is full and at each interval; retry after a failure."""
        while True:
            try:
                async with asyncio.timeout(self._settings.interval_s):
                    await self._store.cache.full.wait()
            except TimeoutError:
                pass
            while True:
                try:
                    await self.flush(position, on_room, leisurely=True)
                    on_success()
                    break
                except DiskError as failed:
                    log.error("flush failed, the entries stay in memory and in the journal: %s", failed)
                    on_failure(failed)
                    await self._runtime.clock.sleep(self._settings.retry_s)

    async def flush(
        self,
        position: Callable[[], Position],
        on_room: Callable[[], None] = lambda: None,
        *,
        leisurely: bool = False,
    ) -> None:
        """Write the generation that is due, or else the active one, and the checkpoint. A DiskError changes
        nothing, so the caller can retry. `leisurely`: with pauses, while the cache has room for them."""
        cache = self._store.cache
        async with self._running:
            self._leisurely = leisurely
            if cache.flushing is None:
                self._due = position()
                if cache.active_count:
                    cache.rotate()
            if cache.flushing is not None:
                await self._write(cache.flushing)
                cache.drop_flushed()
                on_room()
            await self._checkpoint(self._due)

    async def flush_all(self, position: Callable[[], Position]) -> None:
        """Flush until the cache is empty, for a bookie that refuses new entries."""
        while not self._store.cache.is_empty or self._checkpointed != position():
            await self.flush(position)

    async def _checkpoint(self, position: Position) -> None:
        if position == self._checkpointed:
            return
        self._store.flushed = position
        await self._store.save(self._runtime.disk, self._layout)
        self._checkpointed = position
        self.flushes += 1
        await self._journal_files.recycle(position.sequence)

    async def _write(self, generation: Generation) -> None:
        log_id = self._store.begin_log()
        writer = LogWriter(self._runtime.disk, self._layout, log_id, self._settings)
        try:
            await self._fill(writer, generation)
            written = await writer.finish() if writer.size else None
        except BaseException:
            self._store.end_log(log_id)
            await writer.abandon()
            await remove_log_files(self._runtime.disk, self._layout, log_id)
            raise
        if written is not None:  # None: all its ledgers were deleted during the write
            await publish(self._runtime.clock, self._store, self._files, written)
        self._store.end_log(log_id)

    async def _fill(self, writer: LogWriter, generation: Generation) -> None:
        # In the order of each ledger's first entry: the entries of a ledger must be adjacent, and sorting a
        # hundred thousand ledgers would block the event loop.
        for ledger_id, held in generation.ledgers.items():
            if not held:
                continue
            confirmed = generation.confirmed[ledger_id]
            if len(held) == 1:
                writer.put(ledger_id, list(held.items()), confirmed)
                if writer.is_due:
                    await self._drain(writer)
                continue
            ids = sorted(held)
            for first in range(0, len(ids), _ENTRIES_PER_TURN):
                part: list[tuple[EntryId, Buffer]] = [(e, held[e]) for e in ids[first : first + _ENTRIES_PER_TURN]]
                writer.put(ledger_id, part, confirmed)
                if writer.is_due:
                    await self._drain(writer)

    async def _drain(self, writer: LogWriter) -> None:
        """Write a piece, then leave the disk to the journal, since acknowledgements wait for the journal."""
        clock, cache = self._runtime.clock, self._store.cache
        began = clock.monotonic()
        await writer.drain()
        took = clock.monotonic() - began
        if self._leisurely and not cache.hurries:
            await clock.sleep(min(took * self._settings.rest_factor, self._settings.max_rest_s))


async def publish(clock: Clock, store: Store, files: LogFiles, written: WrittenLog) -> None:
    """Make a finished log readable, without blocking the event loop. The next checkpoint names it."""
    files.add(written.log, written.pages_offset)
    store.index.add_log(written.log, written.size)
    for number, run in enumerate(written.runs, 1):
        store.add_run(written.log, run)
        if number % RUNS_PER_TURN == 0:
            await clock.sleep(0)
    store.index.seal(written.log)


async def remove_log_files(disk: Disk, layout: Layout, log_id: int) -> None:
    """Remove a log that no checkpoint names; after a failure the next start removes it."""
    for path in (layout.log_file(log_id), layout.index_file(log_id)):
        try:
            await disk.remove(path)
        except FileMissingError:
            pass
        except DiskError as failed:
            log.warning("could not remove %s: %s", path, failed)
