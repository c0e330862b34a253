"""Stores of objects: whole files by name, written once and read in ranges, in a folder or in a bucket.

An object is there whole or not at all. Every failure is an ObjectStoreError.
"""

from collections.abc import AsyncIterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from weir.model.errors import DiskError, FileMissingError, ObjectMissingError, ObjectStoreError
from weir.model.ids import Buffer
from weir.runtime.interfaces import Runtime

_FILE = "file://"
_S3 = ("s3://", "s3a://")
#: Buffer size for writes to a file.
_WRITE_BYTES = 1024 * 1024


class ObjectStore(Protocol):
    """Objects under one address. Names have no `/`."""

    async def put(self, name: str, pieces: AsyncIterable[Buffer]) -> int:
        """Write an object, replacing the one of this name, durably; how many bytes it has. Nothing is there if it
        fails, or if `pieces` does."""

    async def read(self, name: str, position: int, length: int) -> bytes | bytearray:
        """Up to `length` bytes from the position; fewer only at the end. ObjectMissingError."""

    async def size(self, name: str) -> int:
        """In bytes. ObjectMissingError."""

    async def delete(self, name: str) -> None:
        """Delete an object; no error if it does not exist."""

    async def list(self) -> list[str]:
        """Names, including unfinished objects where the store shows them; empty if nothing was ever put."""

    async def clear(self) -> None:
        """Delete everything under the address, and the address itself where it is something."""


class ObjectStores(Protocol):
    def open(self, url: str, options: Mapping[str, str]) -> ObjectStore:
        """The store at an address (`file:///...`, `s3://bucket/...`); nothing is asked of it yet."""


class RuntimeStores:
    """Folders by the runtime's disk; buckets by threads that speak S3."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def open(self, url: str, options: Mapping[str, str]) -> ObjectStore:
        if url.startswith(_FILE):
            return FolderStore(self._runtime, url.removeprefix(_FILE))
        if url.startswith(_S3):
            from weir.runtime.real_s3 import S3Store  # needs a package that not every broker has

            return S3Store.open(url, options)
        raise ObjectStoreError(f"{url} is of a kind that is not known", hint="name file:///... or s3://bucket/...")


class FolderStore:
    """A folder; several brokers may share it by a network file system."""

    def __init__(self, runtime: Runtime, folder: str) -> None:
        self._disk = runtime.disk
        self._rng = runtime.rng
        self._folder = folder

    async def put(self, name: str, pieces: AsyncIterable[Buffer]) -> int:
        path = f"{self._folder}/{name}"
        unfinished = f"{path}.{self._rng.getrandbits(64):016x}.part"
        with _told(path):
            await self._disk.make_dirs(self._folder)
            try:
                size = await self._write(unfinished, pieces)
                await self._disk.rename(unfinished, path)
            except BaseException:
                await self._remove(unfinished)
                raise
            await self._disk.sync_dir(self._folder)
        return size

    async def _write(self, path: str, pieces: AsyncIterable[Buffer]) -> int:
        file = await self._disk.open(path, create=True)
        try:
            size, gathered, gathered_bytes = 0, list[Buffer](), 0
            async for piece in pieces:
                gathered.append(piece)
                gathered_bytes += len(piece)
                if gathered_bytes >= _WRITE_BYTES:
                    await file.write_at(size, gathered)
                    size += gathered_bytes
                    gathered, gathered_bytes = [], 0
            await file.write_at(size, gathered)
            await file.sync()
            return size + gathered_bytes
        finally:
            await file.close()

    async def read(self, name: str, position: int, length: int) -> bytes | bytearray:
        path = f"{self._folder}/{name}"
        with _told(path):
            file = await self._disk.open(path)
            try:
                return await file.read_at(position, length)
            finally:
                await file.close()

    async def size(self, name: str) -> int:
        path = f"{self._folder}/{name}"
        with _told(path):
            file = await self._disk.open(path)
            try:
                return await file.size()
            finally:
                await file.close()

    async def delete(self, name: str) -> None:
        with _told(f"{self._folder}/{name}"):
            if await self._remove(f"{self._folder}/{name}"):
                await self._disk.sync_dir(self._folder)

    async def list(self) -> list[str]:
        with _told(self._folder):
            try:
                return await self._disk.list(self._folder)
            except FileMissingError:
                return []

    async def clear(self) -> None:
        for name in await self.list():
            await self.delete(name)
        with _told(self._folder):
            await self._remove(self._folder)

    async def _remove(self, path: str) -> bool:
        """Whether it was there."""
        try:
            await self._disk.remove(path)
        except FileMissingError:
            return False
        return True


@contextmanager
def _told(path: str) -> Iterator[None]:
    """The disk's errors as those of a store."""
    try:
        yield
    except FileMissingError as missing:
        raise ObjectMissingError(f"there is no {_FILE}{path}") from missing
    except DiskError as failed:
        raise ObjectStoreError(f"{_FILE}{path}: {failed.what}", hint=failed.hint) from failed
