"""In-memory batches of a stream (transient messages): readable at their offsets, but not written to the log.

The log has gaps at their offsets. A gap is a batch without messages for consumers. The appender writes it as soon
as a later batch is written, and readers get a gap for batches that are no longer in memory. So offsets stay dense
for all readers. Batches leave memory when they are acknowledged.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from pyroaring import BitMap64

from weir.model.batch import Batch, BatchFlags, BatchFormat, Run
from weir.runtime.budgets import ByteShare
from weir.stream.cursor import Cursor
from weir.stream.tail import MOST_BATCHES
from weir.wire.batch import MAX_COUNT

#: Approximate memory of a batch besides its payload.
OVERHEAD_BYTES = 300
#: Minimum number of dropped slots at the front of the list before the list is cut.
_CUT_AT = 256
#: Minimum number of batches before batches behind an unacknowledged one are scanned for acknowledged ones.
_LOOK_AT = 256


class MemoryBatches:
    """Batches in the order of their offsets, possibly with missing offsets between them. `share`: their memory
    budget; `forgotten`: called with each dropped batch."""

    def __init__(self, share: ByteShare, forgotten: Callable[[Batch], None] | None = None) -> None:
        self._share = share
        self._forgotten = forgotten
        self._bases: list[int] = []
        self._batches: list[Batch | None] = []
        self._head = 0
        self._live = 0
        self._look_from = _LOOK_AT

    def __len__(self) -> int:
        """Number of batches in memory."""
        return self._live

    def __iter__(self) -> Iterator[Batch]:
        return (batch for batch in self._batches[self._head :] if batch is not None)

    @property
    def first(self) -> int | None:
        """The offset of the oldest batch."""
        return self._bases[self._head] if self._head < len(self._bases) else None

    def append(self, batch: Batch) -> None:
        """Add a batch after all others."""
        self._bases.append(batch.base_offset)
        self._batches.append(batch)
        self._live += 1
        self._share.acquire(len(batch.payload) + OVERHEAD_BYTES)

    def read(self, offset: int, max_bytes: int) -> list[Batch]:
        """Read batches, starting with the one that contains the offset or else the first one after it."""
        at = max(self._head, bisect_right(self._bases, offset, lo=self._head) - 1)
        found: list[Batch] = []
        size = 0
        for place in range(at, len(self._batches)):
            batch = self._batches[place]
            if batch is None or batch.end_offset <= offset:
                continue
            if (found and size + len(batch) > max_bytes) or len(found) == MOST_BATCHES:
                break
            found.append(batch)
            size += len(batch)
        return found

    def older_than(self, moment_ms: int, offset: int) -> int:
        """The first offset from `offset` on with an append time at or after the moment. Append times ascend."""
        at = bisect_left(self._bases, offset, lo=self._head)
        while at < len(self._batches):
            batch = self._batches[at]
            if batch is not None:
                if batch.append_ms >= moment_ms:
                    break
                offset = batch.end_offset
            at += 1
        return offset

    def forget(self, cursor: Cursor) -> None:
        """Drop acknowledged batches: at the front at once, behind an unacknowledged one only from time to time."""
        acknowledged = cursor.mark_delete + 1
        batches = self._batches
        while self._head < len(batches):
            batch = batches[self._head]
            if batch is not None:
                if batch.end_offset > acknowledged and not cursor.all_acked(batch.base_offset, batch.end_offset):
                    break
                self._drop(self._head, batch)
            self._head += 1
        if self._head >= _CUT_AT and self._head * 2 >= len(batches):
            del self._bases[: self._head], batches[: self._head]
            self._head = 0
        if cursor.holes and self._live >= self._look_from:
            self._look_through(cursor)

    def _look_through(self, cursor: Cursor) -> None:
        for place in range(self._head, len(self._batches)):
            batch = self._batches[place]
            if batch is not None and cursor.all_acked(batch.base_offset, batch.end_offset):
                self._drop(place, batch)
        kept = [(base, batch) for base, batch in zip(self._bases, self._batches, strict=True) if batch is not None]
        self._bases = [base for base, _ in kept]
        self._batches = [batch for _, batch in kept]
        self._head = 0
        self._look_from = max(_LOOK_AT, 2 * self._live)

    def _drop(self, place: int, batch: Batch) -> None:
        self._batches[place] = None
        self._live -= 1
        self._share.release(len(batch.payload) + OVERHEAD_BYTES)
        if self._forgotten is not None:
            self._forgotten(batch)

    def close(self) -> None:
        """Drop all batches."""
        self._bases, self._batches, self._head, self._live = [], [], 0, 0
        self._share.close()


def without(batches: Sequence[Batch], unwritten: Sequence[Batch]) -> Sequence[Batch]:
    """Replace the unwritten ones of consecutive batches by gaps."""
    if not unwritten:
        return batches
    if len(unwritten) == len(batches):
        return gaps(batches[0].base_offset, batches[-1].end_offset, batches[-1].append_ms)
    passing = {batch.base_offset: None for batch in unwritten}
    return [
        gaps(batch.base_offset, batch.end_offset, batch.append_ms)[0] if batch.base_offset in passing else batch
        for batch in batches
    ]


def gaps(first: int, end: int, append_ms: int) -> list[Batch]:
    """The minimum number of gap batches for the offsets in [first, end)."""
    return [
        Batch(base, min(MAX_COUNT, end - base), BatchFormat.MESSAGES, append_ms, b"", BatchFlags.CONTROL)
        for base in range(first, end, MAX_COUNT)
    ]


def is_gap(batch: Batch) -> bool:
    """Whether the batch is a gap: its messages were never written, or are lost."""
    return bool(batch.flags & BatchFlags.CONTROL) and batch.stamp is None and not len(batch.payload)


class Unwritten:
    """The in-memory batches of one stream. `forgotten`: called with offsets [first, end) of dropped batches."""

    def __init__(self, share: ByteShare, forgotten: Callable[[int, int], None]) -> None:
        self._batches = MemoryBatches(share, self._gone)
        self._forgotten = forgotten
        #: Offsets of all batches in memory.
        self.offsets = BitMap64()
        #: Offsets of batches that a holder saved for the next one: their acknowledgements must be durable, too.
        self._carried = BitMap64()

    def __bool__(self) -> bool:
        return bool(len(self._batches))

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batches: Sequence[Batch], *, carried: bool = False) -> None:
        """Add batches after all others. `carried`: a former holder saved them."""
        for batch in batches:
            self._batches.append(batch)
            self.offsets.add_range(batch.base_offset, batch.end_offset)
            if carried:
                self._carried.add_range(batch.base_offset, batch.end_offset)

    # --- reading ----------------------------------------------------------------------------------------

    def between(self, offset: int, end: int, max_bytes: int, append_ms: int) -> list[Batch]:
        """Batches of [offset, end), with gaps for missing offsets: at least one batch, at most `max_bytes`."""
        found: list[Batch] = []
        size = 0
        for batch in self._batches.read(offset, max_bytes):
            if batch.base_offset >= end or (found and size + len(batch) > max_bytes):
                break
            if batch.base_offset > offset:
                found += gaps(offset, batch.base_offset, batch.append_ms)
            found.append(batch)
            size += len(batch)
            offset = batch.end_offset
        following = self._next_behind(offset, end)
        if offset < following and len(found) < MOST_BATCHES:
            found += gaps(offset, following, append_ms)
        return found

    def _next_behind(self, offset: int, end: int) -> int:
        """Offset of the next batch in memory, or `end`."""
        rank = self.offsets.rank(offset - 1) if offset else 0
        return min(end, int(self.offsets[rank])) if rank < len(self.offsets) else end

    def merged(self, batches: list[Batch], offset: int, max_bytes: int) -> list[Batch]:
        """Fill the gaps in batches from the log, from `offset` on, with the batches in memory."""
        if not self.offsets.range_cardinality(batches[0].base_offset, batches[-1].end_offset):
            return batches
        found: list[Batch] = []
        size = 0
        for batch in batches:
            if not is_gap(batch):
                some, end = [batch], batch.end_offset
            else:
                first = max(offset, batch.base_offset)
                some, end = self.between(first, batch.end_offset, max_bytes, batch.append_ms), batch.end_offset
            found += some
            size += sum(map(len, some))
            if some[-1].end_offset < end or size >= max_bytes or len(found) >= MOST_BATCHES:
                break  # the next read continues there
        return found

    def older_than(self, moment_ms: int, offset: int) -> int:
        """The first offset from `offset` on with an append time at or after the moment."""
        return self._batches.older_than(moment_ms, offset)

    # --- acknowledging ----------------------------------------------------------------------------------

    def only_here(self, runs: Sequence[Run]) -> bool:
        """Whether all of these offsets exist in this holder's memory only, without a saved copy."""
        return all(
            self.offsets.contains_range(first, end) and not self._carried.range_cardinality(first, end)
            for first, end in runs
        )

    def forget(self, cursor: Cursor) -> None:
        """Drop acknowledged batches."""
        self._batches.forget(cursor)

    @property
    def has_carried(self) -> bool:
        """Whether any saved batch is still unacknowledged."""
        return bool(self._carried)

    def carry(self) -> list[Batch]:
        """Return all batches for saving. From now on their acknowledgements must be durable, too."""
        self._carried |= self.offsets
        return list(self._batches)

    @property
    def all_carried(self) -> bool:
        return len(self._carried) == len(self.offsets)

    def _gone(self, batch: Batch) -> None:
        self.offsets.remove_range(batch.base_offset, batch.end_offset)
        self._carried.remove_range(batch.base_offset, batch.end_offset)
        self._forgotten(batch.base_offset, batch.end_offset)

    def close(self) -> None:
        self._batches.close()
        self.offsets.clear()
        self._carried.clear()
