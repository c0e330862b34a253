"""A copy of a data folder in one file: made while the folder is used or not, checked, and put back."""

from weir.bookie.survey import Progress
from weir.datafolder.archive import ArchiveWriter, members
from weir.datafolder.backup import (
    MANIFEST,
    BackupReport,
    Manifest,
    bytes_of,
    files_of,
    manifest_of,
    parse_manifest,
    size_of,
)
from weir.datafolder.folder import DataFolder, is_empty, require_data_folder
from weir.datafolder.writing import CopiedFile, FolderWriter, digest_of
from weir.model.errors import ConfigError, DiskError
from weir.runtime.interfaces import Runtime

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
