"""Files and directories of the operating system, without ever blocking the loop."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from weir.model.errors import DiskError, DiskFullError, FileLockedError, FileMissingError
from weir.model.ids import Buffer
from weir.runtime.real_direct import DirectFile, DirectQueues
from weir.runtime.real_threads import IoThreads, Lane, Shortcut

T = TypeVar("T")

_THREADS = 8
_IOV_MAX = 1024
_ZEROS = memoryview(bytes(1024 * 1024))
_SYNCED_ZEROS = 4 * len(_ZEROS)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_HINTS = {
    errno.EMFILE: "raise the limit of open files: ulimit -n 65536 in the shell, LimitNOFILE= in a systemd unit",
    errno.ENFILE: "this machine has too many files open: raise fs.file-max",
    errno.EACCES: "run Weir as the owner of the file, or give it to that user: chown",
    errno.EPERM: "run Weir as the owner of the file, or give it to that user: chown",
    errno.EROFS: "the file system is mounted read-only: see dmesg, or use another disk",
    errno.ENOSPC: "free some space on this disk",
    errno.EDQUOT: "this user's quota is used up: free some space, or raise it",
    errno.EIO: "the disk fails: see dmesg; weir backup what can be read, then weir salvage",
}
#: Write and sync in one system call (Linux); elsewhere a second call follows.
_WRITE_SYNC_FLAG: int | None = getattr(os, "RWF_DSYNC", None)
#: Read what needs no waiting for the disk (Linux); elsewhere a thread reads.
_READ_NOW_FLAG: int | None = getattr(os, "RWF_NOWAIT", None)
#: So much is copied in less time than two hops between threads take, or little more.
_READ_NOW_BYTES = 1024 * 1024 + 64 * 1024


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """The operating system's errors as Weir's."""
    try:
        yield
    except FileNotFoundError as missing:
        raise FileMissingError(f"there is no {path}") from missing
    except OSError as failed:
        kind = DiskFullError if failed.errno in _NO_SPACE else DiskError
        raise kind(f"{path}: {failed.strerror or failed}", hint=_HINTS.get(failed.errno or 0)) from failed


class RealFile:
    """One descriptor and its lane."""

    def __init__(self, path: str, descriptor: int, end: int, lane: Lane, queues: DirectQueues) -> None:
        self._path = path
        self._fd = descriptor
        self._end = end  # as it will be once every operation called so far has run
        self._unsynced = True  # whether a sync has more to cover than its own write, likewise
        self._lane = lane
        self._direct = DirectFile(descriptor, queues)
        self._open = True

    @property
    def path(self) -> str:
        return self._path

    async def write_at(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        size = sum(map(len, buffers))
        inside = offset + size <= self._end
        alone = not self._unsynced
        self._end = max(self._end, offset + size)
        self._unsynced = not sync
        if not sync:
            await self._call(partial(self._write, offset, buffers))
        elif not alone:
            await self._call(partial(self._write_and_sync_all, offset, buffers))
        elif inside and self._direct.suits(offset, size):
            shortcut = partial(self._direct.write, offset, buffers, size)
            await self._call(partial(self._write_blocks, offset, buffers, size), shortcut=shortcut)
        else:
            await self._call(partial(self._write_synced, offset, buffers))

    async def append(self, buffers: Sequence[Buffer], *, sync: bool = False) -> int:
        offset = self._end
        await self.write_at(offset, buffers, sync=sync)
        return offset

    async def read_at(self, offset: int, length: int) -> bytes | bytearray:
        if self._open and self._lane.idle and length <= _READ_NOW_BYTES:
            data = self._read_now(offset, length)
            if data is not None:
                return data
        return await self._call(partial(self._read, offset, length))

    async def sync(self) -> None:
        self._unsynced = False
        await self._call(partial(os.fdatasync, self._fd))

    async def truncate(self, size: int) -> None:
        self._end = size
        await self._call(partial(os.ftruncate, self._fd, size))

    async def preallocate(self, size: int) -> None:
        self._end = max(self._end, size)
        await self._call(partial(self._preallocate, size))

    async def size(self) -> int:
        return await self._call(lambda: os.fstat(self._fd).st_size)

    async def close(self) -> None:
        if self._open:
            self._open = False
            await self._lane.call(partial(self._run, self._close))

    def _read_now(self, offset: int, length: int) -> bytearray | None:
        """What the system holds in memory, read without a thread; None if that is not all of it."""
        if _READ_NOW_FLAG is None:
            return None
        data = bytearray(length)
        try:
            return data if os.preadv(self._fd, [data], offset, _READ_NOW_FLAG) == length else None
        except OSError:  # it would have to wait, or something is wrong: a thread finds out
            return None

    async def _call(self, work: Callable[[], T], *, shortcut: Shortcut | None = None) -> T:
        if not self._open:
            raise DiskError(f"{self._path} is closed")
        return await self._lane.call(partial(self._run, work), shortcut=shortcut)

    def _run(self, work: Callable[[], T]) -> T:
        with _translated(self._path):
            try:
                return work()
            except OSError:
                self._end = os.fstat(self._fd).st_size
                self._unsynced = True
                raise

    # --- on a thread ---

    def _write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        for first in range(0, len(buffers), _IOV_MAX):
            offset = self._write_batch(offset, buffers[first : first + _IOV_MAX])

    def _write_batch(self, offset: int, batch: Sequence[Buffer]) -> int:
        """Write at most IOV_MAX buffers, finishing what a short write left."""
        left = sum(map(len, batch))
        pieces = list(batch)
        while left:
            written = os.pwritev(self._fd, pieces, offset)
            offset, left = offset + written, left - written
            pieces = _after(pieces, written) if left else []
        return offset

    def _write_and_sync_all(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._write(offset, buffers)
        os.fdatasync(self._fd)

    def _write_synced(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Where only this write needs a sync, one system call instead of two spares the thread a second wait for
        the interpreter. It syncs no other bytes of the file."""
        if _WRITE_SYNC_FLAG is not None and len(buffers) <= _IOV_MAX:
            written = os.pwritev(self._fd, buffers, offset, _WRITE_SYNC_FLAG)
            if written == sum(map(len, buffers)):
                return
        self._write_and_sync_all(offset, buffers)

    def _write_blocks(self, offset: int, buffers: Sequence[Buffer], size: int) -> None:
        self._write_synced(offset, buffers)
        self._direct.prepare(offset + size)

    def _preallocate(self, size: int) -> None:
        """Zeros are written, not just promised: a first write to a block that was never written must also change
        the file system's own records, which costs every sync of the file's first life."""
        at = synced = os.fstat(self._fd).st_size
        os.posix_fallocate(self._fd, 0, size)
        while at < size:
            at += os.pwrite(self._fd, _ZEROS[: size - at], at)
            if at - synced >= _SYNCED_ZEROS:  # one sync of all would hold up those of other files for long
                os.fdatasync(self._fd)
                synced = at
        os.fdatasync(self._fd)

    def _close(self) -> None:
        self._direct.close()
        os.close(self._fd)

    def _read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        pieces, got = [data], len(data)
        while got < length and (piece := os.pread(self._fd, length - got, offset + got)):
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)


