"""Files and directories of the operating system, without blocking the event loop.

Operations run on I/O threads, on lanes that keep the order of one file's operations. A lane costs one hop to a
thread and back per operation: callers combine related work (a vectored write and its sync) into one operation.

Small synced writes need no thread: a hop costs about half as much as the fdatasync itself. With Linux's
asynchronous I/O the loop submits whole blocks, written directly (past the page cache) and synced, in one system
call, and an event descriptor wakes the loop when they are on the disk. The loop never waits for a disk: the write
has the flag "do not wait", and if the kernel would have to wait (to allocate a block, to update a file time) or
refuses for any reason, a thread does the whole operation instead.
"""

import asyncio
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from struct import Struct
from typing import Any, TypeVar

from weir.model.errors import DiskError, DiskFullError, FileLockedError, FileMissingError
from weir.model.ids import Buffer

#: Offsets and sizes must be multiples of this: the page size, which no disk's block exceeds.
BLOCK_BYTES = 4096
#: Larger writes go to a thread: their hop is small beside the work, and the copy here would hold up the loop.
MAX_BYTES = 64 * 1024

#: io_setup, io_destroy, io_getevents, io_submit
_SYSTEM_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_SLOTS = 16
#: A slower write means that the processors are busy (the kernel completes direct writes on the submitting
#: processor, however busy it is; threads find a free one) or that the disk is slow (and the hop is small beside
#: it): the next `_REST_WRITES` writes go to threads.
_SLOW_S = 0.001
_REST_WRITES = 64
_OP_WRITE = 1
_FLAG_EVENT_DESCRIPTOR = 1
_CONTROL_BLOCK = Struct("<QIIHhIQQqQII")
_EVENT = Struct("<QQqq")

#: How much of the page cache around a write is dropped when it was in the way. Behind, too: the kernel keeps pages
#: in groups, and drops only whole groups.
_AROUND_BYTES = 4 * 1024 * 1024

#: Called from the loop with whether every byte is on the disk.
Done = Callable[[bool], None]


