"""One file for a whole copy: a tar, plain or gzipped, written and read in one pass, a chunk at a time.

The list of files and checksums is its last member, since checksums are known when all is written. Any `tar` can
unpack it: what comes out is a copy in a folder.

A copy of a data folder in one file: made while the folder is used or not, checked, and put back.
"""

import hashlib
import tarfile
import zlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from weir.bookie.survey import Progress
from weir.datafolder.backup import (
    MANIFEST,
    BackupReport,
    CopiedFile,
    FolderWriter,
    Manifest,
    bytes_of,
    digest_of,
    files_of,
    manifest_of,
    parse_manifest,
    size_of,
)
from weir.datafolder.folder import DataFolder, is_empty, require_data_folder
from weir.model.errors import ConfigError, DiskError
from weir.runtime.interfaces import Disk, File, Runtime

_BLOCK = tarfile.BLOCKSIZE
_CHUNK_BYTES = 4 * 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_ENDINGS = (".tar", ".tar.gz", ".tgz")


def is_archive(path: str) -> bool:
    """Whether a name is that of one file, and not of a folder."""
    return path.endswith(_ENDINGS)


class Member(NamedTuple):
    """One file in an archive: name, size, and bytes, which are read before the next one is asked for."""

    name: str
    size: int
    chunks: AsyncIterator[bytes]


class ArchiveWriter:
    """Writes beside the name, and takes the name when all is there."""

    def __init__(self, disk: Disk, path: str, now_s: int) -> None:
        self._disk = disk
        self._path = path
        self._now_s = now_s
        self._file: File | None = None
        self._at = 0
        self._squeeze = None if path.endswith(".tar") else zlib.compressobj(6, zlib.DEFLATED, _GZIP)

    async def open(self) -> None:
        self._file = await self._disk.open(f"{self._path}.new", create=True)
        await self._file.truncate(0)

    async def add(self, name: str, size: int, source: File) -> str:
        """Add so many bytes of a file; their SHA-256. DiskError if it has fewer."""
        await self._write(self._head(name, size))
        digest, done = hashlib.sha256(), 0
        while done < size:
            data = await source.read_at(done, min(_CHUNK_BYTES, size - done))
            if not data:
                raise DiskError(f"{name} became shorter while it was copied")
            digest.update(data)
            await self._write(bytes(data))
            done += len(data)
        await self._write(bytes(-size % _BLOCK))
        return digest.hexdigest()

    async def add_bytes(self, name: str, data: bytes) -> None:
        await self._write(self._head(name, len(data)) + data + bytes(-len(data) % _BLOCK))

    async def finish(self) -> None:
        file = self._opened()
        await self._write(bytes(2 * _BLOCK))
        if self._squeeze is not None:
            await self._put(self._squeeze.flush())
        await file.sync()
        await file.close()
        self._file = None
        await self._disk.rename(f"{self._path}.new", self._path)
        await self._disk.sync_dir(self._path.rpartition("/")[0] or "/")

    async def abandon(self) -> None:
        """Leave nothing behind of one that was not finished."""
        if self._file is not None:
            await self._file.close()
            self._file = None
            await self._disk.remove(f"{self._path}.new")

    def _head(self, name: str, size: int) -> bytes:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = size, 0o640, self._now_s
        return member.tobuf(tarfile.GNU_FORMAT)

    def _opened(self) -> File:
        if self._file is None:
            raise DiskError(f"{self._path} is not open")
        return self._file

    async def _write(self, data: bytes) -> None:
        await self._put(data if self._squeeze is None else self._squeeze.compress(data))

    async def _put(self, data: bytes) -> None:
        if data:
            await self._opened().write_at(self._at, [data])
            self._at += len(data)


