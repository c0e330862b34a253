"""The write cache: entries in the journal and not yet in an entry log, in two generations."""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from weir.model.check import check
from weir.model.ids import NO_ENTRY, Buffer, EntryId, LedgerId

#: Memory of an entry beside its bytes (objects, dict slots), so that the limit also holds for small entries.
ENTRY_OVERHEAD_BYTES = 160
#: Ids to probe one by one before a scan for the end of a gap in a ledger's entries.
_PROBES = 64


class Batch(NamedTuple):
    """Entries of one ledger from one add."""

    ledger_id: LedgerId
    entries: list[tuple[EntryId, Buffer]]
    size: int
    #: The highest last-add-confirmed in them.
    last_confirmed: EntryId
    #: The highest id among them.
    last: EntryId


class Generation:
    """Entries by ledger: filled, then flushed as a whole, then dropped."""

    __slots__ = ("confirmed", "count", "last", "ledgers", "size")

    def __init__(self) -> None:
        self.ledgers: dict[LedgerId, dict[EntryId, Buffer]] = {}
        #: The highest last-add-confirmed in each ledger's entries.
        self.confirmed: dict[LedgerId, EntryId] = {}
        #: The highest entry id of each ledger.
        self.last: dict[LedgerId, EntryId] = {}
        self.size = 0
        self.count = 0

    def put(self, batch: Batch) -> None:
        """Add or replace entries."""
        ledger_id, entries, size, confirmed, last = batch
        held = self.ledgers.get(ledger_id)
        if held is None:
            self.ledgers[ledger_id] = dict(entries)
            self.confirmed[ledger_id] = confirmed
            self.last[ledger_id] = last
        else:
            held.update(entries)
            self.confirmed[ledger_id] = max(self.confirmed[ledger_id], confirmed)
            self.last[ledger_id] = max(self.last[ledger_id], last)
        self.size += size + ENTRY_OVERHEAD_BYTES * len(entries)
        self.count += len(entries)

    def at_or_after(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> EntryId | None:
        """The lowest entry id in [first, last]."""
        held = self.ledgers.get(ledger_id)
        if not held or first > (last := min(last, self.last[ledger_id])):
            return None
        # Stripes leave gaps of a few ids, which probing finds; only a long gap justifies a scan of all ids.
        for entry_id in range(first, min(last, first + _PROBES) + 1):
            if entry_id in held:
                return EntryId(entry_id)
        if last <= first + _PROBES:
            return None
        return min((entry_id for entry_id in held if first <= entry_id <= last), default=None)

    def forget(self, ledger_id: LedgerId) -> None:
        """Drop a ledger's entries. The key remains, since a flush may iterate over the ledgers."""
        if ledger_id in self.ledgers:
            self.ledgers[ledger_id] = {}


class WriteCache:
    """The active generation, and the one in flight, if any."""

    def __init__(self, max_bytes: int) -> None:
        self._limit = max_bytes // 2
        self._active = Generation()
        self._flushing: Generation | None = None
        #: Set when the active generation is full.
        self.full = asyncio.Event()
        #: Incremented when a generation leaves: a reader that checked the cache and then the index retries if it
        #: changed.
        self.version = 0

    @property
    def size(self) -> int:
        return self._active.size + (self._flushing.size if self._flushing else 0)

    @property
    def count(self) -> int:
        return self._active.count + (self._flushing.count if self._flushing else 0)

    @property
    def is_empty(self) -> bool:
        return self._active.count == 0 and self._flushing is None

    @property
    def active_count(self) -> int:
        return self._active.count

    def put(self, batch: Batch) -> None:
        active = self._active
        active.put(batch)
        if active.size >= self._limit:
            self.full.set()

    @property
    def has_room(self) -> bool:
        """Whether the journal may continue: false if the active generation is full and the other one is in
        flight."""
        return self._active.size < self._limit or self._flushing is None

    @property
    def hurries(self) -> bool:
        """Whether the flush should hurry: the active generation is half full."""
        return self._active.size * 2 >= self._limit

    def rotate(self) -> Generation:
        """Move the active generation to flushing, and start an empty one."""
        check(self._flushing is None, "one generation is flushed at a time")
        flushing = self._flushing = self._active
        self._active = Generation()
        self.full.clear()
        return flushing

    @property
    def flushing(self) -> Generation | None:
        return self._flushing

    def drop_flushed(self) -> None:
        """Drop the flushed generation: its entries are readable from the entry log."""
        self._flushing = None
        self.version += 1

    def get(self, ledger_id: LedgerId, entry_id: EntryId) -> Buffer | None:
        for generation in (self._active, self._flushing):
            if generation is not None:
                held = generation.ledgers.get(ledger_id)
                if held is not None and (data := held.get(entry_id)) is not None:
                    return data
        return None

    def holds_ledger(self, ledger_id: LedgerId) -> bool:
        return any(True for _ in self._of(ledger_id))

    def _of(self, ledger_id: LedgerId) -> Iterator[dict[EntryId, Buffer]]:
        for generation in (self._active, self._flushing):
            if generation is not None and (held := generation.ledgers.get(ledger_id)):
                yield held

    def at_or_after(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> EntryId | None:
        """The lowest cached entry id in [first, last]."""
        nearest = self._active.at_or_after(ledger_id, first, last)
        if self._flushing is not None:
            other = self._flushing.at_or_after(ledger_id, first, last if nearest is None else nearest)
            nearest = other if other is not None else nearest
        return nearest

    def last_entry(self, ledger_id: LedgerId) -> EntryId:
        """The highest cached entry id of the ledger; NO_ENTRY without one."""
        both = (self._active, self._flushing)
        return max((g.last[ledger_id] for g in both if g and g.ledgers.get(ledger_id)), default=NO_ENTRY)

    def entries_of(self, ledger_id: LedgerId) -> int:
        """The number of cached entries of the ledger (one in both generations counts twice)."""
        return sum(len(held) for held in self._of(ledger_id))

    def ledgers(self) -> list[LedgerId]:
        """Every ledger with cached entries."""
        found = [ledger for ledger, held in self._active.ledgers.items() if held]
        if self._flushing is not None:
            found += [ledger for ledger, held in self._flushing.ledgers.items() if held]
        return found

    def forget(self, ledger_id: LedgerId) -> None:
        """Drop a deleted ledger."""
        self._active.forget(ledger_id)
        if self._flushing is not None:
            self._flushing.forget(ledger_id)
