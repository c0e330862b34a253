"""Copies the entries of one replica of a fragment to a bookie from the other replicas, within a byte rate.

Recovery and repair add entries with `recovery_add`, which retries while the bookie is busy.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from weir.ledger.context import LedgerContext
from weir.ledger.interfaces import BookiePool
from weir.model.errors import BookieBusyError, BookieError, BookieUnavailableError, EntryLostError
from weir.model.ids import BookieId, Buffer, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState, Quorum
from weir.runtime.interfaces import Clock
from weir.wire.entry import Entry, encode_entry


class Throttle:
    """Lets bytes through at a rate, by making whoever is ahead of it wait."""

    def __init__(self, clock: Clock, *, bytes_per_s: float) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._free_at = clock.monotonic()

    async def take(self, size: int) -> None:
        """Wait until what was let through before is paid for; then let `size` bytes through."""
        now = self._clock.monotonic()
        wait_s = self._free_at - now
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
        if wait_s > 0:
            await self._clock.sleep(wait_s)


_BUSY_PAUSE_S = 0.05


async def recovery_add(
    clock: Clock,
    pool: BookiePool,
    bookie_id: BookieId,
    ledger_id: LedgerId,
    entries: Sequence[tuple[EntryId, Buffer]],
    *,
    timeout_s: float,
) -> BookieError | None:
    """Store the entries past any fence; answers why not, if not."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await pool.get(bookie_id).add(ledger_id, entries, recovery=True)
                    return None
                except BookieBusyError:
                    await clock.sleep(_BUSY_PAUSE_S)
    except TimeoutError:
        return BookieUnavailableError(f"{bookie_id} did not store entries within {timeout_s} s")
    except BookieError as failure:
        return failure


#: Called with how many entries and bytes were just copied or checked.
Progress = Callable[[int, int], None]


class Stretch(NamedTuple):
    """A fragment whose entries are all known: those from `fragment.first_entry` to `last`."""

    ledger_id: LedgerId
    quorum: Quorum
    fragment: Fragment
    last: EntryId

    def write_set(self, entry_id: EntryId) -> tuple[BookieId, ...]:
        """The bookies that hold the entry."""
        bookies = self.fragment.bookies
        return tuple(bookies[(entry_id + i) % len(bookies)] for i in range(self.quorum.write))

    def entries_of(self, bookie_id: BookieId, first: EntryId | None = None) -> Iterator[EntryId]:
        """The entries that the bookie should hold, from `first` on."""
        slot, size = self.fragment.bookies.index(bookie_id), len(self.fragment.bookies)
        begin = self.fragment.first_entry if first is None else first
        for entry_id in range(begin, self.last + 1):
            if (slot - entry_id) % size < self.quorum.write:
                yield EntryId(entry_id)

    def count_of(self, bookie_id: BookieId) -> int:
        """How many entries the bookie should hold."""
        return sum(1 for _ in self.entries_of(bookie_id))


def stretches(ledger: LedgerMetadata, confirmed: EntryId | None = None) -> list[Stretch]:
    """The ledger's fragments with the entries that they surely hold. The last one of a ledger that is not closed
    ends at `confirmed`, and is left out without it. One that holds nothing is among them: its bookies count."""
    found: list[Stretch] = []
    fragments = ledger.fragments
    for i, fragment in enumerate(fragments):
        if i + 1 < len(fragments):
            last = EntryId(fragments[i + 1].first_entry - 1)
        elif ledger.state is LedgerState.CLOSED:
            last = ledger.last_entry
        elif confirmed is not None:
            last = confirmed
        else:
            continue
        found.append(Stretch(ledger.ledger_id, ledger.quorum, fragment, last))
    return found


class Copier:
    """Copies entries between bookies, within a rate."""

    def __init__(self, context: LedgerContext, throttle: Throttle) -> None:
        self._context = context
        self._throttle = throttle

    async def copy(
        self, stretch: Stretch, entries: Iterator[EntryId], target: BookieId, *, progress: Progress | None = None
    ) -> list[EntryId]:
        """Store the entries (ascending) on the target; answers those that are damaged everywhere, which stay away.
        EntryUnreadableError if one cannot be read now; BookieError if the target does not take it."""
        lost: list[EntryId] = []
        wanted = next(entries, None)
        while wanted is not None:
            chunk: list[Entry] = []
            try:
                found = await self._read(stretch, wanted, target)
            except EntryLostError:
                lost.append(wanted)
                wanted = next(entries, None)
                continue
            for entry in found:
                if entry.entry_id == wanted:
                    chunk.append(entry)
                    wanted = next(entries, None)
                elif wanted is None or entry.entry_id > wanted:
                    break
            await self._store(stretch.ledger_id, chunk, target, progress)
        return lost

    async def _read(self, stretch: Stretch, first: EntryId, target: BookieId) -> list[Entry]:
        """Entries from `first` on as some replica holds them; the target itself, if it is one, is asked last."""
        reads = self._context.reads
        order = reads.ranking.order(stretch.write_set(first))
        order.sort(key=lambda bookie_id: bookie_id == target)
        return (await reads.read(stretch.ledger_id, first, stretch.last, order)).entries

    async def _store(
        self, ledger_id: LedgerId, chunk: Sequence[Entry], target: BookieId, progress: Progress | None
    ) -> None:
        for part in _bounded(chunk, self._context.settings.repair.chunk_bytes):
            size = sum(len(data) for _, data in part)
            await self._throttle.take(size)
            failure = await recovery_add(
                self._context.runtime.clock,
                self._context.pool,
                target,
                ledger_id,
                part,
                timeout_s=self._context.settings.repair.add_timeout_s,
            )
            if failure is not None:
                raise failure
            if progress is not None:
                progress(len(part), size)


def _bounded(chunk: Sequence[Entry], max_bytes: int) -> Iterator[list[tuple[EntryId, Buffer]]]:
    """The entries, encoded as their writer did, in parts of so many bytes or of one entry."""
    part: list[tuple[EntryId, Buffer]] = []
    size = 0
    for entry in chunk:
        data = encode_entry(*entry)
        if part and size + len(data) > max_bytes:
            yield part
            part, size = [], 0
        part.append((entry.entry_id, data))
        size += len(data)
    if part:
        yield part
