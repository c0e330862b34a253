"""A simulated disk: latency, a page cache that a crash loses, and the ways in which disks fail.

`SimDisk` is the device of one node; it outlives the node's incarnations and is what a scenario turns the knobs
of. `NodeDisk` is what one incarnation sees of it through `weir.runtime`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from posixpath import normpath
from random import Random
from typing import Any, TypeVar

from weir.model.errors import DiskError, DiskFullError, FileLockedError, FileMissingError
from weir.model.ids import Buffer
from weir.testing.world.disk_names import Names
from weir.testing.world.file_bytes import Inode
from weir.testing.world.incarnation import Incarnation
from weir.testing.world.loop import SimLoop

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """How a disk behaves from now on. Chances are per operation, times in virtual seconds."""

    #: Every operation takes this, plus up to `jitter_s`.
    latency_s: float = 0.00005
    jitter_s: float = 0.0001
    #: A sync takes this on top, plus up to `sync_jitter_s`.
    sync_s: float = 0.0005
    sync_jitter_s: float = 0.001
    #: Bytes per second that one file reads or writes; 0 for no limit.
    bandwidth: float = 0.0
    #: Operations hang until this is false again.
    stuck: bool = False
    #: One bit of what is read is wrong, this time.
    flip_chance: float = 0.0
    read_error_chance: float = 0.0
    write_error_chance: float = 0.0
    #: The sync fails, and what it should have saved may be gone (`Inode.fail_sync`).
    sync_error_chance: float = 0.0
    #: No write and no reservation finds space, not even where bytes are already, as on a file system that copies
    #: on write. Part of the write may be there, and a sync that belonged to it may have lost it again.
    full: bool = False


class _Operation:
    """Something that the disk will do: when its time has come, `action` does it all at once."""

    __slots__ = ("action", "changes", "future", "seconds")

    def __init__(
        self, action: Callable[[], Any], seconds: float, changes: bool, future: asyncio.Future[Any]
    ) -> None:
        self.action = action
        self.seconds = seconds
        self.changes = changes
        self.future = future


class _Queue:
    """Operations that run one after the other: those of one open file."""

    __slots__ = ("operations", "timer")

    def __init__(self) -> None:
        self.operations: deque[_Operation] = deque()
        self.timer: asyncio.TimerHandle | None = None


class SimDisk:
    """One node's disk device."""

    def __init__(self, node: str, loop: SimLoop, rng: Random, note: Callable[[str, str, str], None]) -> None:
        self.node = node
        self.names = Names()
        #: Writes beyond this fail with DiskFullError; None for no limit. May change at any time.
        self.capacity_bytes: int | None = None
        self._loop = loop
        self._rng = rng
        self._note = note
        self._faults = DiskFaults()
        self._context = Context()
        #: Queues that have something to do, and among them those whose turn came while the disk was stuck.
        self._active: dict[_Queue, None] = {}
        self._parked: dict[_Queue, None] = {}
        self.locks: dict[str, Incarnation] = {}

    # --- for scenarios ------------------------------------------------------------------------------------

    @property
    def faults(self) -> DiskFaults:
        return self._faults

    @faults.setter
    def faults(self, faults: DiskFaults) -> None:
        self._faults = faults
        self._note(self.node, "disk-faults", str(faults))
        if not faults.stuck:
            parked, self._parked = self._parked, {}
            for queue in parked:
                self._schedule(queue)

    @property
    def used_bytes(self) -> int:
        return sum(inode.size for inode in self.names.inodes())

    def read(self, path: str) -> bytes:
        """A file's content as a reader would see it now, without faults or waiting."""
        inode = self._need(path)
        return inode.read(0, inode.size)

    def size_of(self, path: str) -> int:
        """A file's size as a reader would see it now."""
        return self._need(path).size

    def rot(self, path: str, offset: int | None = None) -> int:
        """Flip one bit of a file for good; at a random offset unless told. Returns the offset."""
        inode = self._need(path)
        if offset is None:
            offset = self._rng.randrange(inode.size)
        inode.flip(offset, self._rng.randrange(8))
        self._note(self.node, "disk-rot", f"{path} {offset}")
        return offset

    def cut(self, path: str, size: int, *, zeros: bool) -> None:
        """Take what follows the first `size` bytes of a file for good; `zeros`: the file keeps its size."""
        inode = self._need(path)
        before = inode.size
        inode.resize(size)
        if zeros:
            inode.resize(before)
        inode.sync()
        self._note(self.node, "disk-cut", f"{path} {size} {zeros:d}")

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.names = Names()
        self.locks.clear()
        self._note(self.node, "disk-wipe", "")

    def crash(self, *, power_loss: bool) -> None:
        """The node died. What the disk was doing may have happened; with power loss, what was not synced is
        kept or lost at random, sector by sector and name by name."""
        for queue in self._active:
            if queue.timer is not None:
                queue.timer.cancel()
            operation = queue.operations[0]
            if operation.changes and not self._faults.stuck and self._rng.random() < 0.5:
                try:
                    operation.action()
                except DiskError:
                    self._note(self.node, "disk-last", "failed")
            queue.operations.clear()
        self._active.clear()
        self._parked.clear()
        self.locks.clear()
        if power_loss:
            # All, nothing and anything in between must each be common, or scenarios miss the extremes.
            keep = (0.0, 1.0, 0.5, self._rng.random())[self._rng.randrange(4)]
            for inode in self.names.durable_inodes():
                inode.lose_power(self._rng, keep)
            self.names.lose_power(self._rng, keep)

    # --- for NodeDisk and SimFile -------------------------------------------------------------------------

    def submit(
        self,
        queue: _Queue,
        action: Callable[[], _T],
        *,
        size: int = 0,
        sync: bool = False,
        changes: bool = False,
    ) -> asyncio.Future[_T]:
        """Do `action` when everything before it in the queue is done and the time it takes has passed."""
        faults, rng = self._faults, self._rng
        seconds = faults.latency_s + faults.jitter_s * rng.random()
        if sync:
            seconds += faults.sync_s + faults.sync_jitter_s * rng.random()
        if faults.bandwidth:
            seconds += size / faults.bandwidth
        future: asyncio.Future[_T] = self._loop.create_future()
        queue.operations.append(_Operation(action, seconds, changes, future))
        if len(queue.operations) == 1:
            self._active[queue] = None
            self._schedule(queue)
        return future

    def _schedule(self, queue: _Queue) -> None:
        delay = queue.operations[0].seconds
        queue.timer = self._loop.call_later(delay, self._perform, queue, context=self._context)

    def _perform(self, queue: _Queue) -> None:
        if self._faults.stuck:
            self._parked[queue] = None
            return
        operation = queue.operations.popleft()
        try:
            result = operation.action()
        except DiskError as error:
            self._note(self.node, "disk-error", error.what)
            if not operation.future.done():
                operation.future.set_exception(error)
        else:
            if not operation.future.done():
                operation.future.set_result(result)
        if queue.operations:
            self._schedule(queue)
        else:
            del self._active[queue]

    def chance(self, chance: float) -> bool:
        return chance > 0.0 and self._rng.random() < chance

    def note(self, kind: str, detail: str) -> None:
        self._note(self.node, kind, detail)

    def write(self, inode: Inode, path: str, offset: int, buffers: Sequence[Buffer], *, sync: bool) -> None:
        # The buffers are read only now, as the operating system would: a caller who reuses them too early
        # finds out here.
        data = b"".join(buffers)
        self._note(self.node, "disk-write", f"{path} {offset} {len(data)} {zlib.crc32(data):08x} {sync:d}")
        if self.chance(self._faults.write_error_chance):
            inode.write(offset, data[: self._rng.randint(0, len(data))])
            raise DiskError(f"write to {path} failed")
        if self._faults.full:
            inode.write(offset, data[: self._rng.randint(0, len(data))])
            if sync and self._rng.random() < 0.5:
                inode.fail_sync(self._rng)
            raise DiskFullError(f"no space left to write {len(data)} bytes to {path}")
        room = self._room_for(max(0, offset + len(data) - inode.size))
        if room is not None:
            fits = max(0, inode.size + room - offset)
            inode.write(offset, data[: self._rng.randint(0, min(fits, len(data)))])
            raise DiskFullError(f"no space left to write {len(data)} bytes to {path}")
        inode.write(offset, data)
        if sync:
            self.sync(inode, path)

    def sync(self, inode: Inode, path: str) -> None:
        if self.chance(self._faults.sync_error_chance):
            inode.fail_sync(self._rng)
            raise DiskError(f"sync of {path} failed; what was not synced may be lost")
        inode.sync()
        self._note(self.node, "disk-sync", f"{path} {inode.size}")

    def fetch(self, inode: Inode, path: str, offset: int, length: int) -> bytes:
        data = inode.read(offset, length)
        self._note(self.node, "disk-read", f"{path} {offset} {len(data)}")
        if self.chance(self._faults.read_error_chance):
            raise DiskError(f"read of {path} at {offset} failed")
        if data and self.chance(self._faults.flip_chance):
            flipped = bytearray(data)
            at = self._rng.randrange(len(data))
            flipped[at] ^= 1 << self._rng.randrange(8)
            self._note(self.node, "disk-flip", f"{path} {offset + at}")
            return bytes(flipped)
        return data

    def preallocate(self, inode: Inode, path: str, size: int) -> None:
        self._note(self.node, "disk-preallocate", f"{path} {size}")
        if size > inode.size:
            if self._faults.full or self._room_for(size - inode.size) is not None:
                raise DiskFullError(f"no space left to reserve {size} bytes for {path}")
            inode.resize(size)

    def free_bytes(self) -> int:
        if self._faults.full:
            return 0
        capacity = self.capacity_bytes if self.capacity_bytes is not None else 1 << 40
        return max(0, capacity - self.used_bytes)

    def _room_for(self, growth: int) -> int | None:
        """None if the growth fits, else how many bytes would."""
        if self.capacity_bytes is None or growth == 0:
            return None
        free = self.free_bytes()
        return None if growth <= free else free

    def _need(self, path: str) -> Inode:
        inode = self.names.find(path)
        if inode is None:
            raise FileMissingError(f"there is no file {path}")
        return inode


