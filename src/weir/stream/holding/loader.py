"""Loads due times of a holding area into its index, recovers former holders' ledgers, and reads delayed messages.

The index has all delayed messages that are due before the horizon. When the horizon is too close, the loader scans
the ledgers of the next windows and keeps only the due time of each entry. An unreadable ledger does not delay the
others: the loader retries it, and its messages are released late.

Ledgers are read as a whole in order, or single entries in few reads.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from weir.ledger.client import LedgerClient
from weir.ledger.reader import LedgerReader
from weir.model.errors import InvariantError, LedgerNotFoundError, StreamClosedError, WeirError
from weir.model.ids import EntryId, LedgerId
from weir.stream.holding.ledger import (
    DuePosition,
    HeldLedger,
    HoldingContext,
    NearIndex,
    due_of,
    entry_of,
    moment,
    serial_of,
)
from weir.stream.holding.writer import HoldingWriter
from weir.wire.delayed_batches import peek_held
from weir.wire.entry import Entry

#: Reading unneeded entries up to this size and count is cheaper than a second request.
_GAP_BYTES = 32 * 1024
_GAP_ENTRIES = 16
#: Approximate maximum range of one read of several entries.
_SPAN_BYTES = 512 * 1024


def runs(entries: Sequence[int], mean_bytes: int) -> list[list[int]]:
    """Group sorted entries for one read each: entries of a group are close together, and its range is bounded."""
    gap = max(1, min(_GAP_ENTRIES, _GAP_BYTES // mean_bytes))
    span = max(1, _SPAN_BYTES // mean_bytes)
    found: list[list[int]] = []
    for entry in entries:
        if found and entry - found[-1][-1] <= gap and entry - found[-1][0] < span:
            found[-1].append(entry)
        else:
            found.append([entry])
    return found


class HeldReads:
    """Ledger readers of one holding area, with a limit of open ones."""

    def __init__(self, ledgers: LedgerClient, kept: int) -> None:
        self._ledgers = ledgers
        self._kept = kept
        self._readers: OrderedDict[LedgerId, LedgerReader] = OrderedDict()

    async def scan(self, ledger: HeldLedger, first: int, end: int) -> AsyncGenerator[list[Entry], None]:
        """Read the entries in [first, end) in chunks. Lost entries are skipped and marked as done. Close the
        iterator when leaving it early."""
        if first >= end:
            return
        reader = await self._reader(ledger)
        chunks = reader.stream_around(EntryId(first), EntryId(end - 1))
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
        self._give_up_lost(ledger)

    def _give_up_lost(self, ledger: HeldLedger) -> None:
        for run in self._ledgers.context.losses.of(ledger.ledger_id):
            for entry in range(run.first, min(run.last + 1, ledger.entries)):
                ledger.finish(entry, 1)

    async def fetch(self, ledger: HeldLedger, wanted: Sequence[int]) -> dict[int, bytes]:
        """Copies of the payloads of some entries, without the lost ones."""
        reader = await self._reader(ledger)
        parts = await asyncio.gather(*(_fetch(reader, run) for run in runs(sorted(wanted), ledger.mean_bytes)))
        self._give_up_lost(ledger)
        return {entry: payload for part in parts for entry, payload in part.items()}

    async def forget(self, ledger: HeldLedger) -> None:
        reader = self._readers.pop(ledger.ledger_id, None)
        if reader is not None:
            await reader.close()

    async def close(self) -> None:
        while self._readers:
            await self._readers.popitem()[1].close()

    async def _reader(self, ledger: HeldLedger) -> LedgerReader:
        reader = self._readers.get(ledger.ledger_id)
        if reader is not None and ledger.closed and not reader.closed:  # it does not know the ledger's end yet
            await self.forget(ledger)
            reader = None
        if reader is None:
            reader = await self._opened(ledger)
        else:
            self._readers.move_to_end(ledger.ledger_id)
        if ledger.entries and not reader.closed:
            reader.confirm(EntryId(ledger.entries - 1))
        return reader

    async def _opened(self, ledger: HeldLedger) -> LedgerReader:
        reader = await self._ledgers.open(ledger.ledger_id, recover=False)
        before = self._readers.pop(ledger.ledger_id, None)  # of a concurrent call
        self._readers[ledger.ledger_id] = reader
        if before is not None:
            await before.close()
        while len(self._readers) > self._kept:
            await self._readers.popitem(last=False)[1].close()
        return reader


async def _fetch(reader: LedgerReader, run: list[int]) -> dict[int, bytes]:
    wanted = dict.fromkeys(run)
    found: dict[int, bytes] = {}
    async with aclosing(reader.stream_around(EntryId(run[0]), EntryId(run[-1]))) as chunks:
        async for chunk in chunks:
            found |= {entry.entry_id: bytes(entry.payload) for entry in chunk if entry.entry_id in wanted}
    return found


log = logging.getLogger(__name__)

#: Maximum concurrent recoveries of ledgers.
_AT_A_TIME = 8


class Loader:
    """Fills the index of one holding area."""

    def __init__(self, context: HoldingContext, shelf: HoldingWriter, reads: HeldReads) -> None:
        self._name = context.name
        self._ledgers = context.ledgers
        self._clock = context.clock
        self._settings = context.settings
        self._tasks = context.tasks
        self._shelf = shelf
        self._reads = reads
        self.index = NearIndex(context.settings.index_entries)
        #: The index has all delayed messages before this position, except unreadable ones.
        self.horizon: DuePosition = 0
        #: Set when more due times should be loaded.
        self.wanted = asyncio.Event()
        #: Serial -> monotonic time of the ledger's recovery here.
        self._recovered: dict[int, float] = {}
        self._settling: dict[int, asyncio.Task[WeirError | None]] = {}

    # --- index ------------------------------------------------------------------------------------------

    def stored(self, ledger: HeldLedger, entry: int, due_ms: int) -> bool:
        """Index a stored message; return whether it is the next to release."""
        place = ledger.place(due_ms, entry)
        if place >= ledger.loaded:
            return False
        first = self.index.push(place)
        if self.index.is_over:
            self._cut()
        return first

    def lost(self, ledger: HeldLedger, place: DuePosition) -> None:
        """Reload the ledger from this position on, after the entry there left the index and could not be read. The
        ledger's positions in the index no longer count, so that a bad ledger does not delay the others."""
        ledger.loaded = min(ledger.loaded, place)

    def first(self) -> tuple[HeldLedger, DuePosition] | None:
        """The next message to release, if it is in the index. Never one after the horizon, since an earlier one
        may not be loaded yet."""
        while (place := self.index.first) is not None and place < self.horizon:
            ledger = self._shelf.with_serial(serial_of(place))
            if ledger is not None and place < ledger.loaded and ledger.is_free(entry_of(place)):
                return ledger, place
            self.index.pop()  # done meanwhile, or to be loaded again
        return None

    def _cut(self) -> None:
        """Cut the index if it is over its limit: keep the earlier half, and load the rest again when it is due."""
        cut = self.index.cut()
        if cut is None:
            return
        self.horizon = min(self.horizon, cut)
        self._shelf.ceiling = min(self._shelf.ceiling, cut)
        for ledger in self._shelf:
            ledger.loaded = min(ledger.loaded, cut)

    # --- loading ----------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether the index needs more due times."""
        return self._is_short or self.is_behind

    @property
    def is_behind(self) -> bool:
        """Whether due times that belong into the index could not be read."""
        return any(
            ledger.loaded < self.horizon and moment(ledger.window.first_ms) < self.horizon
            for ledger in self._shelf
        )

    @property
    def _is_short(self) -> bool:
        return self.horizon < moment(self._near_ms()) and self.index.is_low

    async def load(self) -> None:
        """Load the due times of the next windows into the index, if it is due."""
        if not self.is_due:
            return
        if self._is_short:
            self._shelf.ceiling = moment(self._next_end_ms())
        near = [ledger for ledger in self._shelf if moment(ledger.window.first_ms) < self._shelf.ceiling]
        for failed in await self._settle_each(near):
            log.warning("stream %s: recovery of a former holder's delayed ledger failed: %s", self._name, failed)
        for ledger in sorted(near, key=lambda ledger: (ledger.window, ledger.serial)):
            if not ledger.in_doubt:
                await self._load_ledger(ledger)
        self.horizon = self._shelf.ceiling

    def _near_ms(self) -> int:
        return self._clock.wall_ms() + int(self._settings.load_ahead_s * 1000)

    def _next_end_ms(self) -> int:
        """The latest end of the near windows: the one for a new message, and those with messages."""
        near, width = self._near_ms(), max(1, int(self._settings.window_s * 1000))
        ends = [ledger.window.end_ms for ledger in self._shelf if ledger.window.first_ms < near]
        return max([near // width * width + width, due_of(self.horizon), *ends])

    async def _load_ledger(self, ledger: HeldLedger) -> None:
        try:
            await self._read_index(ledger)
        except InvariantError:
            raise
        except WeirError as failed:
            log.warning("%s: delayed ledger %s not readable, retrying: %s", self._name, ledger.ledger_id, failed)

    async def _read_index(self, ledger: HeldLedger) -> None:
        """Load all due times between the loaded position and the ceiling into the index."""
        low = ledger.loaded
        if low >= self._shelf.ceiling:
            return
        unread = ledger.has_beyond_loaded
        # `stored` indexes later entries; the scan covers the earlier ones.
        ledger.loaded, end = self._shelf.ceiling, ledger.entries
        if not unread:
            return
        try:
            async with aclosing(self._reads.scan(ledger, 0, end)) as chunks:
                async for chunk in chunks:
                    self._index(ledger, low, chunk)
        except LedgerNotFoundError:
            log.info("%s: holding ledger %s was drained and deleted", self._name, ledger.ledger_id)
            ledger.vanish()
        except BaseException:
            ledger.loaded = min(ledger.loaded, low)
            raise

    def _index(self, ledger: HeldLedger, low: DuePosition, chunk: list[Entry]) -> None:
        index = self.index
        for entry in chunk:
            due_ms, _ = peek_held(entry.payload)
            place = ledger.place(due_ms, entry.entry_id)
            if low <= place < ledger.loaded and entry.entry_id not in ledger.done:
                index.push(place)
                if index.is_over:
                    self._cut()

    # --- recovery of ledgers ----------------------------------------------------------------------------

    async def settle_all(self) -> None:
        """Recover all ledgers in doubt; raises the first failure."""
        for failed in await self._settle_each(list(self._shelf)):
            raise failed

    async def _settle_each(self, ledgers: list[HeldLedger]) -> list[WeirError]:
        """Recover the ledgers in doubt, several at a time; return the failures."""
        doubtful = [ledger for ledger in ledgers if ledger.in_doubt]
        failures: list[WeirError] = []
        for at in range(0, len(doubtful), _AT_A_TIME):
            several = [self.settle(ledger) for ledger in doubtful[at : at + _AT_A_TIME]]
            for outcome in await asyncio.gather(*several, return_exceptions=True):
                if isinstance(outcome, InvariantError) or not isinstance(outcome, WeirError | None):
                    raise outcome
                if outcome is not None:
                    failures.append(outcome)
        return failures

    async def settle(self, ledger: HeldLedger) -> None:
        """Recover a ledger after the death of its writer, and count its entries."""
        task = self._settling.get(ledger.serial)
        if task is None:
            task = self._settling[ledger.serial] = self._tasks.spawn(self._settle(ledger), "settle")
        try:
            failure = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            failure = StreamClosedError(f"the holding area of {self._name} is closed")
        if failure is not None:
            raise failure

    async def _settle(self, ledger: HeldLedger) -> WeirError | None:
        try:
            await self._recover(ledger)
        except InvariantError:
            raise
        except WeirError as failed:
            return failed
        finally:
            del self._settling[ledger.serial]
        return None

    async def _recover(self, ledger: HeldLedger) -> None:
        try:
            metadata = await self._ledgers.recover(ledger.ledger_id)
            await self._reads.forget(ledger)
            found: dict[int, tuple[int, int, int]] = {}
            async with aclosing(self._reads.scan(ledger, ledger.entries, metadata.last_entry + 1)) as chunks:
                async for chunk in chunks:
                    for entry in chunk:
                        found[entry.entry_id] = (*peek_held(entry.payload), len(entry.payload))
        except LedgerNotFoundError:
            log.info("%s: holding ledger %s was drained and deleted", self._name, ledger.ledger_id)
            ledger.vanish()
        else:
            for number in range(ledger.entries, metadata.last_entry + 1):
                if number in found:
                    due_ms, messages, size_bytes = found[number]
                    self.stored(ledger, ledger.grow(messages, size_bytes), due_ms)
                else:  # lost
                    ledger.finish(ledger.grow(1, 0), 1)
            ledger.closed = True
            self._recovered[ledger.serial] = self._clock.monotonic()
        self._shelf.touch(ledger)

    def is_still_fenced(self, ledger: HeldLedger) -> bool:
        """Whether its former writer may still be alive. Bookies forget the fence of a deleted ledger, and would
        then acknowledge writes that no reader would ever find."""
        since = self._recovered.get(ledger.serial)
        if since is None or self._clock.monotonic() - since >= self._settings.fence_s:
            self._recovered.pop(ledger.serial, None)
            return False
        return True
