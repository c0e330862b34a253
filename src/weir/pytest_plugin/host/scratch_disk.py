"""Files that live as long as a test: nothing is synced, so that nothing waits; they do survive their process."""

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from weir.model.ids import Buffer
from weir.runtime.real_disk import RealDisk, RealFile
from weir.runtime.real_threads import Lane, Shortcut

T = TypeVar("T")


class _Inline(Lane):
    """Does at once, on the loop, what it is asked to do: the files are in the system's memory, and a hop to a
    thread and back would take longer."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)

    def call(self, work: Callable[[], T], *, shortcut: Shortcut | None = None) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        try:
            loop.call_soon(_tell, done.set_result, done, work())
        except Exception as failed:
            loop.call_soon(_tell, done.set_exception, done, failed)
        return done


def _tell(tell: Callable[[Any], None], done: "asyncio.Future[Any]", what: object) -> None:
    """In the loop's next turn: as on any disk, others have theirs in between."""
    if not done.done():
        tell(what)


class _ScratchFile(RealFile):
    async def write_at(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        await super().write_at(offset, buffers)

    async def sync(self) -> None:
        """What the system has survives the process, and nothing else needs to be survived."""

    def _preallocate(self, size: int) -> None:
        if os.fstat(self._fd).st_size < size:
            os.ftruncate(self._fd, size)


class ScratchDisk(RealDisk):
    """Fills `Disk`."""

    def __init__(self) -> None:
        super().__init__()
        self._lane = _Inline()
        self._directories = self._lane

    async def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        descriptor = await self._call(path, partial(os.open, path, flags, 0o640))
        return _ScratchFile(path, descriptor, os.fstat(descriptor).st_size, self._lane, self._queues)

    async def make_dirs(self, directory: str) -> None:
        await self._call(directory, partial(os.makedirs, directory, 0o750, exist_ok=True))

    async def sync_dir(self, directory: str) -> None:
        await self._call(directory, partial(os.stat, directory))  # as for files, but it must be there
