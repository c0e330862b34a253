"""Garbage collection: reclaims the space of deleted entries. Removes dead logs, rewrites sparse ones, merges small
ones."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from weir.bookie.entry_index import LogRun, LogUse
from weir.bookie.entry_log_scan import read_index
from weir.bookie.entry_log_writer import LogWriter, WrittenLog
from weir.bookie.entry_logs import LogFiles, find
from weir.bookie.flush import RUNS_PER_TURN, remove_log_files
from weir.bookie.folder import Layout
from weir.bookie.settings import FlushSettings, GcSettings
from weir.bookie.store import Store
from weir.model.errors import DiskError, FileMissingError, WireError
from weir.model.ids import Buffer, EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.wire.bookie_files import Run
from weir.wire.entry import HEADER_BYTES, entry_key, entry_size, verify_entry

log = logging.getLogger(__name__)

Part = list[tuple[EntryId, Buffer]]


def choose(usage: Iterable[LogUse], settings: GcSettings) -> list[int]:
    """Select the logs to rewrite into one: sparse ones, and small ones if they are numerous enough, oldest first,
    up to the target size."""
    candidates = list(usage)
    small = [use for use in candidates if use.size < settings.small_bytes]
    merging = {use.log: None for use in small} if len(small) >= settings.merge_logs else {}
    chosen: list[int] = []
    room = settings.target_bytes
    for use in candidates:
        wanted = use.log in merging or use.live < use.size * settings.live_below
        if wanted and (not chosen or use.live <= room):
            chosen.append(use.log)
            room -= use.live
    return chosen


class GarbageCollector:
    """One pass at a time. At any crash every live entry is in a log of the checkpoint: the collector syncs the new
    log, writes a checkpoint that names it in place of the old ones, then removes the old ones."""

    def __init__(
        self,
        runtime: Runtime,
        layout: Layout,
        settings: GcSettings,
        flush: FlushSettings,
        *,
        store: Store,
        files: LogFiles,
    ) -> None:
        self._runtime = runtime
        self._layout = layout
        self._settings = settings
        self._flush = flush
        self._store = store
        self._files = files
        #: Logs with a damaged entry stay as they are: dropping the entry would deny that it was here.
        self._damaged: dict[int, None] = {}
        self._running = asyncio.Lock()
        self.removed_logs = 0
        self.rewritten_bytes = 0

    @property
    def damaged(self) -> list[int]:
        return list(self._damaged)

    async def run(self) -> None:
        """Run a pass at each interval."""
        while True:
            await self._runtime.clock.sleep(self._settings.interval_s)
            try:
                await self.collect()
            except DiskError as failed:
                log.error("garbage collection failed, retrying at the next interval: %s", failed)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Prevent removal of logs while the block runs; the next pass removes them."""
        async with self._running:
            yield

    async def collect(self) -> None:
        """Remove dead logs, and rewrite sparse and small ones."""
        async with self._running:
            await self._remove([use.log for use in self._store.index.usage() if use.live == 0])
            whole = [use for use in self._store.index.usage() if use.live and use.log not in self._damaged]
            victims = choose(whole, self._settings)
            if victims:
                await self._rewrite(victims)

    async def _rewrite(self, victims: list[int]) -> None:
        log_id = self._store.begin_log()
        writer = LogWriter(self._runtime.disk, self._layout, log_id, self._flush)
        try:
            confirmed = await self._ledgers_in(victims)
            for ledger_id, last_confirmed in confirmed.items():
                async for part in self._current_entries(ledger_id, dict.fromkeys(victims)):
                    if part:
                        writer.put(ledger_id, part, last_confirmed)
                        if writer.is_due:
                            await writer.drain()
            written = await writer.finish() if writer.size else None
        except _DamagedLogError as damaged:
            log.error("log %d is damaged, it will not be rewritten: %s", damaged.log, damaged)
            self._damaged[damaged.log] = None
            await self._give_up(writer, log_id)
            return
        except BaseException:
            await self._give_up(writer, log_id)
            raise
        await self._replace(victims, confirmed, written)
        self._store.end_log(log_id)
        self.rewritten_bytes += writer.size

    async def _give_up(self, writer: LogWriter, log_id: int) -> None:
        self._store.end_log(log_id)
        await writer.abandon()
        await remove_log_files(self._runtime.disk, self._layout, log_id)

    async def _ledgers_in(self, victims: list[int]) -> dict[LedgerId, EntryId]:
        """Every ledger in the logs, with the highest last-add-confirmed of its entries there."""
        confirmed: dict[LedgerId, EntryId] = {}
        for victim in victims:
            try:
                _, runs = await read_index(self._runtime.disk, self._layout, victim)
            except (
                FileMissingError,
                WireError,
            ) as bad:  # no rebuild: the runs in memory belong to this index
                raise _DamagedLogError(victim, f"its index: {bad.what}") from bad
            for number, run in enumerate(runs, 1):
                confirmed[run.ledger_id] = max(
                    run.last_confirmed, confirmed.get(run.ledger_id, run.last_confirmed)
                )
                if number % RUNS_PER_TURN == 0:
                    await self._runtime.clock.sleep(0)
        return confirmed

    async def _runs_of(self, victim: int) -> list[Run]:
        try:
            try:
                return (await read_index(self._runtime.disk, self._layout, victim))[1]
            except WireError as bad:
                await self._files.mend(victim, bad.what)
            return (await read_index(self._runtime.disk, self._layout, victim))[1]
        except (FileMissingError, WireError) as bad:
            raise _DamagedLogError(victim, bad.what) from bad

    async def _current_entries(self, ledger_id: LedgerId, victims: dict[int, None]) -> AsyncIterator[Part]:
        """The ledger's entries whose newest copy is in the victims, in order, in parts."""
        runs = self._store.index.get(ledger_id)
        if runs is None:
            return
        mine = [run for run in runs if run.log in victims]
        if not runs.overlapping:
            for run in mine:
                async for part in self._entries(ledger_id, run):
                    yield await self._newest(ledger_id, run.log, part)
            return
        merged: dict[EntryId, Buffer] = {}
        for run in mine:
            async for part in self._entries(ledger_id, run):
                merged.update(await self._newest(ledger_id, run.log, part))
        yield sorted(merged.items(), key=lambda item: item[0])

    async def _newest(self, ledger_id: LedgerId, log_id: int, part: Part) -> Part:
        """The part without entries that have a newer copy, in another log or in the write cache (whose log may get
        a lower id than the log of this copy)."""
        cache = self._store.cache
        while True:
            version = cache.version
            runs = self._store.index.get(ledger_id)
            kept = part
            if runs is not None and runs.overlapping:
                kept = [item for item in part if await self._is_newest(ledger_id, item[0], log_id)]
            if version != cache.version:
                continue  # entries moved from the cache to a log meanwhile
            if cache.holds_ledger(ledger_id):
                kept = [(entry_id, data) for entry_id, data in kept if cache.get(ledger_id, entry_id) is None]
            return kept

    async def _is_newest(self, ledger_id: LedgerId, entry_id: EntryId, log_id: int) -> bool:
        runs = self._store.index.get(ledger_id)
        if runs is None:
            return False
        try:
            place = await find(self._files, runs, entry_id)
        except WireError as bad:
            raise _DamagedLogError(log_id, bad.what) from bad
        return place is not None and place.run.log == log_id

    async def _entries(self, ledger_id: LedgerId, run: LogRun) -> AsyncIterator[Part]:
        """The verified entries of a run, in parts, at most at the configured rate."""
        at, end = run.offset, run.offset + run.size
        while at < end:
            part, taken = await self._part(ledger_id, run, at, end)
            yield part
            at += taken
            await self._runtime.clock.sleep(taken / self._settings.bytes_per_s)

    async def _part(self, ledger_id: LedgerId, run: LogRun, at: int, end: int) -> tuple[Part, int]:
        problem = "its entries run over its end"
        length = min(end - at, self._flush.chunk_bytes)
        for _ in range(3):
            data = await self._files.read(run.log, at, length)
            try:
                part, taken = _split(ledger_id, data)
            except WireError as bad:  # a retry may succeed
                problem = bad.what
                continue
            if part:
                return part, taken
            length = min(end - at, entry_size(data) if len(data) >= HEADER_BYTES else HEADER_BYTES)
        raise _DamagedLogError(run.log, f"offset {at}: {problem}")

    async def _replace(
        self, victims: list[int], ledgers: dict[LedgerId, EntryId], written: WrittenLog | None
    ) -> None:
        """Replace the originals by their copies in the index, ledger by ledger, each one atomically."""
        store, old = self._store, dict.fromkeys(victims)
        copies: dict[LedgerId, Run] = {}
        if written is not None:
            copies = {run.ledger_id: run for run in written.runs}
            self._files.add(written.log, written.pages_offset)
            store.index.add_log(written.log, written.size)
        for number, ledger_id in enumerate(ledgers, 1):
            store.index.remove_runs(ledger_id, old)
            if written is not None and ledger_id in copies:
                store.add_run(written.log, copies[ledger_id])
            if number % RUNS_PER_TURN == 0:
                await self._runtime.clock.sleep(0)
        if written is not None:
            store.index.seal(written.log)
        await self._remove(victims)

    async def _remove(self, logs: list[int]) -> None:
        """Write a checkpoint without these dead logs, then remove their files."""
        if not logs:
            return
        self._store.index.unseal(logs)
        try:
            await self._store.save(self._runtime.disk, self._layout)
        except DiskError:
            for log_id in logs:
                self._store.index.seal(log_id)  # the next pass removes it
            raise
        for log_id in logs:
            await self._files.remove(log_id)
            await remove_log_files(self._runtime.disk, self._layout, log_id)
        self._store.remove_logs(logs)
        self.removed_logs += len(logs)


class _DamagedLogError(WireError):
    """A log to be rewritten has an entry or an index that fails verification."""

    def __init__(self, log_id: int, what: str) -> None:
        super().__init__(what)
        self.log = log_id


def _split(ledger_id: LedgerId, data: bytes | bytearray) -> tuple[Part, int]:
    """The verified whole entries at the start of `data`, and their size in bytes."""
    part: Part = []
    view = memoryview(data)
    at = 0
    while len(view) - at >= HEADER_BYTES:
        size = entry_size(view, at)
        if at + size > len(view):
            break
        verify_entry(view[at : at + size])
        owner, entry_id = entry_key(view, at)
        if owner != ledger_id:
            raise WireError(f"an entry of ledger {owner} lies among those of ledger {ledger_id}")
        part.append((entry_id, view[at : at + size]))
        at += size
    return part, at