async def members(
    disk: Disk, path: str, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> AsyncIterator[Member]:
    """Every file of an archive, in order; DiskError if it is damaged, or ends too early. `progress` is told of the
    bytes of the archive itself."""
    file = await disk.open(path)
    try:
        source = _Source(file, path, await file.size(), progress)
        while True:
            head = await source.take(_BLOCK)
            if head.count(0) == _BLOCK:
                return
            try:
                found = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
            except tarfile.HeaderError as bad:
                raise DiskError(f"{path} is damaged: {bad}") from None
            if not found.isreg() or not _is_safe(found.name):
                raise DiskError(f"{path} was not made by weir backup: {found.name!r} is in it")
            yield Member(found.name, found.size, source.chunks(found.size))
            await source.end_of_member()
    finally:
        await file.close()


def _is_safe(name: str) -> bool:
    """A name below the folder that it is unpacked into."""
    return bool(name) and not name.startswith("/") and ".." not in name.split("/")


class _Source:
    """Bytes of an archive, in order, unpacked."""

    def __init__(self, file: File, path: str, size: int, progress: Callable[[int, int], None]) -> None:
        self._file = file
        self._path = path
        self._size = size
        self._progress = progress
        self._at = 0
        self._ready = b""
        self._left = 0
        self._padding = 0
        self._expand = None if path.endswith(".tar") else zlib.decompressobj(_GZIP)

    async def take(self, count: int) -> bytes:
        while len(self._ready) < count:
            self._ready += await self._more()
        data, self._ready = self._ready[:count], self._ready[count:]
        return data

    async def chunks(self, size: int) -> AsyncIterator[bytes]:
        self._left, self._padding = size, -size % _BLOCK
        while self._left:
            if not self._ready:
                self._ready = await self._more()
                continue
            data, self._ready = self._ready[: self._left], self._ready[self._left :]
            self._left -= len(data)
            yield data

    async def end_of_member(self) -> None:
        while self._left:  # nobody wanted it
            self._left -= len(await self.take(min(self._left, _CHUNK_BYTES)))
        await self.take(self._padding)
        self._padding = 0

    async def _more(self) -> bytes:
        """Some bytes, perhaps none yet; never much more than a chunk, however well they were packed."""
        expand = self._expand
        data = b"" if expand is None else expand.unconsumed_tail
        if not data:
            data = bytes(await self._file.read_at(self._at, _CHUNK_BYTES))
            self._at += len(data)
            self._progress(self._at, self._size)
            if not data:
                raise DiskError(f"{self._path} ends too early: it is not all of a copy")
        if expand is None:
            return data
        try:
            return expand.decompress(data, _CHUNK_BYTES)
        except zlib.error as bad:
            raise DiskError(f"{self._path} is damaged: {bad}") from None


_UNHEARD: Progress = lambda _done, _all: None  # noqa: E731


async def backup_to_file(runtime: Runtime, path: str, to: str, progress: Progress = _UNHEARD) -> BackupReport:
    """Copy the data folder into one new file; what a running Weir acknowledged before is in it."""
    source = DataFolder(path.rstrip("/") or "/")
    await require_data_folder(runtime, source)
    disk = runtime.disk
    if await disk.exists(to):
        raise ConfigError(f"{to} exists", hint="name a new file; a copy in one file is not added to")
    made_ms = runtime.clock.wall_ms()
    await disk.make_dirs(to.rpartition("/")[0] or "/")
    archive = ArchiveWriter(disk, to, made_ms // 1000)
    try:
        async with files_of(runtime, source) as (files, running):
            await archive.open()
            sizes = {name: await size_of(disk, file) for name, file in files.items()}
            total, copied = sum(sizes.values()), dict[str, CopiedFile]()
            for name, file in files.items():
                opened = await disk.open(file)
                try:
                    copied[name] = CopiedFile(sizes[name], await archive.add(name, sizes[name], opened))
                finally:
                    await opened.close()
                progress(bytes_of(copied), total)
        await archive.add_bytes(MANIFEST, manifest_of(copied, source.path, made_ms, running=running))
        await archive.finish()
    finally:
        await archive.abandon()
    return BackupReport(to, made_ms, len(copied), total, total, running)


async def check_file(runtime: Runtime, path: str, progress: Progress = _UNHEARD) -> BackupReport:
    """Read all of a copy in one file; DiskError names what is not what was copied."""
    found: dict[str, CopiedFile] = {}
    manifest: Manifest | None = None
    async for member in members(runtime.disk, path, progress):
        if member.name == MANIFEST:
            manifest = parse_manifest(b"".join([chunk async for chunk in member.chunks]), path)
        else:
            found[member.name] = await digest_of(member.chunks)
    return _compared(path, manifest, found)


async def restore_from_file(runtime: Runtime, path: str, to: str, progress: Progress = _UNHEARD) -> BackupReport:
    """Put a copy in one file back as a new data folder. Files get their names when all are known to be what was
    copied, so that nothing can be started on half of it."""
    if not await is_empty(runtime, to):
        raise ConfigError(f"{to} is not empty", hint="name a new folder, or move the old one away")
    folder = FolderWriter(runtime.disk, to.rstrip("/") or "/")
    found: dict[str, CopiedFile] = {}
    manifest: Manifest | None = None
    async for member in members(runtime.disk, path, progress):
        if member.name == MANIFEST:
            manifest = parse_manifest(b"".join([chunk async for chunk in member.chunks]), path)
        else:
            found[member.name] = await folder.write(member.name, member.chunks)
    report = _compared(path, manifest, found)
    await folder.settle(found)
    return BackupReport(to, report.made_ms, report.files, report.bytes, report.bytes, running=False)


def _compared(path: str, manifest: Manifest | None, found: dict[str, CopiedFile]) -> BackupReport:
    if manifest is None:
        raise DiskError(f"{path} is no finished copy: it has no {MANIFEST}")
    wrong = [f"{name} is missing" for name in manifest.files if name not in found]
    wrong += [f"{name} is not what was copied" for name, file in found.items() if manifest.files.get(name) != file]
    if wrong:
        raise DiskError(f"{path}: {'; '.join(wrong)}")
    return BackupReport(path, manifest.made_ms, len(found), bytes_of(found), 0, manifest.running)
