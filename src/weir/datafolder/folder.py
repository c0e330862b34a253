"""Where things lie in a data folder, and the lock that keeps two processes from using it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from weir.datafolder.format import check_format
from weir.model.errors import ConfigError, FileLockedError, FileMissingError
from weir.runtime.interfaces import Runtime

LOCK_NAME = "LOCK"


@dataclass(frozen=True, slots=True)
class DataFolder:
    """What `weir up --data` names."""

    path: str

    @property
    def lock(self) -> str:
        return f"{self.path}/{LOCK_NAME}"

    @property
    def meta(self) -> str:
        return f"{self.path}/meta"

    @property
    def bookie(self) -> str:
        return f"{self.path}/bookie"


@asynccontextmanager
async def stopped(runtime: Runtime, path: str) -> AsyncIterator[DataFolder]:
    """The folder, for as long as nobody else uses it. ConfigError if it is none; FileLockedError while a Weir
    runs on it."""
    folder = DataFolder(path.rstrip("/") or "/")
    await require_data_folder(runtime, folder)
    try:
        lock = await runtime.disk.lock(folder.lock)
    except FileLockedError:
        raise FileLockedError(
            f"a Weir is running on {folder.path}",
            hint="stop it first; or check a copy: `weir backup` makes one while it runs",
        ) from None
    try:
        yield folder
    finally:
        await lock.release()


async def require_data_folder(runtime: Runtime, folder: DataFolder) -> None:
    """ConfigError unless it looks like one."""
    disk = runtime.disk
    if not await disk.exists(folder.path):
        raise ConfigError(f"there is no folder {folder.path}", hint="name what weir up has as --data")
    if not await disk.exists(folder.meta) and not await disk.exists(folder.bookie):
        raise ConfigError(
            f"{folder.path} is no data folder: it has neither `meta` nor `bookie` in it",
            hint="name what weir up has as --data",
        )
    await check_format(disk, folder.path)


async def is_empty(runtime: Runtime, path: str) -> bool:
    """Whether the folder is not there, or has nothing in it."""
    try:
        return not await runtime.disk.list(path)
    except FileMissingError:
        return True
