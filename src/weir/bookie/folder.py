"""The folder of a bookie: names of its files, small files replaced atomically, the two copies of the checkpoint,
and the cookie, which binds the folder to one bookie id and to one disk (by a random instance id).
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from weir.model.errors import BookieCookieError, FileMissingError, JournalCorruptError, WireError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Disk, Runtime
from weir.wire.bookie_files import Checkpoint, Position, decode_checkpoint, encode_checkpoint
from weir.wire.metadata import Cookie, decode_cookie, encode_cookie

_JOURNAL = ".journal"
_FREE = ".free"
_LOG = ".log"
_INDEX = ".idx"


@dataclass(frozen=True, slots=True)
class Layout:
    """File names in the folder of one bookie."""

    root: str

    @property
    def lock(self) -> str:
        return f"{self.root}/lock"

    @property
    def cookie(self) -> str:
        """Formatting writes it last: a folder with a cookie belongs to a bookie."""
        return f"{self.root}/cookie"

    @property
    def checkpoints(self) -> tuple[str, str]:
        """Two copies, so that one bad sector does not lose the fences of every ledger."""
        return f"{self.root}/checkpoint-a", f"{self.root}/checkpoint-b"

    @property
    def journal(self) -> str:
        return f"{self.root}/journal"

    @property
    def journal_end(self) -> str:
        """The acknowledged end of the journal (`weir.runtime.loss_records`)."""
        return f"{self.root}/journal-end"

    @property
    def doubtful(self) -> str:
        """Ledgers in doubt after an accepted loss."""
        return f"{self.root}/doubtful-ledgers"

    @property
    def logs(self) -> str:
        return f"{self.root}/logs"

    def journal_file(self, sequence: int) -> str:
        return f"{self.journal}/{sequence:016d}{_JOURNAL}"

    def free_file(self, sequence: int) -> str:
        """A used journal file, ready for reuse."""
        return f"{self.journal}/{sequence:016d}{_FREE}"

    def log_file(self, log: int) -> str:
        return f"{self.logs}/{log:08d}{_LOG}"

    def index_file(self, log: int) -> str:
        return f"{self.logs}/{log:08d}{_INDEX}"


def journal_sequences(names: list[str]) -> list[int]:
    return _numbers(names, _JOURNAL)


def free_sequences(names: list[str]) -> list[int]:
    return _numbers(names, _FREE)


def log_ids(names: list[str]) -> list[int]:
    return _numbers(names, _LOG)


def index_ids(names: list[str]) -> list[int]:
    return _numbers(names, _INDEX)


def _numbers(names: list[str], suffix: str) -> list[int]:
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal())


log = logging.getLogger(__name__)

T = TypeVar("T")

#: The transfer, not the disk, may have flipped a bit: read again before reporting damage.
READ_ATTEMPTS = 3
TEMPORARY_SUFFIX = ".tmp"


async def insist(what: str, read: Callable[[], Awaitable[T]]) -> T:
    """The result of `read`; on a WireError, retry a few times before raising it."""
    for attempt in range(1, READ_ATTEMPTS):
        try:
            return await read()
        except WireError as bad:
            log.info("%s, read %d: %s; reading again", what, attempt, bad)  # the caller reports the final failure
    return await read()


async def write_small(disk: Disk, path: str, data: bytes) -> None:
    """Replace the file; after a crash it has either the old bytes or the new ones."""
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
    """The decoded file; FileMissingError without one, WireError if it is damaged."""
    file = await disk.open(path)
    try:

        async def read() -> T:
            return decode(bytes(await file.read_at(0, await file.size())))

        return await insist(path, read)
    finally:
        await file.close()


async def save_checkpoint(disk: Disk, layout: Layout, checkpoint: Checkpoint) -> None:
    """Save both copies durably. Afterwards the caller may remove files that only an older checkpoint names."""
    data = encode_checkpoint(checkpoint)
    for path in layout.checkpoints:
        await write_small(disk, path, data)


async def load_checkpoint(disk: Disk, layout: Layout) -> Checkpoint:
    """The newest whole copy; JournalCorruptError without one.

    A crash between the two writes leaves an older second copy; all files that it names still exist then. If one
    copy is damaged, the other one serves.
    """
    copies: list[Checkpoint] = []
    for path in layout.checkpoints:
        try:
            copies.append(await read_small(disk, path, decode_checkpoint))
        except FileMissingError:
            log.warning("%s is missing", path)
        except WireError as bad:
            log.error("%s is damaged: %s", path, bad)
    if not copies:
        raise JournalCorruptError(
            f"no whole checkpoint in {layout.root}: its fences and its entry logs are unknown"
        )
    return max(copies, key=lambda copy: copy.number)


_MEND = (
    "in a folder of weir up, run weir verify for repair steps; otherwise restore the cookie from a backup, or wipe"
    " the folder and start the bookie under a new id"
)
_EMPTY = Checkpoint(number=1, position=Position(sequence=1, offset=0, nonce=0), next_log=1)


async def read_cookie(runtime: Runtime, layout: Layout) -> Cookie:
    """The cookie of the folder; FileMissingError if the folder was never formatted."""
    try:
        return await read_small(runtime.disk, layout.cookie, decode_cookie)
    except WireError as bad:
        raise BookieCookieError(f"{layout.cookie} is damaged: {bad.what}", hint=_MEND) from bad


async def claim_folder(runtime: Runtime, layout: Layout, bookie_id: BookieId) -> Cookie:
    """The folder's cookie, after formatting a new folder; BookieCookieError if it names another bookie."""
    try:
        cookie = await read_cookie(runtime, layout)
    except FileMissingError:
        cookie = await _format(runtime, layout, bookie_id)
    if cookie.bookie_id != bookie_id:
        raise BookieCookieError(
            f"{layout.root} belongs to bookie {cookie.bookie_id!r}, not to {bookie_id!r}", hint=_MEND
        )
    return cookie


async def _format(runtime: Runtime, layout: Layout, bookie_id: BookieId) -> Cookie:
    """Write the cookie last: a folder without a cookie has no acknowledged data."""
    for folder in (layout.journal, layout.logs):
        if await runtime.disk.list(folder):
            raise BookieCookieError(
                f"{folder} holds files, but {layout.cookie} is missing",
                hint=_MEND,
            )
    await save_checkpoint(runtime.disk, layout, _EMPTY)
    cookie = Cookie(bookie_id, f"{runtime.rng.getrandbits(128):032x}")
    await write_small(runtime.disk, layout.cookie, encode_cookie(cookie))
    return cookie
