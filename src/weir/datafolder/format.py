"""What a data folder says of itself: the version of its files, and the Weir that made them.

It is checked before anything else is read, so that an older Weir does not misread, or write over, what a newer one
has written."""

import json
from typing import Any, NamedTuple

from weir import __version__
from weir.bookie.small_files import read_small, write_small
from weir.model.errors import ChecksumError, ConfigError, FileMissingError, WireError
from weir.runtime.interfaces import Disk
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
