"""Brings the near future of a holding area into memory, and finds out where the ledgers of former holders end.

The index in memory has everything that is held before the horizon. When the horizon is no longer far enough ahead,
the ledgers whose windows come next are read through, and of each entry its moment is kept, nothing else. A ledger
that cannot be read now does not hold up the others: it is tried again, and what is found in it late is released
late.

Reading holding ledgers: all of one in order, or single entries in few reads.
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

#: Reading so much that nobody wants is cheaper than asking twice.
_GAP_BYTES = 32 * 1024
_GAP_ENTRIES = 16
#: One read of several wanted entries spans about so many bytes.
_SPAN_BYTES = 512 * 1024


def runs(entries: Sequence[int], mean_bytes: int) -> list[list[int]]:
    """Sorted entries in groups that are read at once: close together, and not too long."""
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
    """The readers of one holding area, a few of them kept open."""

    def __init__(self, ledgers: LedgerClient, kept: int) -> None:
        self._ledgers = ledgers
        self._kept = kept
        self._readers: OrderedDict[LedgerId, LedgerReader] = OrderedDict()

    async def scan(self, ledger: HeldLedger, first: int, end: int) -> AsyncGenerator[list[Entry], None]:
        """The entries in [first, end), in chunks, without those that are lost: these are done with. Close the
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
        """The payloads of some entries, copied out of what was read with them; those that are lost are missing."""
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
        if reader is not None and ledger.closed and not reader.closed:  # it has not heard where the ledger ends
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
        before = self._readers.pop(ledger.ledger_id, None)  # someone else opened one meanwhile
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

#: Ledgers recovered at a time.
_AT_A_TIME = 8


class Loader:
    """The index of one holding area and what fills it."""

    def __init__(self, context: HoldingContext, shelf: HoldingWriter, reads: HeldReads) -> None:
        self._name = context.name
        self._ledgers = context.ledgers
        self._clock = context.clock
        self._settings = context.settings
        self._tasks = context.tasks
        self._shelf = shelf
        self._reads = reads
        self.index = NearIndex(context.settings.index_entries)
        #: Everything held before this place is in the index, but for what could not be read.
        self.horizon: DuePosition = 0
        #: Set by whoever finds that more should be loaded.
        self.wanted = asyncio.Event()
        #: When ledgers were recovered here, by serial and in monotonic time.
        self._recovered: dict[int, float] = {}
        self._settling: dict[int, asyncio.Task[WeirError | None]] = {}

    # --- what comes in ----------------------------------------------------------------------------------

    def stored(self, ledger: HeldLedger, entry: int, due_ms: int) -> bool:
        """A message was stored; whether it is the next to be released."""
        place = ledger.place(due_ms, entry)
        if place >= ledger.loaded:
            return False
        first = self.index.push(place)
        if self.index.is_over:
            self._cut()
        return first

    def lost(self, ledger: HeldLedger, place: DuePosition) -> None:
        """An entry was taken out of the index and could not be read back. From there on the ledger is to be loaded
        again, and what the index has of it does not count: one bad ledger must not hold up the others."""
        ledger.loaded = min(ledger.loaded, place)

    def first(self) -> tuple[HeldLedger, DuePosition] | None:
        """The next to be released, if it is in memory. Nothing beyond the horizon, even if it is known: something
        earlier may still be on its way into memory."""
        while (place := self.index.first) is not None and place < self.horizon:
            ledger = self._shelf.with_serial(serial_of(place))
            if ledger is not None and place < ledger.loaded and ledger.is_free(entry_of(place)):
                return ledger, place
            self.index.pop()  # released or cancelled meanwhile, or to be loaded again
        return None

    def _cut(self) -> None:
        """Too much is near: keep the nearer half, the rest is read again when its time comes."""
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
        """Whether more should be read into the index."""
        return self._is_short or self.is_behind

    @property
    def is_behind(self) -> bool:
        """Whether something that should be in the index could not be read."""
        return any(
            ledger.loaded < self.horizon and moment(ledger.window.first_ms) < self.horizon
            for ledger in self._shelf
        )

    @property
    def _is_short(self) -> bool:
        return self.horizon < moment(self._near_ms()) and self.index.is_low

    async def load(self) -> None:
        """Read what comes next into the index, if it is time to."""
        if not self.is_due:
            return
        if self._is_short:
            self._shelf.ceiling = moment(self._next_end_ms())
        near = [ledger for ledger in self._shelf if moment(ledger.window.first_ms) < self._shelf.ceiling]
        for failed in await self._settle_each(near):
            log.warning("%s: what a former holder left cannot be read now: %s", self._name, failed)
        for ledger in sorted(near, key=lambda ledger: (ledger.window, ledger.serial)):
            if not ledger.in_doubt:
                await self._load_ledger(ledger)
        self.horizon = self._shelf.ceiling

    def _near_ms(self) -> int:
        return self._clock.wall_ms() + int(self._settings.load_ahead_s * 1000)

    def _next_end_ms(self) -> int:
        """Where the windows end that are near: the one that would be used for a new message, and those that
        have something."""
        near, width = self._near_ms(), max(1, int(self._settings.window_s * 1000))
        ends = [ledger.window.end_ms for ledger in self._shelf if ledger.window.first_ms < near]
        return max([near // width * width + width, due_of(self.horizon), *ends])

    async def _load_ledger(self, ledger: HeldLedger) -> None:
        try:
            await self._read_index(ledger)
        except InvariantError:
            raise
        except WeirError as failed:
            log.warning("%s: holding ledger %s cannot be read now: %s", self._name, ledger.ledger_id, failed)

    async def _read_index(self, ledger: HeldLedger) -> None:
        """Bring everything between what is loaded and the ceiling into the index."""
        low = ledger.loaded
        if low >= self._shelf.ceiling:
            return
        unread = ledger.has_beyond_loaded
        # From here on what is stored goes into the index by itself; what is stored already is read.
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

    # --- the ends of ledgers ----------------------------------------------------------------------------

    async def settle_all(self) -> None:
        """Know every ledger's end; raises if one cannot be known now."""
        for failed in await self._settle_each(list(self._shelf)):
            raise failed

    async def _settle_each(self, ledgers: list[HeldLedger]) -> list[WeirError]:
        """Settle those in doubt, several at a time; answers what went wrong."""
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
        """Recover a ledger whose writer is gone, and count what it turned out to hold."""
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
        """Whether its former writer may still be about. Bookies forget the fence of a ledger that is deleted, and
        then they would acknowledge what nobody would ever read."""
        since = self._recovered.get(ledger.serial)
        if since is None or self._clock.monotonic() - since >= self._settings.fence_s:
            self._recovered.pop(ledger.serial, None)
            return False
        return True
