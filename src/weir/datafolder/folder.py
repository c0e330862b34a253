"""What a data folder says of itself: the version of its files, and the Weir that made them.

It is checked before anything else is read, so that an older Weir does not misread, or write over, what a newer one
has written.

Where things lie in a data folder, and the lock that keeps two processes from using it.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from weir import __version__
from weir.bookie.folder import read_small, write_small
from weir.model.errors import ChecksumError, ConfigError, FileLockedError, FileMissingError, WireError
from weir.runtime.interfaces import Disk, Runtime
from weir.wire.checksum import crc32c

NAME = "format.json"
#: Counted up whenever an older Weir could not read the files any more.
FORMAT = 1


class FormatRecord(NamedTuple):
    """The format of a folder, and the version of Weir that wrote it first."""

    format: int
    weir: str


async def check_format(disk: Disk, folder: str) -> None:
    """ConfigError if a newer Weir has written the folder. A folder without the file is of an older release, and a
    damaged file does not matter: the other files have versions, too."""
    try:
        found = await read_format(disk, folder)
    except (FileMissingError, WireError):
        return
    if found.format > FORMAT:
        raise ConfigError(
            f"{folder} was written by Weir {found.weir}, in format {found.format};"
            f" this is {__version__}, for {FORMAT}",
            hint=f"start Weir {found.weir} on it, or restore a copy of this version: weir restore COPY --data NEW",
        )


async def read_format(disk: Disk, folder: str) -> FormatRecord:
    """FileMissingError if the folder has none; WireError if it is damaged."""
    return await read_small(disk, format_path(folder), _decode)


async def write_format(disk: Disk, folder: str) -> None:
    """Record what this Weir writes, unless the folder has a whole record."""
    try:
        await read_format(disk, folder)
    except (FileMissingError, WireError):
        record = FormatRecord(FORMAT, __version__)
        fields = {**record._asdict(), "crc": _crc(record)}
        await write_small(disk, format_path(folder), json.dumps(fields).encode() + b"\n")


def format_path(folder: str) -> str:
    return f"{folder}/{NAME}"


def _decode(data: bytes) -> FormatRecord:
    """Format 1 was also written without a checksum, by Weir 0.1."""
    try:
        fields: dict[str, Any] = json.loads(data)
        record = FormatRecord(int(fields["format"]), str(fields["weir"]))
        crc = fields.get("crc")
    except (ValueError, KeyError, TypeError, AttributeError) as bad:
        raise WireError(f"the format of the folder is malformed: {bad!r}") from bad
    if crc != _crc(record) and (crc is not None or record.format != FORMAT):
        raise ChecksumError("the checksum of the folder's format does not match")
    return record


def _crc(record: FormatRecord) -> int:
    return crc32c(json.dumps([record.format, record.weir]).encode())


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
