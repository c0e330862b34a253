"""Entries and index pages that this bookie found damaged: each place said once in the log, counted, and forgotten
once it is whole again or its ledger is deleted.

Ledgers of which an accepted loss may have taken entries or the fence, though other bookies have copies.

A bookie must not deny an entry that it once acknowledged: a recovery would believe it and cut the ledger short. So
of such a ledger it denies nothing, but says that what is absent is damaged, takes no adds of the writer, and is
filled up by repair; then the doubt ends (`weir.server.doubts`).
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple

from weir.bookie.folder import Layout, read_small, write_small
from weir.model.errors import BookieError, EntryInDoubtError, FileMissingError, JournalCorruptError, WireError
from weir.model.ids import EntryId, LedgerId
from weir.runtime.interfaces import Disk
from weir.wire.bookie_files import decode_doubtful, encode_doubtful

log = logging.getLogger(__name__)

#: Places that are told apart. More on one disk are counted together: nobody reads them one by one.
_MOST = 10_000


class DamagedEntry(NamedTuple):
    """An entry whose bytes are not what was written, and where they lie."""

    ledger_id: LedgerId
    entry_id: EntryId
    path: str
    offset: int
    what: str


class Damages:
    """What is known to be damaged now. Finding the same place again says nothing new."""

    def __init__(self) -> None:
        self._entries: dict[LedgerId, dict[EntryId, DamagedEntry]] = {}
        self.count = 0
        #: Indexes that were damaged and made anew from their log, and entries that were damaged and came again.
        self.mended_indexes = 0
        self.healed_entries = 0
        self._said_too_many = False

    def __bool__(self) -> bool:
        return self.count > 0

    def entries(self) -> list[DamagedEntry]:
        """By ledger and entry."""
        return [found[entry] for _, found in sorted(self._entries.items()) for entry in sorted(found)]

    def found(self, damaged: DamagedEntry) -> None:
        """Note it, and say so unless that was said before."""
        known = self._entries.get(damaged.ledger_id)
        if known is not None and damaged.entry_id in known:
            return
        if self.count >= _MOST:
            if not self._said_too_many:
                self._said_too_many = True
                log.error(
                    "more than %d damaged entries: further ones are not named; run `weir bookie verify`", _MOST
                )
            return
        self._entries.setdefault(damaged.ledger_id, {})[damaged.entry_id] = damaged
        self.count += 1
        log.warning(
            "%s at offset %d is damaged: entry %d of ledger %d cannot be read here (%s)",
            damaged.path,
            damaged.offset,
            damaged.entry_id,
            damaged.ledger_id,
            damaged.what,
        )

    def index_mended(self, path: str, what: str) -> None:
        self.mended_indexes += 1
        log.warning("%s was damaged (%s), and is made anew from its log", path, what)

    def healed(self, ledger_id: LedgerId, entries: Iterable[EntryId]) -> None:
        """Whole copies of these were stored: they count from now on."""
        known = self._entries.get(ledger_id)
        if known is None:
            return
        for entry_id in entries:
            if known.pop(entry_id, None) is not None:
                self.count -= 1
                self.healed_entries += 1
                log.warning("entry %d of ledger %d was damaged, and is whole again", entry_id, ledger_id)
        if not known:
            del self._entries[ledger_id]

    def forget(self, ledger_id: LedgerId) -> None:
        """The ledger was deleted."""
        self.count -= len(self._entries.pop(ledger_id, ()))


#: Tells which ledgers that count on this bookie are on others as well.
Copies = Callable[[], Awaitable[Collection[LedgerId]]]


async def no_copies() -> Collection[LedgerId]:
    """For a bookie that is the only one."""
    return ()


class Doubts:
    """Kept in a small file, so that a restart does not end them."""

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._path = layout.doubtful
        self.ledgers: frozenset[LedgerId] = frozenset()

    async def load(self) -> None:
        try:
            self.ledgers = frozenset(await read_small(self._disk, self._path, decode_doubtful))
        except FileMissingError:
            return
        except WireError as bad:
            raise JournalCorruptError(f"{self._path} is damaged: {bad.what}") from bad

    async def begin(self, ledgers: Collection[LedgerId]) -> None:
        """Doubt these too, durably."""
        await self._save(self.ledgers | frozenset(ledgers))

    async def end(self, ledgers: Collection[LedgerId]) -> None:
        """These are whole again, or gone."""
        if ledgers:
            await self._save(self.ledgers - frozenset(ledgers))

    async def _save(self, ledgers: frozenset[LedgerId]) -> None:
        await write_small(self._disk, self._path, encode_doubtful(ledgers))
        self.ledgers = ledgers

    def instead_of(self, denial: BookieError, ledger_id: LedgerId) -> BookieError:
        """What to say where the bookie would deny something."""
        if ledger_id not in self.ledgers:
            return denial
        return EntryInDoubtError(f"{denial.what}, but this bookie lost a part of its journal and may have held it")