def _after(pieces: list[Buffer], written: int) -> list[Buffer]:
    """What is left of the pieces once `written` bytes of them are gone."""
    for i, piece in enumerate(pieces):
        if written < len(piece):
            return [memoryview(piece)[written:], *pieces[i + 1 :]]
        written -= len(piece)
    return []


class RealLock:
    """A lock that the kernel drops when the process dies."""

    def __init__(self, descriptor: int) -> None:
        self._fd: int | None = descriptor

    async def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class RealDisk:
    """The file system. Directory operations run one after the other on a lane of their own."""

    def __init__(self) -> None:
        self._threads = IoThreads(_THREADS)
        self._directories = self._threads.lane()
        self._queues = DirectQueues()

    async def open(self, path: str, *, create: bool = False) -> RealFile:
        def work() -> tuple[int, int]:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o640)
            return descriptor, os.fstat(descriptor).st_size

        descriptor, end = await self._call(path, work)
        return RealFile(path, descriptor, end, self._threads.lane(), self._queues)

    async def exists(self, path: str) -> bool:
        return await self._call(path, partial(os.path.exists, path))

    async def list(self, directory: str) -> list[str]:
        return sorted(await self._call(directory, partial(os.listdir, directory)))

    async def make_dirs(self, directory: str) -> None:
        def work() -> None:
            missing = []
            place = os.path.abspath(directory)
            while not os.path.isdir(place):
                missing.append(place)
                place = os.path.dirname(place)
            for new in reversed(missing):
                os.makedirs(new, 0o750, exist_ok=True)
                _sync_dir(os.path.dirname(new))

        await self._call(directory, work)

    async def rename(self, source: str, target: str) -> None:
        await self._call(source, partial(os.replace, source, target))

    async def remove(self, path: str) -> None:
        def work() -> None:
            if os.path.isdir(path):
                os.rmdir(path)
            else:
                os.remove(path)

        await self._call(path, work)

    async def sync_dir(self, directory: str) -> None:
        await self._call(directory, partial(_sync_dir, directory))

    async def free_bytes(self, directory: str) -> int:
        def work() -> int:
            stat = os.statvfs(directory)
            return stat.f_bavail * stat.f_frsize

        return await self._call(directory, work)

    async def lock(self, path: str) -> RealLock:
        def work() -> int:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as busy:
                os.close(descriptor)
                if busy.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise FileLockedError(f"{path} is locked by another process") from busy
                raise
            return descriptor

        return RealLock(await self._call(path, work))

    async def _call(self, path: str, work: Callable[[], T]) -> T:
        def run() -> T:
            with _translated(path):
                return work()

        return await self._directories.call(run)


def _sync_dir(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
