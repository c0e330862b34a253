"""Journal replay: reads one file record by record, and all files from the checkpoint on."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from weir.bookie.folder import Layout, insist, journal_sequences
from weir.bookie.journal_endings import Case, CheckpointSide, Ending, decide
from weir.model.diagnosis import Loss
from weir.model.errors import FileMissingError, JournalCorruptError, WireError
from weir.runtime.interfaces import Disk, File
from weir.wire.bookie_files import (
    BLOCK_BYTES,
    HEADER_BYTES,
    MAGIC,
    Position,
    RecordHeader,
    RecordKind,
    Start,
    decode_header,
    decode_start,
    verify_body,
)
from weir.wire.end_record import EndRecord

log = logging.getLogger(__name__)

#: Called with every record, in write order.
Apply = Callable[[RecordHeader, memoryview], None]

#: In the first record of a file: replay before it found nothing, so it names no other file.
NOTHING_BEFORE = Start(0, 0)

_WINDOW_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileScan:
    """The end of a file's run of valid records, the kind of ending, and the evidence of later headers."""

    ending: Ending
    end: int
    #: Bytes before this offset were synced, according to headers after the end.
    proven: int = 0
    #: The nonce in the records of the file.
    nonce: int | None = None
    size: int = 0
    #: Whether the next record would begin or end beyond the remaining size of the file.
    cut: bool = False


@dataclass(frozen=True, slots=True)
class JournalScan:
    """Result of replay: the file to write next, and the end of the previous one."""

    next_sequence: int
    previous: Start
    cases: dict[int, Case]
    #: Missing records, if the operator accepted their loss.
    losses: list[Loss] = field(default_factory=list)


class RecordReader:
    """Reads records of one file in windows."""

    def __init__(self, file: File, sequence: int, nonce: int | None) -> None:
        self._file = file
        self._sequence = sequence
        self._nonce = nonce
        self._window: bytes | bytearray = b""
        self._window_at = 0

    @property
    def nonce(self) -> int | None:
        """The nonce of the file, once known."""
        return self._nonce

    async def record(self, offset: int) -> tuple[RecordHeader, memoryview]:
        """The record of this file at `offset`; WireError without a valid one."""
        try:
            return await self._record(offset)
        except WireError:
            if not await self._looks_written(offset):
                raise

        async def once_more() -> tuple[RecordHeader, memoryview]:
            self._window = b""
            return await self._record(offset)

        return await insist(f"{self._file.path} at {offset}", once_more)

    async def ending(self, offset: int) -> Ending:
        """Classify the bytes at `offset`, where no valid record begins."""
        block = await self._file.read_at(offset, BLOCK_BYTES)
        if not block.strip(b"\0"):
            return Ending.ZEROS
        try:
            header = decode_header(block)
        except WireError:
            return Ending.BAD
        return Ending.BAD if self._is_ours(header, offset) else Ending.STALE

    async def cut(self, offset: int, size: int) -> bool:
        """Whether a file of `size` bytes ends in or before the record at `offset`."""
        if offset + BLOCK_BYTES > size:
            return True
        try:
            header = decode_header(await self._file.read_at(offset, HEADER_BYTES))
        except WireError:
            return False
        return self._is_ours(header, offset) and header.end > size

    async def testimony(self, offset: int) -> int:
        """The highest `durable through` in headers of this file from `offset` on, even with invalid bodies."""
        proven, at, size = 0, offset, await self._file.size()
        while at < size:
            window = await self._file.read_at(at, _WINDOW_BYTES)
            for inside in range(0, len(window), BLOCK_BYTES):
                if window[inside + 4 : inside + 8] == MAGIC:
                    proven = max(proven, self._testifies(window, inside, at + inside))
            at += _WINDOW_BYTES
        return proven

    def _testifies(self, window: bytes | bytearray, inside: int, offset: int) -> int:
        try:
            header = decode_header(window, inside)
        except WireError:
            return 0
        return header.durable_through if self._is_ours(header, offset) else 0

    def _is_ours(self, header: RecordHeader, offset: int) -> bool:
        return (
            header.sequence == self._sequence
            and header.offset == offset
            and (self._nonce is None or header.nonce == self._nonce)
        )

    async def _record(self, offset: int) -> tuple[RecordHeader, memoryview]:
        header = decode_header(await self._bytes(offset, HEADER_BYTES))
        if not self._is_ours(header, offset):
            raise WireError(f"a record of journal file {header.sequence}, offset {header.offset}")
        if (header.kind is RecordKind.START) != (offset == 0):
            raise WireError(f"a {header.kind.name} record at offset {offset}")
        body = await self._bytes(offset + HEADER_BYTES, header.length)
        verify_body(header, body)
        if self._nonce is None:
            self._nonce = header.nonce
        return header, body

    async def _looks_written(self, offset: int) -> bool:
        """Whether a second read is worthwhile: not after the last record, where the bytes are zeros or old."""
        return await self.ending(offset) is Ending.BAD

    async def _bytes(self, offset: int, length: int) -> memoryview:
        inside = offset - self._window_at
        if inside < 0 or inside + length > len(self._window):
            self._window_at, inside = offset, 0
            self._window = await self._file.read_at(offset, max(length, _WINDOW_BYTES))
        return memoryview(self._window)[inside : inside + length]


