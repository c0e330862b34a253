"""Reading a stream from its ledgers: what the tail no longer holds."""

from collections import OrderedDict
from collections.abc import Callable

from weir.ledger.client import LedgerClient
from weir.ledger.reader import LedgerReader
from weir.model.batch import Batch
from weir.model.ids import EntryId, LedgerId
from weir.model.stream import Chain, Span
from weir.stream.positions import Places, find_entry, find_time
from weir.wire.batch import decode_batch


class History:
    """The readers of one stream's ledgers, and what reading them taught about offsets.

    `written_entries` answers how many entries of the open ledger are acknowledged, which its writer knows best.
    """

    def __init__(
        self, ledgers: LedgerClient, kept_readers: int, written_entries: Callable[[LedgerId], int | None]
    ) -> None:
        self._ledgers = ledgers
        self._kept = kept_readers
        self._written_entries = written_entries
        self._readers: OrderedDict[LedgerId, LedgerReader] = OrderedDict()
        self._places: dict[LedgerId, Places] = {}

    async def read(self, span: Span, offset: int, max_bytes: int) -> list[Batch]:
        """Batches of one ledger from the one that holds `offset` on."""
        reader = await self._reader(span)
        end_entry = self._end_entry(span, reader)
        places = self._places_of(span)
        first = await find_entry(places, offset, end_entry, lambda entry: self._probe(reader, entry))
        found: list[Batch] = []
        size = 0
        for entry in await reader.read_some(EntryId(first), EntryId(end_entry - 1), max_bytes):
            batch = decode_batch(entry.payload)
            if found and size + len(batch) > max_bytes:
                break
            found.append(batch)
            size += len(batch)
            places.learn(batch.end_offset, entry.entry_id + 1)
        return found

    async def offset_at(self, span: Span, moment_ms: int) -> int | None:
        """The offset of the first batch of the ledger that was appended at or after the moment."""
        reader = await self._reader(span)
        end_entry = self._end_entry(span, reader)
        entry = await find_time(moment_ms, end_entry, lambda entry: self._probe(reader, entry))
        return None if entry >= end_entry else (await self._probe(reader, entry)).base_offset

    async def last_batch(self, span: Span) -> Batch | None:
        """The last batch of a closed ledger, if it has any."""
        reader = await self._reader(span)
        end_entry = self._end_entry(span, reader)
        return await self._probe(reader, end_entry - 1) if end_entry else None

    async def forget(self, chain: Chain) -> None:
        """Close the readers of ledgers that left the chain."""
        kept = {span.ledger_id: None for span in chain.spans}
        for ledger_id in [known for known in self._readers if known not in kept]:
            await self._readers.pop(ledger_id).close()
        self._places = {ledger_id: p for ledger_id, p in self._places.items() if ledger_id in kept}

    async def close(self) -> None:
        while self._readers:
            await self._readers.popitem()[1].close()

    async def _reader(self, span: Span) -> LedgerReader:
        reader = self._readers.get(span.ledger_id)
        if reader is not None and span.closed and not reader.closed:  # it has not heard yet where the ledger ends
            await self._readers.pop(span.ledger_id).close()
            reader = None
        if reader is None:
            reader = await self._ledgers.open(span.ledger_id, recover=False)
            self._readers[span.ledger_id] = reader
            while len(self._readers) > self._kept:
                await self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(span.ledger_id)
        return reader

    def _end_entry(self, span: Span, reader: LedgerReader) -> int:
        written = self._written_entries(span.ledger_id)
        if written is None:
            return reader.metadata.last_entry + 1
        reader.confirm(EntryId(written - 1))
        return written

    def _places_of(self, span: Span) -> Places:
        return self._places.setdefault(span.ledger_id, Places(span.first_offset))

    async def _probe(self, reader: LedgerReader, entry: int) -> Batch:
        found = await reader.read(EntryId(entry), EntryId(entry))
        return decode_batch(found[0].payload)
