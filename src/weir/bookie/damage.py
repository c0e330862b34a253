"""Damaged entries and index pages of this bookie, and ledgers that an accepted loss put in doubt.

The log names each damaged place once; the count drops when a whole copy arrives or the ledger is deleted.

A bookie must not deny an entry that it once acknowledged: a recovery would believe it and cut the ledger short. An
accepted loss may have removed entries or the fence of a ledger although other bookies have copies. For such a
ledger the bookie reports an absent entry as damaged, refuses adds of the writer, and accepts copies from repair;
repair then ends the doubt (`weir.server.doubts`).
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

#: Damaged places that are named one by one. Above this number the bookie only reports that there are more.
_MOST = 10_000


class DamagedEntry(NamedTuple):
    """An entry whose bytes fail verification, with its file and offset."""

    ledger_id: LedgerId
    entry_id: EntryId
    path: str
    offset: int
    what: str


class Damages:
    """Damaged entries known now. Reporting the same entry twice has no effect."""

    def __init__(self) -> None:
        self._entries: dict[LedgerId, dict[EntryId, DamagedEntry]] = {}
        self.count = 0
        #: Damaged indexes rebuilt from their log, and damaged entries replaced by a whole copy.
        self.mended_indexes = 0
        self.healed_entries = 0
        self._said_too_many = False

    def __bool__(self) -> bool:
        return self.count > 0

    def entries(self) -> list[DamagedEntry]:
        """By ledger and entry."""
        return [found[entry] for _, found in sorted(self._entries.items()) for entry in sorted(found)]

    def found(self, damaged: DamagedEntry) -> None:
        """Record the damage, and log it the first time."""
        known = self._entries.get(damaged.ledger_id)
        if known is not None and damaged.entry_id in known:
            return
        if self.count >= _MOST:
            if not self._said_too_many:
                self._said_too_many = True
                log.error(
                    "more than %d damaged entries, the log names no further ones; run `weir bookie verify`", _MOST
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
        log.warning("index %s is damaged (%s); rebuilding it from its log", path, what)

    def healed(self, ledger_id: LedgerId, entries: Iterable[EntryId]) -> None:
        """Whole copies of these entries were stored: remove them from the damage."""
        known = self._entries.get(ledger_id)
        if known is None:
            return
        for entry_id in entries:
            if known.pop(entry_id, None) is not None:
                self.count -= 1
                self.healed_entries += 1
                log.warning(
                    "entry %d of ledger %d is whole again: a copy replaced the damaged one", entry_id, ledger_id
                )
        if not known:
            del self._entries[ledger_id]

    def forget(self, ledger_id: LedgerId) -> None:
        """The ledger was deleted."""
        self.count -= len(self._entries.pop(ledger_id, ()))


#: Returns the ledgers of this bookie that other bookies also have.
Copies = Callable[[], Awaitable[Collection[LedgerId]]]


async def no_copies() -> Collection[LedgerId]:
    """For a bookie without replicas elsewhere."""
    return ()


class Doubts:
    """Ledgers in doubt, stored in a small file so that a restart does not end the doubt."""

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
        """Put these ledgers in doubt, durably."""
        await self._save(self.ledgers | frozenset(ledgers))

    async def end(self, ledgers: Collection[LedgerId]) -> None:
        """End the doubt of these ledgers: they are whole again, or deleted."""
        if ledgers:
            await self._save(self.ledgers - frozenset(ledgers))

    async def _save(self, ledgers: frozenset[LedgerId]) -> None:
        await write_small(self._disk, self._path, encode_doubtful(ledgers))
        self.ledgers = ledgers

    def instead_of(self, denial: BookieError, ledger_id: LedgerId) -> BookieError:
        """The error to raise in place of `denial`: EntryInDoubtError if the ledger is in doubt."""
        if ledger_id not in self.ledgers:
            return denial
        return EntryInDoubtError(f"{denial.what}, but this bookie lost a part of its journal and may have held it")
