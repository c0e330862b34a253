"""Files that become a folder at once: each is written aside, and gets its name when all are right."""

import hashlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from weir.bookie.layout import Layout
from weir.datafolder.folder import DataFolder
from weir.runtime.interfaces import Disk

CHUNK_BYTES = 4 * 1024 * 1024
_NEW = ".new"


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """What a file of a copy is known by."""

    size: int
    sha256: str


async def chunks_of(disk: Disk, path: str) -> AsyncIterator[bytes]:
    """A file, from its start to its end."""
    file, at = await disk.open(path), 0
    try:
        while data := await file.read_at(at, CHUNK_BYTES):
            at += len(data)
            yield bytes(data)
    finally:
        await file.close()


async def digest_of(chunks: AsyncIterator[bytes]) -> CopiedFile:
    digest, size = hashlib.sha256(), 0
    async for data in chunks:
        digest.update(data)
        size += len(data)
    return CopiedFile(size, digest.hexdigest())


class FolderWriter:
    """`write` each file, then `settle`."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder

    async def write(self, name: str, chunks: AsyncIterator[bytes]) -> CopiedFile:
        target = f"{self._folder}/{name}"
        await self._disk.make_dirs(target.rpartition("/")[0])
        digest, size = hashlib.sha256(), 0
        copy = await self._disk.open(target + _NEW, create=True)
        try:
            await copy.truncate(0)
            async for data in chunks:
                digest.update(data)
                await copy.write_at(size, [data])
                size += len(data)
            await copy.sync()
        finally:
            await copy.close()
        return CopiedFile(size, digest.hexdigest())

    async def settle(self, names: Iterable[str]) -> None:
        """Everything under its name, durably, and the folders that a bookie has even if nothing is in them."""
        folders: dict[str, None] = {}
        layout = Layout(DataFolder(self._folder).bookie)
        for folder in (layout.journal, layout.logs):
            await self._disk.make_dirs(folder)
        for name in names:
            target = f"{self._folder}/{name}"
            if await self._disk.exists(target + _NEW):
                await self._disk.rename(target + _NEW, target)
                folders[target.rpartition("/")[0]] = None
        for folder in folders:
            await self._disk.sync_dir(folder)
