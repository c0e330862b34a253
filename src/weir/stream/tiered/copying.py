"""Copying a closed ledger into a store, entry by entry as it was written, and making sure of the copy."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import NamedTuple

from weir.ledger.client import LedgerClient
from weir.ledger.reader import LedgerReader
from weir.model.errors import SegmentDamagedError
from weir.model.ids import Buffer
from weir.model.stream import Segment, SegmentStore, Span
from weir.stream.tiered.reading import SegmentReads
from weir.wire.segment import SegmentEncoder


class Copied(NamedTuple):
    """Where a copy goes: which of the chain's stores that is, and under which name."""

    number: int
    place: SegmentStore
    name: str


async def copy_ledger(ledgers: LedgerClient, reads: SegmentReads, span: Span, to: Copied) -> Segment:
    """The copy, durable, read back and compared with its checksums. EntryLostError if the ledger is not whole: it
    stays, and so does what can be read of it. What goes wrong leaves no object."""
    store = reads.store(to.place)
    reader = await ledgers.open(span.ledger_id, recover=False)
    try:
        if not reader.closed:  # who wrote it has not come to say so itself
            await reader.close()
            reader = await ledgers.open(span.ledger_id, recover=True)
        encoder = SegmentEncoder(span.ledger_id, span.first_offset)
        size = await store.put(to.name, _pieces(reader, encoder))
    finally:
        await reader.close()
    segment = Segment(to.number, to.name, size)
    try:
        if size != encoder.size_bytes or encoder.end_offset != span.end_offset:
            what = f"offset {encoder.end_offset} of {span.end_offset}, {size} bytes of {encoder.size_bytes}"
            raise SegmentDamagedError(f"{to.place.url}/{to.name} ends too early: {what}")
        await reads.check(to.place, span, segment)
    except BaseException:
        await store.delete(to.name)
        raise
    return segment


async def _pieces(reader: LedgerReader, encoder: SegmentEncoder) -> AsyncIterator[Buffer]:
    for piece in encoder.begin():
        yield piece
    async with aclosing(reader.stream()) as chunks:
        async for chunk in chunks:
            for entry in chunk:
                for piece in encoder.add(entry.payload):
                    yield piece
    for piece in encoder.end():
        yield piece
