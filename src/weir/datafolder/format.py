"""What a data folder says of itself: the version of its files, and the Weir that made them.

It is checked before anything else is read, so that an older Weir does not misread, or write over, what a newer one
has written."""

import json
from typing import Any

from weir import __version__
from weir.bookie.small_files import write_small
from weir.model.errors import ConfigError, FileMissingError
from weir.runtime.interfaces import Disk

NAME = "format.json"
#: Counted up whenever an older Weir could not read the files any more.
FORMAT = 1


async def check_format(disk: Disk, folder: str) -> None:
    """ConfigError if a newer Weir has written the folder; one that says nothing is of before it was said."""
    try:
        file = await disk.open(f"{folder}/{NAME}")
    except FileMissingError:
        return
    try:
        data = bytes(await file.read_at(0, await file.size()))
    finally:
        await file.close()
    try:
        said: dict[str, Any] = json.loads(data)
        found, made_by = int(said["format"]), str(said.get("weir", "a newer version"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # damaged: the files themselves have versions, too
    if found > FORMAT:
        raise ConfigError(
            f"{folder} was written by Weir {made_by}, in format {found}; this is {__version__}, for {FORMAT}",
            hint=f"start Weir {made_by} on it, or restore a copy of this version: weir restore COPY --data NEW",
        )


async def write_format(disk: Disk, folder: str) -> None:
    """Say what this Weir writes, unless the folder says so already."""
    if not await disk.exists(f"{folder}/{NAME}"):
        fields = {"format": FORMAT, "weir": __version__}
        await write_small(disk, f"{folder}/{NAME}", json.dumps(fields).encode() + b"\n")
