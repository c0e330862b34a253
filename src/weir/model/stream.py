"""What the metadata says of a stream: the chain of ledgers that its offsets run through."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from weir.model.check import check
from weir.model.ids import LedgerId


class LedgerFate(IntEnum):
    """What becomes of a ledger of which the lake has a copy. It goes in this direction only."""

    #: It is there, and is what is read.
    KEPT = 0
    #: Nobody reads it any more; it is being deleted, by whoever holds the stream.
    GOING = 1
    GONE = 2


@dataclass(frozen=True, slots=True)
class Segment:
    """The copy of a closed ledger: an object in one of the chain's stores."""

    #: Which of `Chain.stores` has it.
    store: int
    #: No other attempt to copy the ledger ever had this name: what a former holder of the stream still writes or
    #: deletes is not this.
    name: str
    size_bytes: int
    ledger: LedgerFate = LedgerFate.KEPT


@dataclass(frozen=True, slots=True)
class SegmentStore:
    """Where objects of one stream lie, and of no other: a folder's or a bucket's address, and how it is reached.
    No secrets."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One ledger of the chain. `end_offset` and what follows are known once it is closed."""

    ledger_id: LedgerId
    first_offset: int
    end_offset: int | None = None
    size_bytes: int = 0
    #: When its first and last batches were appended, as the broker's clock said.
    first_ms: int = 0
    last_ms: int = 0
    #: The leader epoch in which it was written.
    leader: int = 0
    #: Its copy in the lake, once that is whole.
    segment: Segment | None = None

    @property
    def closed(self) -> bool:
        return self.end_offset is not None

    @property
    def in_lake(self) -> bool:
        """Whether the copy in the lake is what is read."""
        return self.segment is not None and self.segment.ledger is not LedgerFate.KEPT


@dataclass(frozen=True, slots=True)
class Chain:
    """Dense offsets over ledgers. Changed only by compare-and-set, by whoever holds the stream."""

    spans: tuple[Span, ...] = ()
    #: Everything before this offset is gone: trimmed, truncated, or before the first message.
    start_offset: int = 0
    #: Set once the stream takes no more messages; the offset after its last.
    terminated_at: int | None = None
    #: The ledger with the stream's small state (cursors, deduplication), if it has any.
    state_ledger: LedgerId | None = None
    properties: dict[str, str] = field(default_factory=dict)
    #: Counts the holders so far: whoever takes the stream over counts on, and older holders can change nothing.
    epoch: int = 0
    #: Set once the stream is deleted: every ledger that goes with it. Nobody opens it any more; whoever finds it
    #: deletes these ledgers and then the record, so that a crash in between leaves no ledger behind.
    doomed: tuple[LedgerId, ...] | None = None
    #: The leader epoch of the present holder: that of the bundle that a topic is in. It never goes back.
    leader: int = 0
    #: Every place where there may be a segment of it: written down before the first one is written there.
    stores: tuple[SegmentStore, ...] = ()

    @property
    def end_offset(self) -> int:
        """The offset after the last closed span: where the open one, or the next one, begins."""
        if not self.spans:
            return self.start_offset
        last = self.spans[-1]
        return last.first_offset if last.end_offset is None else last.end_offset

    def span_at(self, offset: int) -> Span | None:
        """The span that holds the offset, if any does or may come to."""
        at = bisect_right(self.spans, offset, key=lambda span: span.first_offset) - 1
        if at < 0:
            return None
        span = self.spans[at]
        return span if span.end_offset is None or offset < span.end_offset else None

    def span_of(self, ledger_id: int) -> Span | None:
        """The span of a ledger, if it is part of the chain."""
        return next((span for span in reversed(self.spans) if span.ledger_id == ledger_id), None)

    def with_opened(self, ledger_id: LedgerId, now_ms: int) -> "Chain":
        """A new ledger at the end; the one before must be closed."""
        check(not self.spans or self.spans[-1].closed, "a chain has one open ledger at the most")
        check(self.terminated_at is None, "a terminated stream opens no ledger")
        opened = Span(ledger_id, self.end_offset, None, 0, now_ms, now_ms, self.leader)
        return replace(self, spans=(*self.spans, opened))

    def with_closed(self, end_offset: int, size_bytes: int, last_ms: int) -> "Chain":
        """The open last span ends here; one that stayed empty leaves the chain."""
        check(bool(self.spans) and not self.spans[-1].closed, "only an open ledger can be closed")
        last = self.spans[-1]
        check(end_offset >= last.first_offset, "a ledger ends at or after its first offset")
        if end_offset == last.first_offset:
            return replace(self, spans=self.spans[:-1])
        closed = replace(last, end_offset=end_offset, size_bytes=size_bytes, last_ms=last_ms)
        return replace(self, spans=(*self.spans[:-1], closed))

    def deleted(self, also: tuple[LedgerId, ...] = ()) -> "Chain":
        """Nothing but what is to be deleted: its own ledgers, and `also` those that only its state names."""
        state = () if self.state_ledger is None else (self.state_ledger,)
        doomed = (*(span.ledger_id for span in self.spans), *state, *also)
        return Chain(
            start_offset=self.end_offset, epoch=self.epoch, doomed=doomed, leader=self.leader, stores=self.stores
        )

    def with_store(self, store: SegmentStore) -> "Chain":
        """Segments may come to be there."""
        return self if store in self.stores else replace(self, stores=(*self.stores, store))

    def with_segment(self, ledger_id: LedgerId, segment: Segment) -> "Chain":
        """The ledger has this copy; unchanged if the ledger is trimmed."""
        known = self.span_of(ledger_id)
        if known is None:
            return self
        check(known.closed, "only a closed ledger has a copy")
        check(segment.store < len(self.stores), "a segment lies in a store that the chain names")
        before = known.segment
        check(before is None or before.ledger <= segment.ledger, "a ledger that is gone does not come back")
        spans = tuple(replace(s, segment=segment) if s.ledger_id == ledger_id else s for s in self.spans)
        return replace(self, spans=spans)

    def trimmed(self, start_offset: int) -> "Chain":
        """Without the closed ledgers that lie wholly before `start_offset`, which never moves back."""
        kept = tuple(s for s in self.spans if s.end_offset is None or s.end_offset > start_offset)
        return replace(self, spans=kept, start_offset=max(self.start_offset, start_offset))

    def leader_end(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """The largest leader epoch up to this one that wrote, and where the next one began; `end_offset`, where
        the stream ends now, of the last one. (-1, -1) of one that is yet to come; of one before all that is
        known, itself and where what is known begins."""
        if epoch > self.leader or epoch < 0:
            return -1, -1
        if epoch == self.leader:
            return epoch, end_offset
        later = next((span.first_offset for span in self.spans if span.leader > epoch), end_offset)
        wrote = [span.leader for span in self.spans if span.leader <= epoch]
        return (wrote[-1] if wrote else epoch), later

    def leader_at(self, offset: int) -> int:
        """The leader epoch in which an offset was written; the present one of what is yet to be."""
        span = self.span_at(offset)
        return self.leader if span is None else span.leader