async def scan_file(file: File, sequence: int, begin: Position | None, stop: int | None, apply: Apply) -> FileScan:
    """Apply the valid records of a file from `begin` (default: its start) to `stop` (default: the last one)."""
    reader = RecordReader(file, sequence, begin.nonce if begin else None)
    at = begin.offset if begin else 0
    while stop is None or at < stop:
        try:
            header, body = await reader.record(at)
        except WireError:
            size = await file.size()
            ending, proven = await reader.ending(at), await reader.testimony(at)
            return FileScan(ending, at, proven, reader.nonce, size, await reader.cut(at, size))
        apply(header, body)
        at = header.end
    return FileScan(Ending.REACHED, at, nonce=reader.nonce)


async def scan_rest(file: File, sequence: int, scan: FileScan, stop: int | None, apply: Apply) -> int:
    """Apply the readable records after the end of a scan with missing records; returns the end of the last one."""
    reader = RecordReader(file, sequence, scan.nonce)
    at, end = scan.end + BLOCK_BYTES, scan.end
    size = await file.size()
    while at < (size if stop is None else min(stop, size)):
        try:
            header, body = await reader.record(at)
        except WireError:
            at += BLOCK_BYTES
            continue
        apply(header, body)
        at = end = header.end
    return end


async def first_record(disk: Disk, path: str, sequence: int) -> Start | None:
    """The first record of a file, about the previous file; None without one."""
    try:
        file = await disk.open(path)
    except FileMissingError:
        return None
    try:
        _, body = await RecordReader(file, sequence, None).record(0)
        return decode_start(body)
    except WireError:
        return None
    finally:
        await file.close()


