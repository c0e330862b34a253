"""The journal: its files, allocated ahead of use and reused after a checkpoint, and its writer, which makes
everything that queued during one write durable with the next (group commit).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from weir.bookie.folder import Layout, free_sequences, journal_sequences
from weir.bookie.settings import JournalSettings
from weir.bookie.write_cache import Batch
from weir.model.check import check
from weir.model.errors import BookieError, BookieReadOnlyError, BookieUnavailableError, DiskError, DiskFullError
from weir.model.ids import Buffer, LedgerId
from weir.runtime.interfaces import Disk, File, Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.bookie_files import (
    MAX_BODY_BYTES,
    Position,
    RecordHeader,
    RecordKind,
    Start,
    encode_header,
    encode_ledgers,
    encode_start,
    padding,
    record_bytes,
)
from weir.wire.checksum import crc32c


class JournalFiles:
    """The files that the journal writes one after the other. It prepares the next file in advance, so that a full
    disk fails the preparation and not an add that waits for its acknowledgement."""

    def __init__(self, disk: Disk, layout: Layout, settings: JournalSettings) -> None:
        self._disk = disk
        self._layout = layout
        self._settings = settings
        self._tasks = TaskScope("journal-files")
        self._free: list[int] = []
        self._names: list[int] = []
        self._spare: asyncio.Task[File] | None = None
        self._spare_sequence = 0

    async def open(self, next_sequence: int) -> None:
        """List the files. Files from `next_sequence` on are unused."""
        names = await self._disk.list(self._layout.journal)
        self._free = free_sequences(names)
        self._names = [sequence for sequence in journal_sequences(names) if sequence < next_sequence]

    @property
    def has_spare(self) -> bool:
        """Whether the next file is ready."""
        spare = self._spare
        return spare is not None and spare.done() and not spare.cancelled() and spare.exception() is None

    def prepare(self, sequence: int) -> None:
        """Start to prepare a file; after a failure, retry."""
        spare = self._spare
        if spare is not None and spare.done() and not self.has_spare:
            spare = self._spare = None
        if spare is None:
            self._spare_sequence = sequence
            self._spare = self._tasks.spawn(self._make(sequence), f"prepare-{sequence}")
            # `take` raises a failure of the preparation; until then the failure is only a reason to stop early.
            self._spare.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def retry_spare(self) -> bool:
        """Retry a failed preparation; returns whether the next file is ready."""
        if self._spare is not None:
            self.prepare(self._spare_sequence)
            await asyncio.wait([self._spare])
        return self.has_spare

    async def take(self, sequence: int) -> File:
        """The file with this sequence number, with reserved space; DiskFullError without space for it."""
        if self._spare is None or self._spare_sequence != sequence or (self._spare.done() and not self.has_spare):
            self._spare = None
            self.prepare(sequence)
        spare = self._spare
        if spare is None:  # pragma: no cover - prepare() always leaves one
            raise DiskError("no journal file is being prepared")
        file = await asyncio.shield(spare)
        self._spare = None
        self._names.append(sequence)
        return file

    async def recycle(self, before: int) -> None:
        """Release files before this one: keep some for reuse, remove the others."""
        old = [sequence for sequence in self._names if sequence < before]
        self._names = [sequence for sequence in self._names if sequence >= before]
        kept = old[: max(0, self._settings.max_free_files - len(self._free))]
        for sequence in old:
            path = self._layout.journal_file(sequence)
            if sequence in kept:
                await self._disk.rename(path, self._layout.free_file(sequence))
            else:
                await self._disk.remove(path)
        if kept:
            # Before the next rename of the same file: of two renames without a sync, a crash may keep only the
            # second, and the file would have two names.
            await self._disk.sync_dir(self._layout.journal)
            self._free += kept

    async def give_back_space(self) -> None:
        """Remove the files kept for reuse, because the disk is nearly full."""
        free, self._free = self._free, []
        for sequence in free:
            await self._disk.remove(self._layout.free_file(sequence))

    async def close(self) -> None:
        await self._tasks.close()
        if self.has_spare and self._spare is not None:
            await self._spare.result().close()

    async def _make(self, sequence: int) -> File:
        path = self._layout.journal_file(sequence)
        if self._free and not await self._disk.exists(path):
            await self._disk.rename(self._layout.free_file(self._free.pop(0)), path)
        file = await self._disk.open(path, create=True)
        try:
            before = await file.size()
            try:
                await file.preallocate(self._settings.file_bytes)
                await file.sync()
            except DiskFullError:
                await file.truncate(before)  # free the partial reservation
                raise
            await self._disk.sync_dir(self._layout.journal)
        except BaseException:
            await file.close()
            raise
        return file


log = logging.getLogger(__name__)

#: Below this average size the writer joins entries first: one copy is cheaper than many vectors.
_JOIN_BELOW_BYTES = 16 * 1024
_JOIN_PIECES = 256
#: Vectors in one write; the operating system takes 1024.
_MAX_VECTORS = 900


class FormingRecord:
    """A record that accepts items while the journal writes the one before it.

    It joins pieces and computes checksums while it fills and the disk is busy, and not between two writes.
    """

    __slots__ = ("_small", "batches", "crc", "kind", "ledgers", "length", "pieces")

    def __init__(self, kind: RecordKind) -> None:
        self.kind = kind
        self.batches: list[tuple[Batch, asyncio.Future[None]]] = []
        #: Ledgers to fence or delete.
        self.ledgers: list[tuple[LedgerId, asyncio.Future[None]]] = []
        self.pieces: list[Buffer] = []
        self._small: list[Buffer] = []
        self.length = 0
        self.crc = 0

    def put_batch(self, batch: Batch, future: "asyncio.Future[None]") -> None:
        self.batches.append((batch, future))
        pieces = [data for _, data in batch.entries]
        if batch.size < _JOIN_BELOW_BYTES * len(pieces):
            self._small += pieces
            if len(self._small) >= _JOIN_PIECES:
                self.join()
        else:
            self.join()
            for piece in pieces:
                self.crc = crc32c(piece, self.crc)
            self.pieces += pieces
        self.length += batch.size

    def put_ledger(self, ledger_id: LedgerId, future: "asyncio.Future[None]") -> None:
        self.ledgers.append((ledger_id, future))
        self._small.append(encode_ledgers([ledger_id]))
        self.length += 8

    def join(self) -> None:
        """Complete `pieces` (the whole body) and `crc` (its checksum)."""
        if self._small:
            piece = self._small[0] if len(self._small) == 1 else b"".join(self._small)
            self._small = []
            self.pieces.append(piece)
            self.crc = crc32c(piece, self.crc)

    def fail(self, error: Callable[[], BookieError]) -> None:
        """Fail the futures of all items."""
        for future in [*(future for _, future in self.batches), *(future for _, future in self.ledgers)]:
            if not future.done():
                future.set_exception(error())
                future.exception()  # the caller may have disconnected: no "never retrieved" warning


@dataclass(slots=True)
class OpenFile:
    """The file that the journal writes now."""

    file: File
    sequence: int
    nonce: int
    previous: Start
    #: Its synced size before its first record; and its size now.
    reserved: int
    allocated: int
    #: End of the committed records, and of the synced ones.
    end: int = 0
    synced: int = 0
    #: Whether a write failed on a full disk: a part of it may be after `end`.
    torn: bool = False

    def encoded(self, records: list[FormingRecord]) -> tuple[list[Buffer], int]:
        """The encoded records to write at the end, and the end after them. The first write of a file starts with
        the record that names the end of the previous file."""
        buffers: list[Buffer] = []
        at = self.end
        if at == 0:
            start = FormingRecord(RecordKind.START)
            body = encode_start(self.previous._replace(allocated=self.reserved))
            start.pieces, start.length, start.crc = [body], len(body), crc32c(body)
            records = [start, *records]
        for record in records:
            header = RecordHeader(
                record.kind, self.sequence, self.nonce, at, self.synced, record.length, record.crc
            )
            buffers += (encode_header(header), *record.pieces, padding(record.length))
            at = header.end
        return buffers, at


class Journal:
    """One writer task, one file at a time.

    The journal calls `commit` with each record, in order, once it is as durable as the settings require; `commit`
    changes the bookie's state, completes the futures, and must not fail. The journal calls `on_synced` with each
    position up to which everything is durable. The writer dequeues entries only while `has_room`.
    """

    def __init__(
        self,
        runtime: Runtime,
        files: JournalFiles,
        settings: JournalSettings,
        *,
        commit: Callable[[FormingRecord], None],
        has_room: Callable[[], bool],
        on_synced: Callable[[Position], None],
        on_failure: Callable[[BaseException], None],
        on_full: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._files = files
        self._settings = settings
        self._commit = commit
        self._has_room = has_room
        self._on_synced = on_synced
        self._on_failure = on_failure
        self._on_full = on_full
        self._queue: deque[FormingRecord] = deque()
        self._in_flight: list[FormingRecord] = []
        self._queued_bytes = 0
        self._turn = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._current: OpenFile | None = None
        self._failed: BaseException | None = None
        self._tasks = TaskScope("journal", on_failure=self._fail)
        self.writes = 0
        self.bytes_written = 0

    # --- the queue: plain functions ---------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        """Bytes queued or being written."""
        return self._queued_bytes

    @property
    def position(self) -> Position:
        """The end of the committed records."""
        current = self._file()
        return Position(current.sequence, current.end, current.nonce)

    def takes(self, size: int) -> bool:
        """Whether the queue has room for this many bytes (for a single large batch, whether it is empty)."""
        return self._queued_bytes == 0 or self._queued_bytes + size <= self._settings.max_queued_bytes

    def put_batch(self, batch: Batch, future: "asyncio.Future[None]") -> None:
        size = batch.size
        check(size <= MAX_BODY_BYTES, "a batch fits into one record")
        record = self._queue[-1] if self._queue else None
        if (
            record is None
            or record.kind is not RecordKind.ENTRIES
            or record.length + size > self._settings.max_write_bytes
            or len(record.pieces) + len(batch.entries) > _MAX_VECTORS
        ):
            record = self._begin_record(RecordKind.ENTRIES)
        record.put_batch(batch, future)
        self._queued_bytes += size
        if self._failed is not None:
            self._fail_queued(self._failed)

    def put_ledger(self, kind: RecordKind, ledger_id: LedgerId, future: "asyncio.Future[None]") -> None:
        """Queue a fence or a deletion."""
        record = self._queue[-1] if self._queue else None
        if record is None or record.kind is not kind or record.length >= self._settings.max_write_bytes:
            record = self._begin_record(kind)
        record.put_ledger(ledger_id, future)
        self._queued_bytes += 8
        if self._failed is not None:
            self._fail_queued(self._failed)

    def _begin_record(self, kind: RecordKind) -> FormingRecord:
        record = FormingRecord(kind)
        self._queue.append(record)
        self._idle.clear()
        self._turn.set()
        return record

    def poke(self) -> None:
        """Wake the writer: the cache may have room again."""
        self._turn.set()

    def refuse_queued_adds(self, error: Callable[[], BookieError]) -> None:
        """Fail the queued adds (not those of the write in progress), because the journal cannot write them for
        now."""
        adds = [record for record in self._queue if record.kind is RecordKind.ENTRIES]
        self._queue = deque(record for record in self._queue if record.kind is not RecordKind.ENTRIES)
        self._done_with(adds, error)
        self._turn.set()

    def _can_write(self) -> bool:
        return bool(self._queue) and (self._queue[0].kind is not RecordKind.ENTRIES or self._has_room())

    def _take(self) -> list[FormingRecord]:
        """Dequeue the records of the next write."""
        taken: list[FormingRecord] = []
        length = vectors = 0
        while self._queue:
            record = self._queue[0]
            length += record.length
            vectors += len(record.pieces) + 3  # header, pieces not joined yet, padding
            if taken and (length > self._settings.max_write_bytes or vectors > _MAX_VECTORS):
                break
            taken.append(self._queue.popleft())
            taken[-1].join()
        return taken

    def _committed(self, records: list[FormingRecord]) -> None:
        for record in records:
            self._commit(record)
        self._done_with(records, None)

    def _done_with(self, records: list[FormingRecord], error: Callable[[], BookieError] | None) -> None:
        for record in records:
            self._queued_bytes -= record.length
            check(self._queued_bytes >= 0, "each queued record is completed once")
            if error is not None:
                record.fail(error)
        if not self._queue and not self._in_flight:
            self._idle.set()

    def _fail(self, failure: BaseException) -> None:
        """Stop for good. The write in progress may or may not be on the disk; replay decides."""
        if self._failed is None:
            self._failed = failure
            self._fail_queued(failure)
            self._on_failure(failure)

    def _fail_queued(self, failure: BaseException) -> None:
        records, self._in_flight, self._queue = [*self._in_flight, *self._queue], [], deque()
        self._done_with(records, lambda: _unavailable(failure))

    # --- the writer -------------------------------------------------------------------------------------------

    async def start(self, sequence: int, previous: Start) -> None:
        """Open the first file after replay, and record in it, durably, the end of the previous file."""
        await self._switch(sequence, previous)
        await self._write([], sync=True)
        self._tasks.spawn(self._run(), "writer")
        if self._settings.sync_interval_s is not None:
            self._tasks.spawn(self._sync_regularly(self._settings.sync_interval_s), "sync")

    async def idle(self) -> None:
        """Wait until the queue is empty and no write is in progress."""
        await self._idle.wait()

    async def close(self) -> None:
        """Write and sync the queue, and stop."""
        if self._failed is None:
            await self.idle()
        await self._tasks.close()
        if self._current is not None:
            current = self._current
            if self._failed is None and current.synced < current.end:
                await current.file.sync()
                self._synced(current, current.end)
            await current.file.close()
        self._fail(BookieUnavailableError("the bookie is closed"))

    async def _run(self) -> None:
        always = self._settings.sync_interval_s is None
        while True:
            while not self._can_write():
                self._turn.clear()
                await self._turn.wait()
            records = self._in_flight = self._take()
            try:
                await self._write(records, sync=always)
            except DiskFullError as full:
                if self._failed is not None:
                    raise
                self._in_flight = []
                self._refuse(records, full)
            else:
                self._in_flight = []
                self._committed(records)

    def _refuse(self, records: list[FormingRecord], full: DiskFullError) -> None:
        """Refuse records because the disk has no space for the next file: nothing of them was written."""
        log.error("the journal has no room: %s", full)
        self._on_full()
        self._done_with(records, lambda: BookieReadOnlyError(f"the journal has no room: {full.what}"))

    async def _write(self, records: list[FormingRecord], *, sync: bool) -> None:
        """Write at the current end. After a DiskFullError nothing of the write counts: either nothing was written,
        or the first record of the next file says that this file ends before it. Any other failure is final: after
        a failed write or sync the content of the disk is unknown."""
        current = self._file()
        if current.torn:
            current = await self._leave_torn(current)
        size = 0
        for record in records:
            size += record_bytes(record.length)
        if current.end + size > current.allocated or current.end == 0:
            current = await self._file_with_room(size)
        buffers, end = current.encoded(records)
        check(current.end < end <= current.allocated, "the journal grows, within what is allocated")
        try:
            await current.file.write_at(current.end, buffers, sync=sync)
        except DiskFullError:  # a copy-on-write file system needs space even in a reserved file
            current.torn = True
            raise
        except DiskError as failed:
            self._fail(failed)
            raise
        self.writes += 1
        self.bytes_written += end - current.end
        current.end = end
        if sync:
            self._synced(current, end)

    async def _leave_torn(self, current: OpenFile) -> OpenFile:
        """Continue at a position where replay cannot mistake remains of the failed write for records."""
        if current.end > 0:
            await self._switch(current.sequence + 1, Start(current.sequence, current.end))
            return self._file()
        current.nonce = self._runtime.rng.getrandbits(64)
        current.torn = False
        return current

    async def _file_with_room(self, size: int) -> OpenFile:
        current = self._file()
        needed = max(current.end, record_bytes(0)) + size
        if needed > current.allocated and current.end > 0:
            await self._switch(current.sequence + 1, Start(current.sequence, current.end))
            current, needed = self._file(), record_bytes(0) + size
        if needed > current.allocated:  # a batch larger than a file
            await current.file.preallocate(needed)
            current.allocated = needed
        return current

    async def _switch(self, sequence: int, previous: Start) -> None:
        """Sync this file and continue in the next one, whose first record names the end of this one."""
        file = await self._files.take(sequence)
        former = self._current
        if former is not None and former.synced < former.end:
            try:
                await former.file.sync()
            except DiskError as failed:
                self._fail(failed)
                raise
        check(former is None or sequence == former.sequence + 1, "journal files follow one another")
        nonce = self._runtime.rng.getrandbits(64)
        self._current = OpenFile(
            file, sequence, nonce, previous, self._settings.file_bytes, self._settings.file_bytes
        )
        self._files.prepare(sequence + 1)
        if former is not None:
            await former.file.close()

    async def _sync_regularly(self, interval_s: float) -> None:
        while True:
            await self._runtime.clock.sleep(interval_s)
            current = self._file()
            end = current.end
            if current.synced < end:
                try:
                    await current.file.sync()
                except DiskError as failed:
                    if current is not self._current:  # closed, after a sync of its own
                        continue
                    self._fail(failed)
                    raise
                self._synced(current, end)

    def _synced(self, current: OpenFile, end: int) -> None:
        check(end <= current.end, "no more of the journal is durable than was written")
        if end > current.synced:
            current.synced = end
            self._on_synced(Position(current.sequence, end, current.nonce))

    def _file(self) -> OpenFile:
        if self._current is None:
            raise BookieUnavailableError("the journal is not open")
        return self._current


def _unavailable(failure: BaseException) -> BookieUnavailableError:
    return BookieUnavailableError(
        f"the journal failed: {failure}", hint="restart the bookie once its disk is sound"
    )