class SimFile:
    """An open file of one incarnation."""

    def __init__(self, disk: SimDisk, owner: Incarnation, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._owner = owner
        self._inode = inode
        self._queue = _Queue()
        self._closed = False

    async def _do(
        self, action: Callable[[], _T], *, size: int = 0, sync: bool = False, changes: bool = False
    ) -> _T:
        if not self._owner.alive:
            await self._owner.gone()
        if self._closed:
            raise DiskError(f"{self.path} is closed")
        return await self._disk.submit(self._queue, action, size=size, sync=sync, changes=changes)

    async def write_at(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        await self._do(
            lambda: self._disk.write(self._inode, self.path, offset, buffers, sync=sync),
            size=sum(map(len, buffers)),
            sync=sync,
            changes=True,
        )

    async def append(self, buffers: Sequence[Buffer], *, sync: bool = False) -> int:
        def action() -> int:
            offset = self._inode.size
            self._disk.write(self._inode, self.path, offset, buffers, sync=sync)
            return offset

        return await self._do(action, size=sum(map(len, buffers)), sync=sync, changes=True)

    async def read_at(self, offset: int, length: int) -> bytes:
        return await self._do(lambda: self._disk.fetch(self._inode, self.path, offset, length), size=length)

    async def sync(self) -> None:
        await self._do(lambda: self._disk.sync(self._inode, self.path), sync=True, changes=True)

    async def truncate(self, size: int) -> None:
        def action() -> None:
            self._disk.note("disk-truncate", f"{self.path} {size}")
            self._inode.resize(size)

        await self._do(action, changes=True)

    async def preallocate(self, size: int) -> None:
        await self._do(lambda: self._disk.preallocate(self._inode, self.path, size), changes=True)

    async def size(self) -> int:
        return await self._do(lambda: self._inode.size)

    async def close(self) -> None:
        """Waits for the operations before it, so that nothing of this file runs after it returns."""
        if not self._owner.alive:
            await self._owner.gone()
        if not self._closed:
            self._closed = True
            await self._disk.submit(self._queue, lambda: None)


class SimFileLock:
    """A lock that its incarnation holds; a crash of the node frees it."""

    def __init__(self, disk: SimDisk, owner: Incarnation, path: str) -> None:
        self._disk = disk
        self._owner = owner
        self._path = path
        self._held = True

    async def release(self) -> None:
        if self._held and self._owner.alive:
            self._held = False
            self._disk.locks.pop(self._path, None)


class NodeDisk:
    """What one incarnation of a node sees of its disk."""

    def __init__(self, disk: SimDisk, owner: Incarnation) -> None:
        self._disk = disk
        self._owner = owner

    async def _do(self, kind: str, detail: str, action: Callable[[], _T], *, changes: bool = False) -> _T:
        if not self._owner.alive:
            await self._owner.gone()

        def noted() -> _T:
            self._disk.note(kind, detail)
            return action()

        # A queue of its own: operations on names are only ordered by awaiting them.
        return await self._disk.submit(_Queue(), noted, sync=kind == "disk-sync-dir", changes=changes)

    async def open(self, path: str, *, create: bool = False) -> SimFile:
        def action() -> SimFile:
            names = self._disk.names
            inode = names.find(path)
            if inode is None:
                if not create:
                    raise FileMissingError(f"there is no file {path}")
                inode = names.create(path)
            return SimFile(self._disk, self._owner, path, inode)

        return await self._do("disk-open", path, action, changes=create)

    async def exists(self, path: str) -> bool:
        return await self._do("disk-exists", path, lambda: self._disk.names.exists(path))

    async def list(self, directory: str) -> list[str]:
        return await self._do("disk-list", directory, lambda: self._disk.names.entries(directory))

    async def make_dirs(self, directory: str) -> None:
        await self._do("disk-make-dirs", directory, lambda: self._disk.names.make_dirs(directory), changes=True)

    async def rename(self, source: str, target: str) -> None:
        await self._do(
            "disk-rename", f"{source} {target}", lambda: self._disk.names.rename(source, target), changes=True
        )

    async def remove(self, path: str) -> None:
        await self._do("disk-remove", path, lambda: self._disk.names.remove(path), changes=True)

    async def sync_dir(self, directory: str) -> None:
        await self._do("disk-sync-dir", directory, lambda: self._disk.names.sync(directory), changes=True)

    async def free_bytes(self, directory: str) -> int:
        return await self._do("disk-free", directory, self._disk.free_bytes)

    async def lock(self, path: str) -> SimFileLock:
        path = normpath(path)

        def action() -> SimFileLock:
            holder = self._disk.locks.get(path)
            if holder is not None and holder.alive:
                raise FileLockedError(f"{path} is locked by {holder.name}")
            if self._disk.names.find(path) is None:
                self._disk.names.create(path)
            self._disk.locks[path] = self._owner
            return SimFileLock(self._disk, self._owner, path)

        return await self._do("disk-lock", path, action)
