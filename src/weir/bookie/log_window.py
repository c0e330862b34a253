"""Finds the entries in the bytes of a log, also behind damage: an entry describes itself, and its checksum says
where one really begins."""

import re
from collections.abc import AsyncIterator
from typing import NamedTuple

from weir.bookie.small_files import insist
from weir.model.errors import WireError
from weir.model.ids import NO_ENTRY, EntryId, LedgerId
from weir.runtime.interfaces import File
from weir.wire.entry import HEADER_BYTES, entry_key, entry_size, last_confirmed_of, verify_entry

_WINDOW_BYTES = 1024 * 1024
#: What nearly every header looks like: the high bytes of its numbers are zero. By `re`, since the damaged stretch
#: may be megabytes long.
_HEADER_LIKE = re.compile(
    rb"(?=(?s:.{7}[\x00-\x04].{6}\x00\x00.{6}\x00\x00(?:.{6}\x00\x00|\xff{8}).{6}\x00\x00))", re.DOTALL
)


class Stretch(NamedTuple):
    """Bytes of a log: one whole entry, or damage that one or more entries may lie in."""

    offset: int
    size: int
    #: As the header says; -1 where a damaged one cannot be believed because its length leads nowhere.
    ledger_id: LedgerId
    entry_id: EntryId
    last_confirmed: EntryId
    damage: str | None


class LogWindow:
    """A stretch of a log in memory, moved forward as entries are taken."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self.size = size
        self._data: bytes | bytearray = b""
        self._at = 0

    async def stretches(self, at: int, end: int) -> AsyncIterator[Stretch]:
        """Everything in [at, end), which begins and ends between entries: whole entries, and damage from where one
        should begin to where the next whole one does."""
        while at < end:
            stretch = await self._stretch(at, end)
            yield stretch
            at += stretch.size

    async def _stretch(self, at: int, end: int) -> Stretch:
        try:
            data = await self._whole(at, end)
            return Stretch(at, len(data), *entry_key(data), last_confirmed_of(data), None)
        except WireError as bad:
            size = await self._next_whole(at, end) - at
            head = await self._bytes(at, HEADER_BYTES)
            ids = entry_key(head) if _leads_to(head, size) else (LedgerId(0), NO_ENTRY)
            return Stretch(at, size, *ids, NO_ENTRY, bad.what)

    async def _whole(self, at: int, end: int) -> bytes | bytearray:
        """The entry at `at`, verified, read again if it is not; a WireError if there is none."""

        async def read() -> bytes | bytearray:
            try:
                data = await self._one(at, end)
                verify_entry(data)
            except WireError:
                self._data = b""  # read from the disk again
                raise
            return data

        return await insist(f"{self._file.path} at {at}", read)

    async def _next_whole(self, at: int, end: int) -> int:
        """Where the first whole entry behind `at` begins; `end` if there is none."""
        at += 1
        while at + HEADER_BYTES <= end:
            self._data = b""
            stretch = bytes(await self._bytes(at, min(_WINDOW_BYTES, end - at)))
            for match in _HEADER_LIKE.finditer(stretch):
                found = at + match.start()
                if await self._is_whole(found, end):
                    return found
            at += max(1, len(stretch) - HEADER_BYTES + 1)
        return end

    async def _is_whole(self, at: int, end: int) -> bool:
        try:
            head = await self._bytes(at, HEADER_BYTES)
            if len(head) < HEADER_BYTES or last_confirmed_of(head) >= entry_key(head)[1]:
                return False
            verify_entry(await self._one(at, end))
        except WireError:
            return False
        return True

    async def _one(self, at: int, end: int) -> bytes | bytearray:
        size = entry_size(await self._bytes(at, HEADER_BYTES))
        if at + size > end:
            raise WireError(f"an entry of {size} bytes runs over the end of what it lies in")
        data = await self._bytes(at, size)
        if len(data) < size:
            raise WireError(f"an entry of {size} bytes runs over the end of the file")
        return data

    async def _bytes(self, at: int, length: int) -> bytes | bytearray:
        inside = at - self._at
        if inside < 0 or inside + length > len(self._data):
            self._at, inside = at, 0
            self._data = await self._file.read_at(at, max(length, _WINDOW_BYTES))
        return self._data[inside : inside + length]


def _leads_to(head: bytes | bytearray, size: int) -> bool:
    try:
        return entry_size(head) == size
    except WireError:
        return False
