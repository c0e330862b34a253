"""Where a ledger that was left open ends, and the change of the chain that says so."""

from weir.model.batch import Batch
from weir.model.errors import LedgerNotFoundError, StreamFencedError
from weir.model.stream import Chain, Span
from weir.stream.context import StreamContext
from weir.stream.gaps import last_whole, stand_in
from weir.wire.batch import MAX_COUNT


async def recover(context: StreamContext, name: str, span: Span) -> tuple[Batch | None, int]:
    """Fence the ledger and find its end: its last batch and its length. Where the last entries are lost nobody
    knows how many messages they had: the end is as far as it can be, so that no offset is given out twice."""
    try:
        reader = await context.ledgers.open(span.ledger_id, recover=True)
    except LedgerNotFoundError as gone:
        raise StreamFencedError(f"stream {name} was taken over by another broker") from gone
    try:
        end = reader.metadata.last_entry
        if end < 0:
            return None, 0
        entry, last = await last_whole(reader, end)
        if entry < end:
            base = span.first_offset if last is None else last.end_offset
            append_ms = span.first_ms if last is None else last.append_ms
            last = stand_in(base, (end - entry) * MAX_COUNT, append_ms)
        return last, reader.metadata.length
    finally:
        await reader.close()


def closed(chain: Chain, span: Span, end: int, length: int, last_ms: int) -> Chain:
    """The transform of a close: only if the open last span is still the one that was meant."""
    if not chain.spans or chain.spans[-1].ledger_id != span.ledger_id or chain.spans[-1].closed:
        raise StreamFencedError(f"ledger {span.ledger_id} is no longer the open end of its stream")
    return chain.with_closed(end, length, last_ms)
