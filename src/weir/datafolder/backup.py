"""Copies of a whole data folder: made while it is stopped, or from what a running Weir freezes for it, and put
back.

A copy is itself a data folder, with a list of its files and their checksums (`backup.json`). Entry logs never
change once they are written, so a copy into a folder that has an earlier one takes only what is new.

Files that become a folder at once: each is written aside, and gets its name when all are right.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from weir import __version__
from weir.bookie.folder import Layout, write_small
from weir.bookie.survey import Progress
from weir.datafolder.folder import LOCK_NAME, DataFolder, is_empty, require_data_folder, stopped
from weir.datafolder.freeze import FROZEN, ask_to_freeze
from weir.model.errors import ConfigError, DiskError, FileLockedError, FileMissingError
from weir.runtime.interfaces import Disk, Runtime

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


MANIFEST = "backup.json"
_FORMAT = 1
#: What belongs to a process, not to the data.
_SKIPPED = (LOCK_NAME, "lock", MANIFEST, "run", "listening.json", FROZEN)
_LOGS = "bookie/logs/"


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a copy has, and how much of it was new."""

    folder: str
    made_ms: int
    files: int
    bytes: int
    copied_bytes: int
    running: bool


async def backup(
    runtime: Runtime, path: str, to: str, progress: Progress = lambda _done, _all: None
) -> BackupReport:
    """Copy the data folder into `to`, which is new, empty, or an earlier copy of the same folder. A running Weir
    is asked to freeze a moment; what it acknowledged before is in the copy."""
    source, target = DataFolder(path.rstrip("/") or "/"), DataFolder(to.rstrip("/") or "/")
    await require_data_folder(runtime, source)
    known = await _known(runtime, target.path)
    async with files_of(runtime, source) as (files, running):
        return await _Copy(runtime, target.path, known, progress).run(files, source, running=running)


@asynccontextmanager
async def files_of(runtime: Runtime, source: DataFolder) -> AsyncIterator[tuple[dict[str, str], bool]]:
    """Where each file of a copy lies, by its name in the copy; none of them changes for as long as the block runs.
    And whether a Weir runs on the folder."""
    async with AsyncExitStack() as held:
        try:
            await held.enter_async_context(stopped(runtime, source.path))
        except FileLockedError:
            pass
        else:
            wanted = await _tree(runtime.disk, source.path)
            yield {name: f"{source.path}/{name}" for name in wanted}, False
            return
        frozen = await held.enter_async_context(ask_to_freeze(runtime, source))
        wanted = await _tree(runtime.disk, frozen.folder)
        files = {name: f"{frozen.folder}/{name}" for name in wanted}
        layout = Layout(source.bookie)
        for log in frozen.logs:
            for file in (layout.log_file(log), layout.index_file(log)):
                files[file.removeprefix(f"{source.path}/")] = file
        yield files, True


async def restore(
    runtime: Runtime, path: str, to: str, progress: Progress = lambda _done, _all: None
) -> BackupReport:
    """Put a copy back as a new data folder, each file checked on the way; DiskError names those that are not
    what was copied, and nothing can be started on the new folder then."""
    source = path.rstrip("/") or "/"
    manifest = await read_manifest(runtime.disk, source)
    if not await is_empty(runtime, to):
        raise ConfigError(f"{to} is not empty", hint="name a new folder, or move the old one away")
    files = {name: f"{source}/{name}" for name in manifest.files}
    copy = _Copy(runtime, to.rstrip("/") or "/", {}, progress)
    copied = await copy.files(files, manifest.files)
    await copy.writer.settle(copied)
    return BackupReport(to, manifest.made_ms, len(copied), bytes_of(copied), copy.copied_bytes, running=False)