class JournalReplay:
    """Replays all files from the checkpoint on, oldest first, by the table of `weir.bookie.journal_endings`."""

    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        checkpoint: Position,
        apply: Apply,
        *,
        end: EndRecord | None = None,
        accept_loss: bool = False,
        sync: bool = True,
    ) -> None:
        """`end`: the acknowledged end of the journal. With `accept_loss`, replay records missing records as losses
        and continues after them."""
        self._disk = disk
        self._layout = layout
        self._checkpoint = checkpoint
        self._apply = apply
        self._end = end
        self._accept_loss = accept_loss
        self._sync = sync
        self._losses: list[Loss] = []
        self.cases: dict[int, Case] = {}
        #: File and offset of the first missing synced bytes.
        self.stopped_at: tuple[str, int] | None = None
        #: Every such position, with a description.
        self.stops: list[tuple[str, int, str]] = []

    async def run(self) -> JournalScan:
        """Apply every valid record; JournalCorruptError if synced ones are missing."""
        present = journal_sequences(await self._disk.list(self._layout.journal))
        first = self._checkpoint.sequence
        for sequence in present:
            if sequence < first:
                self.cases[sequence] = decide(CheckpointSide.BEFORE_CHECKPOINT, Ending.ZEROS, end=0, proven=0)
        newest = max([first, *present, *([self._end.file] if self._end else [])])
        previous = NOTHING_BEFORE
        for sequence in range(first, newest + 1):
            end = await self._file(sequence, is_last=sequence == newest)
            if end:
                previous = Start(sequence, end)
        following = max(previous.previous_sequence + 1, first)
        if self._losses:
            following = newest + 1  # skip all numbers used so far
        return JournalScan(following, previous, self.cases, self._losses)

    async def _file(self, sequence: int, *, is_last: bool) -> int:
        stop = None if is_last else await self._end_named_by(sequence + 1)
        scan = await self._scan(sequence, stop)
        proven = max(scan.proven, stop or 0)
        if sequence == self._checkpoint.sequence:
            proven = max(proven, self._checkpoint.offset)
        if scan.ending is Ending.MISSING and not is_last:
            proven = max(proven, 1)  # a file is created only after the previous one
        proven = max(proven, self._acknowledged(sequence, scan))
        reserved = await self._reserved(sequence, scan)
        if reserved:
            proven = max(proven, scan.end + 1)
        case = decide(CheckpointSide.FROM_CHECKPOINT, scan.ending, end=scan.end, proven=proven)
        self.cases[sequence] = case
        path = self._layout.journal_file(sequence)
        where = f"{path} at offset {scan.end}"
        if not case.is_fatal:
            log.info("%s: %s", where, case.value)
            return scan.end
        what = f"{case.value}; bytes up to {proven} had been synced"
        if reserved:
            what += f"; it was created with {reserved} bytes and has {scan.size}"
        self.stopped_at = path, scan.end
        self.stops.append((path, scan.end, what))
        if not self._accept_loss:
            raise JournalCorruptError(f"{where}: {what}")
        self._losses.append(Loss(where, what))
        return await self._rest(sequence, scan, stop)

    def _acknowledged(self, sequence: int, scan: FileScan) -> int:
        """The synced end of this file according to the end record."""
        end = self._end
        if end is None or end.file != sequence or scan.nonce not in (None, end.nonce):
            return 0
        return end.end

    async def _reserved(self, sequence: int, scan: FileScan) -> int:
        """The original size of the file, if it is shorter now and the cut may have removed records; else 0."""
        end = self._end
        if not scan.cut or (end is not None and end.is_final and self._acknowledged(sequence, scan) == end.end):
            return 0
        start = await first_record(self._disk, self._layout.journal_file(sequence), sequence)
        return start.allocated if start is not None and start.allocated > scan.size else 0

    async def _rest(self, sequence: int, scan: FileScan, stop: int | None) -> int:
        if scan.ending is Ending.MISSING:
            return 0
        file = await self._disk.open(self._layout.journal_file(sequence))
        try:
            return await scan_rest(file, sequence, scan, stop, self._apply)
        finally:
            await file.close()

    async def _end_named_by(self, sequence: int) -> int | None:
        start = await first_record(self._disk, self._layout.journal_file(sequence), sequence)
        if start is None or start[:2] == NOTHING_BEFORE[:2] or start.previous_sequence != sequence - 1:
            return None
        return start.previous_end

    async def _scan(self, sequence: int, stop: int | None) -> FileScan:
        try:
            file = await self._disk.open(self._layout.journal_file(sequence))
        except FileMissingError:
            return FileScan(Ending.MISSING, 0)
        try:
            at_checkpoint = sequence == self._checkpoint.sequence and self._checkpoint.offset > 0
            scan = await scan_file(file, sequence, self._checkpoint if at_checkpoint else None, stop, self._apply)
            if self._sync:
                # The bookie must not serve records that are only in the page cache.
                await file.sync()
            return scan
        finally:
            await file.close()
