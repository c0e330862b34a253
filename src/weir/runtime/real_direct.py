"""Small synced writes without a thread: the loop submits them, the kernel finishes them.

A hop to a thread and back costs about half as much as the fdatasync that it is made for. Linux's asynchronous
I/O needs no hop: whole blocks, written directly (past the page cache) and synced, are handed over in one system
call, and an event descriptor wakes the loop when they are on the disk. The loop never waits for a disk: the
write is marked "do not wait", and whatever the kernel would have to wait for (a block to allocate, a file time
to write down), or refuses for any reason, is done on a thread as if nothing had been tried.
"""

import asyncio
import ctypes
import mmap
import os
import platform
import time
import weakref
from collections.abc import Callable, Sequence
from struct import Struct

from weir.model.ids import Buffer

#: Offsets and sizes must be multiples of this: the page size, which no disk's block exceeds.
BLOCK_BYTES = 4096
#: Larger writes go to a thread: their hop is small beside the work, and the copy here would hold up the loop.
MAX_BYTES = 64 * 1024

#: io_setup, io_destroy, io_getevents, io_submit
_SYSTEM_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_SLOTS = 16
#: A write that took longer says that the processors are busy (the kernel finishes direct writes on the very one
#: that asked, however busy it is; threads find a free one) or the disk is slow (and the hop is small beside it):
#: so many writes after it go to threads.
_SLOW_S = 0.001
_REST_WRITES = 64
_OP_WRITE = 1
_FLAG_EVENT_DESCRIPTOR = 1
_CONTROL_BLOCK = Struct("<QIIHhIQQqQII")
_EVENT = Struct("<QQqq")

#: How much of the page cache around a write is dropped when it was in the way. Behind, too: the kernel keeps pages
#: in groups, and drops only whole groups.
_AROUND_BYTES = 4 * 1024 * 1024

#: Told, from the loop, whether every byte is on the disk.
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
        """Make the next writes, around `offset`, more likely to go the direct way. Called by the thread that did
        what a direct write could not: cached pages are in its way."""
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
