"""Reading holding ledgers: all of one in order, or single entries in few reads."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from weir.ledger.client import LedgerClient
from weir.ledger.reader import LedgerReader
from weir.model.ids import EntryId, LedgerId
from weir.stream.holding.ledger import HeldLedger
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
