"""A real disk that can be made to have no space left, for processes and nodes that run on the real runtime."""

from collections.abc import Sequence
from typing import Any

from weir.model.errors import DiskFullError
from weir.model.ids import Buffer
from weir.runtime.interfaces import Disk, File


class FillableDisk:
    """Fills `Disk`. While it is `full`, a write that makes a file longer fails with part of it written, as at the
    last free block; so does a reservation. Writes into space that a file has already go through."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.full = False
        #: Writes and reservations that found no space.
        self.refusals = 0

    async def open(self, path: str, *, create: bool = False) -> "FillableFile":
        return FillableFile(self, await self._disk.open(path, create=create))

    async def free_bytes(self, directory: str) -> int:
        return 0 if self.full else await self._disk.free_bytes(directory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


class FillableFile:
    """An open file on it; fills `File`."""

    def __init__(self, disk: FillableDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def write_at(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        if self._disk.full:
            data = b"".join(buffers)
            room = max(0, await self._file.size() - offset)
            if room < len(data):
                await self._file.write_at(offset, [data[: (room + len(data)) // 2]])
                raise self._no_space()
        await self._file.write_at(offset, buffers, sync=sync)

    async def append(self, buffers: Sequence[Buffer], *, sync: bool = False) -> int:
        offset = await self._file.size()
        await self.write_at(offset, buffers, sync=sync)
        return offset

    async def preallocate(self, size: int) -> None:
        if self._disk.full and size > await self._file.size():
            raise self._no_space()
        await self._file.preallocate(size)

    def _no_space(self) -> DiskFullError:
        self._disk.refusals += 1
        return DiskFullError(f"{self._file.path}: No space left on device")
