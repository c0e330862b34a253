"""Entries and index pages that this bookie found damaged: each place said once in the log, counted, and forgotten
once it is whole again or its ledger is deleted."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from weir.model.ids import EntryId, LedgerId

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
