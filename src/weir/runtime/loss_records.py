"""Two records beside a log: the end record of its acknowledged end, and the losses that an operator accepted.

The end record follows the log without delaying a commit: written (not synced) right after a commit, at most once
per `write_pause_s`, and synced at most `sync_pause_s` later. So it never exceeds the durable end, and it lags by
the first pause when a process dies, by both when power fails. Its failures are harmless and only logged: it then
proves less.

The record of accepted losses is durable: one line of JSON each, never removed.
"""

import asyncio
import json
import logging
from collections.abc import Sequence

from weir.model.diagnosis import Loss
from weir.model.errors import DiskError, FileMissingError, WireError
from weir.runtime.interfaces import Disk, File, Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.end_record import SLOT_BYTES, SLOTS, EndRecord, decode_end_record, encode_end_record

log = logging.getLogger(__name__)

#: A flipped bit may have been flipped on the way, not on the disk.
_READ_ATTEMPTS = 3
_WRITE_PAUSE_S = 0.02
_SYNC_PAUSE_S = 1.0


async def load_end_record(disk: Disk, path: str) -> EndRecord | None:
    """The newest whole record of the file; None without one."""
    try:
        file = await disk.open(path)
    except FileMissingError:
        return None
    try:
        found, damaged = end_records(bytes(await file.read_at(0, SLOTS * SLOT_BYTES)))
        for _ in range(_READ_ATTEMPTS - 1):
            if damaged:
                found, damaged = end_records(bytes(await file.read_at(0, SLOTS * SLOT_BYTES)))
        if damaged and not found:
            log.warning("%s is damaged: the end of its log cannot be verified", path)
        return max(found, default=None)
    finally:
        await file.close()


def end_records(data: bytes) -> tuple[list[EndRecord], int]:
    """The whole records, and how many slots are damaged."""
    found: list[EndRecord] = []
    damaged = 0
    for at in range(0, SLOTS * SLOT_BYTES, SLOT_BYTES):
        slot = data[at : at + SLOT_BYTES]
        if not slot.strip(b"\0"):
            continue
        try:
            found.append(decode_end_record(slot))
        except WireError:
            damaged += 1
    return found, damaged


class EndFile:
    """`start`, then `advance` after every sync of the log, then `close`."""

    def __init__(
        self,
        runtime: Runtime,
        path: str,
        *,
        write_pause_s: float = _WRITE_PAUSE_S,
        sync_pause_s: float = _SYNC_PAUSE_S,
    ) -> None:
        self._disk = runtime.disk
        self._clock = runtime.clock
        self._path = path
        self._write_pause_s = write_pause_s
        self._sync_pause_s = sync_pause_s
        self._file: File | None = None
        self._serial = 0
        #: The slot that takes records until the next sync; the other one is durable.
        self._slot = 0
        self._last: EndRecord | None = None
        self._next: EndRecord | None = None
        self._moved = asyncio.Event()
        self._unsynced = asyncio.Event()
        self._tasks = TaskScope("end-file")
        self._failed = False

    def start(self, last: EndRecord | None) -> None:
        """Go on after the record that was found, which stays where it is until a later one is durable."""
        if last is not None:
            self._serial = last.serial
        self._tasks.spawn(self._follow(), "write")
        self._tasks.spawn(self._sync_regularly(), "sync")

    def advance(self, file: int, nonce: int, end: int, revision: int = 0) -> None:
        """The log is synced up to here."""
        self._serial += 1
        self._last = self._next = EndRecord(self._serial, file, nonce, end, revision)
        self._moved.set()

    async def close(self, *, final: bool) -> None:
        """Leave the last word, durably; `final` if the log ends there for certain."""
        await self._tasks.close()
        if final and self._last is not None:
            self._next = self._last._replace(serial=self._serial + 1, final=1)
        try:
            if self._next is not None:
                await self._write()
            if self._file is not None:
                if self._unsynced.is_set():
                    await self._file.sync()
                await self._file.close()
        except DiskError as failure:
            self._tell(failure)
        self._file = None

    async def _follow(self) -> None:
        while True:
            await self._moved.wait()
            self._moved.clear()
            try:
                await self._write()
            except DiskError as failure:
                self._tell(failure)
            await self._clock.sleep(self._write_pause_s)

    async def _write(self) -> None:
        file = self._file or await self._open()
        record = self._next
        if record is not None:
            await file.write_at(self._slot * SLOT_BYTES, [encode_end_record(record)])
            self._unsynced.set()
            self._failed = False
            if self._next is record:
                self._next = None

    async def _open(self) -> File:
        """Open the file with reserved space and a durable name. The first write goes to the slot without the
        newest record."""
        last = await load_end_record(self._disk, self._path)
        file = await self._disk.open(self._path, create=True)
        try:
            await file.preallocate(SLOTS * SLOT_BYTES)
            await file.sync()
            await self._disk.sync_dir(self._path.rpartition("/")[0])
            if last is not None:
                first = bytes(await file.read_at(0, SLOT_BYTES))
                self._slot = 1 if last in end_records(first)[0] else 0
        except BaseException:
            await file.close()
            raise
        self._file = file
        return file

    async def _sync_regularly(self) -> None:
        while True:
            await self._unsynced.wait()
            await self._clock.sleep(self._sync_pause_s)
            self._unsynced.clear()
            if self._file is not None:
                # Operations on a file run in order: later writes happen after the sync.
                self._slot = 1 - self._slot
                try:
                    await self._file.sync()
                except DiskError as failure:
                    self._tell(failure)

    def _tell(self, failure: DiskError) -> None:
        if not self._failed:
            self._failed = True
            log.warning("%s cannot be kept up: a log cut short may go unnoticed: %s", self._path, failure)


_NAME = "accepted-losses"


async def record_accepted(runtime: Runtime, folder: str, losses: Sequence[Loss]) -> None:
    """Log the accepted losses, and record them durably in the folder; call this before acting on them."""
    path, unfinished = f"{folder}/{_NAME}", f"{folder}/{_NAME}.tmp"
    lines = await _read(runtime, path)
    for loss in losses:
        log.warning("given up, as --accept-loss says: %s", loss)
        line = {"at_ms": runtime.clock.wall_ms(), "path": loss.path, "lost": loss.what}
        lines += json.dumps(line, ensure_ascii=False).encode() + b"\n"
    file = await runtime.disk.open(unfinished, create=True)
    try:
        await file.truncate(0)
        await file.write_at(0, [lines])
        await file.sync()
    finally:
        await file.close()
    await runtime.disk.rename(unfinished, path)
    await runtime.disk.sync_dir(folder)


async def _read(runtime: Runtime, path: str) -> bytes:
    try:
        file = await runtime.disk.open(path)
    except FileMissingError:
        return b""
    try:
        return bytes(await file.read_at(0, await file.size()))
    finally:
        await file.close()