async def check_backup(runtime: Runtime, path: str, progress: Progress = lambda _done, _all: None) -> BackupReport:
    """Read every file of a copy, and compare it with the list; DiskError names what is wrong."""
    manifest = await read_manifest(runtime.disk, path)
    total, done = bytes_of(manifest.files), 0
    wrong = []
    for name, expected in manifest.files.items():
        try:
            found = await digest_of(chunks_of(runtime.disk, f"{path}/{name}"))
        except FileMissingError:
            wrong.append(f"{name} is missing")
            continue
        if found != expected:
            wrong.append(f"{name} is not what was copied")
        done += expected.size
        progress(done, total)
    if wrong:
        raise DiskError(f"{path}: {'; '.join(wrong)}")
    return BackupReport(path, manifest.made_ms, len(manifest.files), total, 0, manifest.running)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What stands in `backup.json`."""

    made_ms: int
    running: bool
    files: dict[str, CopiedFile]


def manifest_of(copied: Mapping[str, CopiedFile], source: str, made_ms: int, *, running: bool) -> bytes:
    """What stands in `backup.json`."""
    fields = {
        "format": _FORMAT,
        "weir": __version__,
        "made_ms": made_ms,
        "source": source,
        "running": running,
        "files": {name: {"size": f.size, "sha256": f.sha256} for name, f in sorted(copied.items())},
    }
    return json.dumps(fields, indent=1).encode()


async def read_manifest(disk: Disk, folder: str) -> Manifest:
    """ConfigError if the folder is no finished copy."""
    try:
        data = await _whole(disk, f"{folder}/{MANIFEST}")
    except FileMissingError:
        raise ConfigError(
            f"{folder} is no finished copy: it has no {MANIFEST}", hint="name what `weir backup --to` named"
        ) from None
    return parse_manifest(data, folder)


def parse_manifest(data: bytes, folder: str) -> Manifest:
    """ConfigError if a newer Weir made it, DiskError if it is damaged."""
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields["format"] != _FORMAT:
            raise ConfigError(f"{folder} was made by a newer Weir ({fields.get('weir')})", hint="upgrade this one")
        files = {str(n): CopiedFile(int(f["size"]), str(f["sha256"])) for n, f in fields["files"].items()}
        return Manifest(int(fields["made_ms"]), bool(fields["running"]), files)
    except (ValueError, KeyError, TypeError, AttributeError) as bad:
        raise DiskError(f"{folder}/{MANIFEST} is damaged: {bad!r}") from bad


async def _known(runtime: Runtime, target: str) -> dict[str, CopiedFile]:
    """The entry logs of an earlier copy in the same place."""
    if await is_empty(runtime, target):
        return {}
    manifest = await read_manifest(runtime.disk, target)
    return {name: file for name, file in manifest.files.items() if name.startswith(_LOGS)}


class _Copy:
    """Files into one folder: each aside, then all under their names, then the list."""

    def __init__(self, runtime: Runtime, target: str, known: Mapping[str, CopiedFile], progress: Progress) -> None:
        self._runtime = runtime
        self._disk = runtime.disk
        self._target = target
        self.writer = FolderWriter(runtime.disk, target)
        self._known = known
        self._progress = progress
        self.copied_bytes = 0

    async def run(self, files: Mapping[str, str], source: DataFolder, *, running: bool) -> BackupReport:
        copied = await self.files(files, None)
        await self.writer.settle(copied)
        made_ms = self._runtime.clock.wall_ms()
        data = manifest_of(copied, source.path, made_ms, running=running)
        await write_small(self._disk, f"{self._target}/{MANIFEST}", data)
        await self._remove_others(copied)
        return BackupReport(self._target, made_ms, len(copied), bytes_of(copied), self.copied_bytes, running)

    async def files(
        self, files: Mapping[str, str], expected: Mapping[str, CopiedFile] | None
    ) -> dict[str, CopiedFile]:
        copied: dict[str, CopiedFile] = {}
        total, done = 0, 0
        sizes = {name: await size_of(self._disk, path) for name, path in files.items()}
        total = sum(sizes.values())
        for name, path in files.items():
            known = self._known.get(name)
            if known is not None and known.size == sizes[name] and await self._has(name, known.size):
                copied[name] = known
            else:
                copied[name] = await self.writer.write(name, chunks_of(self._disk, path))
                self.copied_bytes += copied[name].size
            if expected is not None and copied[name] != expected[name]:
                raise DiskError(f"{path} is not what was copied: {copied[name].size} bytes, or other ones")
            done += sizes[name]
            self._progress(done, total)
        return copied

    async def _has(self, name: str, size: int) -> bool:
        try:
            return await size_of(self._disk, f"{self._target}/{name}") == size
        except FileMissingError:
            return False

    async def _remove_others(self, copied: Mapping[str, CopiedFile]) -> None:
        """What an earlier copy had, and this one has not."""
        for name in await _tree(self._disk, self._target):
            if name not in copied:
                await self._disk.remove(f"{self._target}/{name}")


async def _tree(disk: Disk, folder: str, prefix: str = "") -> list[str]:
    """Every file below the folder that belongs to a copy, by its name from there."""
    found: list[str] = []
    for name in await disk.list(f"{folder}/{prefix}".rstrip("/")):
        if name in _SKIPPED or name.endswith((".tmp", ".free")):
            continue
        path = f"{prefix}{name}"
        try:
            await disk.list(f"{folder}/{path}")
        except DiskError:
            found.append(path)
        else:
            found += await _tree(disk, folder, f"{path}/")
    return found


async def _whole(disk: Disk, path: str) -> bytes:
    file = await disk.open(path)
    try:
        return bytes(await file.read_at(0, await file.size()))
    finally:
        await file.close()


async def size_of(disk: Disk, path: str) -> int:
    file = await disk.open(path)
    try:
        return await file.size()
    finally:
        await file.close()


def bytes_of(files: Mapping[str, CopiedFile]) -> int:
    return sum(file.size for file in files.values())
