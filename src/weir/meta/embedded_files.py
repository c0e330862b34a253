"""The folder of an embedded metadata store: names, and files that appear whole or not at all."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from weir.model.errors import DiskFullError, FileMissingError
from weir.runtime import Disk

LOCK_NAME = "lock"
_LOG = "log-"
_SNAPSHOT = "snapshot-"
_UNFINISHED = ".tmp"
_GIVEN_UP = "given-up-"


class Contents(NamedTuple):
    """What lies in the folder: revisions in the names of logs and snapshots, ascending, and leftovers."""

    logs: list[int]
    snapshots: list[int]
    unfinished: list[str]


def log_path(folder: str, first_revision: int) -> str:
    """The log whose first record has this revision."""
    return f"{folder}/{_LOG}{first_revision:020d}"


def snapshot_path(folder: str, revision: int) -> str:
    """Every key as of this revision."""
    return f"{folder}/{_SNAPSHOT}{revision:020d}"


def end_path(folder: str) -> str:
    """How far the logs were acknowledged (`weir.runtime.end_file`)."""
    return f"{folder}/end"


def given_up_path(path: str) -> str:
    """Where a file goes that an accepted loss left useless; nothing reads it again but people."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{_GIVEN_UP}{name}"


async def contents(disk: Disk, folder: str) -> Contents:
    found = Contents([], [], [])
    for name in await disk.list(folder):
        if name.endswith(_UNFINISHED):
            found.unfinished.append(f"{folder}/{name}")
        elif name.startswith(_LOG) and name[len(_LOG) :].isdecimal():
            found.logs.append(int(name[len(_LOG) :]))
        elif name.startswith(_SNAPSHOT) and name[len(_SNAPSHOT) :].isdecimal():
            found.snapshots.append(int(name[len(_SNAPSHOT) :]))
    return found


async def write_whole(disk: Disk, path: str, parts: AsyncIterator[Sequence[bytes]]) -> int:
    """Create a file with this content, durably, in one step as seen by a crash; returns its size."""
    unfinished = path + _UNFINISHED
    file = await disk.open(unfinished, create=True)
    size = 0
    try:
        await file.truncate(0)
        async for buffers in parts:
            await file.write_at(size, buffers)
            size += sum(len(buffer) for buffer in buffers)
        await file.sync()
    except DiskFullError:
        await file.close()
        await remove_quietly(disk, [unfinished])  # what was written of it takes the space that is missing
        raise
    except BaseException:
        await file.close()
        raise
    await file.close()
    await disk.rename(unfinished, path)
    await disk.sync_dir(path.rpartition("/")[0])
    return size


async def read_whole(disk: Disk, path: str) -> bytes:
    file = await disk.open(path)
    try:
        return bytes(await file.read_at(0, await file.size()))
    finally:
        await file.close()


async def remove_quietly(disk: Disk, paths: Sequence[str]) -> None:
    """Remove files that no recovery needs; a crash may leave any of them."""
    for path in paths:
        try:
            await disk.remove(path)
        except FileMissingError:
            continue