class DirectFile:
    """One file's second descriptor, for direct writes; opened once the file has shown that it can use one."""

    def __init__(self, descriptor: int, queues: "DirectQueues") -> None:
        self._buffered = descriptor
        self._queues = queues
        self._direct: int | None = None
        self._refused = False

    def suits(self, offset: int, size: int) -> bool:
        """Whether a synced write inside the file may go the direct way."""
        return size <= MAX_BYTES and not offset % BLOCK_BYTES and not size % BLOCK_BYTES and not self._refused

    def write(self, offset: int, buffers: Sequence[Buffer], size: int, done: Done) -> bool:
        """Try; False if it was not even tried. Called from the loop."""
        if self._direct is None or (queue := self._queues.queue()) is None:
            return False
        return queue.write(self._direct, offset, buffers, size, done)

    def prepare(self, offset: int) -> None:
        """Make direct writes around `offset` more likely to succeed, by dropping cached pages, which block them.
        Called by the thread that did a write in place of a direct one."""
        if self._queues.resting:
            return
        if self._direct is None:
            try:
                self._direct = os.open(f"/proc/self/fd/{self._buffered}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                self._refused = True
                return
        start = max(0, offset - _AROUND_BYTES)
        os.posix_fadvise(self._buffered, start, 2 * _AROUND_BYTES, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None


class DirectQueues:
    """The queue of the loop that uses a disk, made when first needed; none where the kernel offers none."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: DirectWrites | None = None

    @property
    def resting(self) -> bool:
        """Whether the next writes go to threads in any case; may be asked from a thread."""
        return self._queue is not None and self._queue.resting

    def queue(self) -> "DirectWrites | None":
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            try:
                self._queue = DirectWrites(loop)
            except OSError:
                self._queue = None
        return self._queue


class DirectWrites:
    """The kernel's queue of one event loop, and the memory that it writes from."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError where the kernel offers no such queue."""
        calls = _SYSTEM_CALLS.get(platform.machine())
        if calls is None or not hasattr(os, "eventfd"):
            raise OSError("no asynchronous I/O on this platform")
        setup, destroy, self._get_events, self._submit = calls
        self._kernel = ctypes.PyDLL(None, use_errno=True).syscall
        self._context = ctypes.c_ulong(0)
        if self._kernel(setup, _SLOTS, ctypes.byref(self._context)):
            raise OSError(ctypes.get_errno(), "io_setup")
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, _release, self._kernel, destroy, self._context, self._descriptor)
        self._flags = os.RWF_DSYNC | os.RWF_NOWAIT
        memory = mmap.mmap(-1, _SLOTS * MAX_BYTES)
        self._memory = memoryview(memory)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._block = ctypes.create_string_buffer(_CONTROL_BLOCK.size)
        self._blocks = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._events = ctypes.create_string_buffer(_EVENT.size * _SLOTS)
        self._free = list(range(_SLOTS))
        self._running: dict[int, tuple[int, float, Done]] = {}
        self._rest = 0
        loop.add_reader(self._descriptor, self._completed)

    @property
    def resting(self) -> bool:
        return self._rest > 1

    def write(self, descriptor: int, offset: int, buffers: Sequence[Buffer], size: int, done: Done) -> bool:
        """Write and sync whole blocks; False if the kernel did not take them, and `done` is never called."""
        if self._rest or not self._free:
            self._rest = max(0, self._rest - 1)
            return False
        started = time.monotonic()
        slot = self._free.pop()
        start = at = slot * MAX_BYTES
        for piece in buffers:
            self._memory[at : (at := at + len(piece))] = piece
        _CONTROL_BLOCK.pack_into(
            self._block,
            0,
            slot,
            0,
            self._flags,
            _OP_WRITE,
            0,
            descriptor,
            self._address + start,
            size,
            offset,
            0,
            _FLAG_EVENT_DESCRIPTOR,
            self._descriptor,
        )
        if self._kernel(self._submit, self._context, 1, self._blocks) != 1:
            self._free.append(slot)
            return False
        self._running[slot] = (size, started, done)
        return True

    def _completed(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return
        count = self._kernel(self._get_events, self._context, 0, _SLOTS, self._events, None)
        for i in range(count):
            slot, _, written, _ = _EVENT.unpack_from(self._events, i * _EVENT.size)
            size, started, done = self._running.pop(slot)
            self._free.append(slot)
            if time.monotonic() - started > _SLOW_S:
                self._rest = _REST_WRITES
            done(written == size)


def _release(kernel: Callable[..., int], destroy: int, context: ctypes.c_ulong, descriptor: int) -> None:
    kernel(destroy, context)
    os.close(descriptor)


T = TypeVar("T")

#: Another way to do an operation that has no result; see `Lane.call`.
Shortcut = Callable[[Callable[[bool], None]], bool]

_Work = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class IoThreads:
    """A few daemon threads, started when first needed, shared by all lanes."""

    def __init__(self, threads: int) -> None:
        self._limit = threads
        self._started = 0
        self._lanes: SimpleQueue[Lane] = SimpleQueue()

    def lane(self) -> "Lane":
        """A new queue of operations that run one after the other."""
        return Lane(self._ready)

    def _ready(self, lane: "Lane") -> None:
        if self._started < self._limit:
            self._started += 1
            name = f"weir-io-{self._started}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._lanes.put(lane)

    def _serve(self) -> None:
        while True:
            self._lanes.get().run_one()


class Lane:
    """Operations of one file, in the order in which they were called."""

    def __init__(self, ready: Callable[["Lane"], None]) -> None:
        self._ready = ready
        self._work: deque[_Work] = deque()

    @property
    def idle(self) -> bool:
        """Whether everything that was called is done."""
        return not self._work

    def call(self, work: Callable[[], T], *, shortcut: "Shortcut | None" = None) -> "asyncio.Future[T]":
        """Run `work` on a thread, after all earlier calls; call from the loop.

        If the lane is idle, `shortcut` may do the same without a thread. It returns whether it tries, and calls
        its argument with whether it succeeded; if not, a thread does the work.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._work.append((work, future, loop))
        if len(self._work) == 1 and not (shortcut is not None and shortcut(self._tried)):
            self._ready(self)
        return future

    def _tried(self, did: bool) -> None:
        if did:
            self._finish(self._work[0][1], None, None)
        else:
            self._ready(self)

    def run_one(self) -> None:
        """Called by a thread: do the oldest operation. It stays in the queue while it runs, which is how
        `call` knows that a thread has this lane."""
        work, future, loop = self._work[0]
        try:
            result, failure = work(), None
        except BaseException as raised:
            result, failure = None, raised
        try:
            loop.call_soon_threadsafe(self._finish, future, result, failure)
        except RuntimeError:  # the loop is closed, so no caller waits
            self._work.clear()

    def _finish(self, future: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
        self._work.popleft()
        if self._work:
            self._ready(self)
        if future.cancelled():
            return
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)


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
        """Read from the page cache without a thread; None if it does not have all of the bytes."""
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
    """The rest of the pieces after `written` bytes."""
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
