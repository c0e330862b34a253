"""Reading one span of a chain: from its ledger, or from the ledger's copy in the lake once that is what counts."""

from weir.model.batch import Batch
from weir.model.stream import Chain, Segment, SegmentStore, Span
from weir.stream.history import History
from weir.stream.tiered.reading import SegmentReads


class SpanReads:
    def __init__(self, history: History, segments: SegmentReads) -> None:
        self._history = history
        self._segments = segments

    async def read(self, chain: Chain, span: Span, offset: int, max_bytes: int) -> list[Batch]:
        """Batches of the span from the one that holds `offset` on."""
        if span.segment is not None and span.in_lake:
            return await self._segments.read(_place(chain, span.segment), span, offset, max_bytes)
        return await self._history.read(span, offset, max_bytes)

    async def offset_at(self, chain: Chain, span: Span, moment_ms: int) -> int | None:
        """The offset of the first batch of the span that was appended at or after the moment."""
        if span.segment is not None and span.in_lake:
            return await self._segments.offset_at(_place(chain, span.segment), span, moment_ms)
        return await self._history.offset_at(span, moment_ms)


def _place(chain: Chain, segment: Segment) -> SegmentStore:
    return chain.stores[segment.store]
