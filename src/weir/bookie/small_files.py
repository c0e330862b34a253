"""Small files that are written as a whole and replace their former self at once."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from weir.model.errors import WireError
from weir.runtime.interfaces import Disk

log = logging.getLogger(__name__)

T = TypeVar("T")

#: A flipped bit may have been flipped on the way, not on the disk: look again before calling it damage.
READ_ATTEMPTS = 3
TEMPORARY_SUFFIX = ".tmp"


async def insist(what: str, read: Callable[[], Awaitable[T]]) -> T:
    """What `read` answers; if that does not decode (WireError), ask again a few times before believing it."""
    for attempt in range(1, READ_ATTEMPTS):
        try:
            return await read()
        except WireError as bad:
            log.info("%s, read %d: %s; reading again", what, attempt, bad)  # who believes it says so, once
    return await read()


async def write_small(disk: Disk, path: str, data: bytes) -> None:
    """Replace the file; at any crash it holds the old bytes or the new ones."""
    file = await disk.open(path + TEMPORARY_SUFFIX, create=True)
    try:
        await file.truncate(0)
        await file.write_at(0, [data])
        await file.sync()
    finally:
        await file.close()
    await disk.rename(path + TEMPORARY_SUFFIX, path)
    await disk.sync_dir(path.rpartition("/")[0])


async def read_small(disk: Disk, path: str, decode: Callable[[bytes], T]) -> T:
    """The file's value; FileMissingError if there is none, WireError if it is damaged."""
    file = await disk.open(path)
    try:

        async def read() -> T:
            return decode(bytes(await file.read_at(0, await file.size())))

        return await insist(path, read)
    finally:
        await file.close()
