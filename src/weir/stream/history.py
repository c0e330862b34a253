"""Reading a stream from its ledgers: what the tail no longer holds."""

from collections import OrderedDict
from collections.abc import Callable

from weir.ledger.client import LedgerClient
from weir.ledger.reader import LedgerReader
from weir.model.batch import Batch
from weir.model.errors import EntryLostError
from weir.model.ids import EntryId, LedgerId
from weir.model.stream import Chain, Span
from weir.stream.gaps import End, Gaps
from weir.stream.positions import Places, find_entry, find_time
from weir.wire.batch import decode_batch


class History:
    """The readers of one stream's ledgers, and what reading them taught about offsets. Where entries are lost, it
    answers stand-ins for them (`weir.stream.gaps`).

    `written` answers how far the open ledger is acknowledged, which its writer knows best.
    """

    def __init__(
        self, ledgers: LedgerClient, kept_readers: int, written: Callable[[LedgerId], End | None]
    ) -> None:
        self._ledgers = ledgers
        self._kept = kept_readers
        self._written = written
        self._gaps = Gaps(ledgers.context.losses)
        self._readers: OrderedDict[LedgerId, LedgerReader] = OrderedDict()
        self._places: dict[LedgerId, Places] = {}

    async def read(self, span: Span, offset: int, max_bytes: int) -> list[Batch]:
        """Batches of one ledger from the one that holds `offset` on."""
        reader = await self._reader(span)
        while (gap := self._gaps.at_offset(span.ledger_id, offset)) is None:
            end = self._end(span, reader)
            try:
                return await self._read(span, reader, end, offset, max_bytes)
            except EntryLostError as lost:
                gap = await self._gaps.find(reader, span, lost, end)
                if gap is not None and not gap.base_offset <= offset < gap.end_offset:
                    raise
        self._places_of(span).learn(gap.end_offset, gap.last + 1)
        return gap.batches(offset)

    async def _read(self, span: Span, reader: LedgerReader, end: End, offset: int, max_bytes: int) -> list[Batch]:
        places = self._places_of(span)
        first = await find_entry(places, offset, end.entries, lambda entry: self._probe(span, reader, end, entry))
        found: list[Batch] = []
        size = 0
        for entry in await reader.read_some(EntryId(first), EntryId(end.entries - 1), max_bytes):
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
        end = self._end(span, reader)
        entry = await find_time(moment_ms, end.entries, lambda entry: self._probe(span, reader, end, entry))
        return None if entry >= end.entries else (await self._probe(span, reader, end, entry)).base_offset

    async def forget(self, chain: Chain) -> None:
        """Close the readers of ledgers that left the chain, or whose copy is read."""
        kept = {span.ledger_id: None for span in chain.spans if not span.in_lake}
        for ledger_id in [known for known in self._readers if known not in kept]:
            await self._readers.pop(ledger_id).close()
        self._places = {ledger_id: p for ledger_id, p in self._places.items() if ledger_id in kept}
        self._gaps.keep(kept)

    async def close(self) -> None:
        while self._readers:
            await self._readers.popitem()[1].close()

    async def _reader(self, span: Span) -> LedgerReader:
        """Whoever still reads by one that is closed here reads on: it only follows its ledger no longer."""
        ledger_id = span.ledger_id
        while True:
            known = self._readers.get(ledger_id)
            if known is not None and (known.closed or not span.closed):
                self._readers.move_to_end(ledger_id)
                return known
            if known is not None:  # it has not heard yet where the ledger ends
                await self._readers.pop(ledger_id).close()
            reader = await self._ledgers.open(ledger_id, recover=False)
            if span.closed and not reader.closed:  # who wrote it has not come to say so itself
                await reader.close()
                reader = await self._ledgers.open(ledger_id, recover=True)
            if ledger_id not in self._readers:
                break
            await reader.close()  # somebody else was faster
        self._readers[ledger_id] = reader
        for old in [self._readers.popitem(last=False)[1] for _ in range(len(self._readers) - self._kept)]:
            await old.close()
        return reader

    def _end(self, span: Span, reader: LedgerReader) -> End:
        written = self._written(span.ledger_id)
        if written is None:
            return End(reader.metadata.last_entry + 1, span.end_offset)
        reader.confirm(EntryId(written.entries - 1))
        return written

    def _places_of(self, span: Span) -> Places:
        return self._places.setdefault(span.ledger_id, Places(span.first_offset))

    async def _probe(self, span: Span, reader: LedgerReader, end: End, entry: int) -> Batch:
        while (gap := self._gaps.at_entry(span.ledger_id, entry)) is None:
            try:
                return decode_batch((await reader.read(EntryId(entry), EntryId(entry)))[0].payload)
            except EntryLostError as lost:
                await self._gaps.find(reader, span, lost, end)
        return gap.batches(gap.base_offset)[0]
