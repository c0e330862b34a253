"""Batches of a stream that are in memory and not in its log, which has gaps in their places.

They have offsets like all others, and readers find them where they are. A gap is a batch that carries nothing for
consumers: the log has one written for what was not, as soon as something behind it is written, and readers get one
for whatever is not in memory any more. So offsets stay dense, whoever reads.

Batches that are in memory and nowhere else, by their offsets: forgotten as soon as they are acknowledged.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from pyroaring import BitMap64

from weir.model.batch import Batch, BatchFlags, BatchFormat, Run
from weir.runtime.budgets import ByteShare
from weir.stream.cursor import Cursor
from weir.stream.tail import MOST_BATCHES
from weir.wire.batch import MAX_COUNT

#: What a batch costs besides its payload, roughly.
OVERHEAD_BYTES = 300
#: Forgotten places at the front of the list before the list is cut.
_CUT_AT = 256
#: Batches behind one that is not acknowledged are looked through when so many more are there than last time.
_LOOK_AT = 256


class MemoryBatches:
    """In the order of their offsets, perhaps with others between them. `share`: what they take of memory;
    `forgotten` is called with each that goes."""

    def __init__(self, share: ByteShare, forgotten: Callable[[Batch], None] | None = None) -> None:
        self._share = share
        self._forgotten = forgotten
        self._bases: list[int] = []
        self._batches: list[Batch | None] = []
        self._head = 0
        self._live = 0
        self._look_from = _LOOK_AT

    def __len__(self) -> int:
        """Batches that are kept."""
        return self._live

    def __iter__(self) -> Iterator[Batch]:
        return (batch for batch in self._batches[self._head :] if batch is not None)

    @property
    def first(self) -> int | None:
        """The offset of the oldest."""
        return self._bases[self._head] if self._head < len(self._bases) else None

    def append(self, batch: Batch) -> None:
        """One behind all that are here."""
        self._bases.append(batch.base_offset)
        self._batches.append(batch)
        self._live += 1
        self._share.acquire(len(batch.payload) + OVERHEAD_BYTES)

    def read(self, offset: int, max_bytes: int) -> list[Batch]:
        """From the one that holds the offset, or the first behind it, on."""
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
        """The offset behind those, from this one on, that were appended before the moment; times ascend."""
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
        """What is acknowledged goes: at the front at once, behind one that stays once there is much of it."""
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
        """All of them are gone."""
        self._bases, self._batches, self._head, self._live = [], [], 0, 0
        self._share.close()


def without(batches: Sequence[Batch], unwritten: Sequence[Batch]) -> Sequence[Batch]:
    """Consecutive batches, with gaps in the places of those that are not written."""
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
    """As few batches as may be for the offsets in [first, end)."""
    return [
        Batch(base, min(MAX_COUNT, end - base), BatchFormat.MESSAGES, append_ms, b"", BatchFlags.CONTROL)
        for base in range(first, end, MAX_COUNT)
    ]


def is_gap(batch: Batch) -> bool:
    """Whether these offsets were never written, or are lost."""
    return bool(batch.flags & BatchFlags.CONTROL) and batch.stamp is None and not len(batch.payload)


class Unwritten:
    """Of one stream. `forgotten` is called with offsets, [first, end), that nobody will see any more."""

    def __init__(self, share: ByteShare, forgotten: Callable[[int, int], None]) -> None:
        self._batches = MemoryBatches(share, self._gone)
        self._forgotten = forgotten
        #: Of all batches here.
        self.offsets = BitMap64()
        #: Of those that a former holder of the stream wrote down: acknowledging them has to be.
        self._carried = BitMap64()

    def __bool__(self) -> bool:
        return bool(len(self._batches))

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batches: Sequence[Batch], *, carried: bool = False) -> None:
        """They are behind all that are here."""
        for batch in batches:
            self._batches.append(batch)
            self.offsets.add_range(batch.base_offset, batch.end_offset)
            if carried:
                self._carried.add_range(batch.base_offset, batch.end_offset)

    # --- reading ----------------------------------------------------------------------------------------

    def between(self, offset: int, end: int, max_bytes: int, append_ms: int) -> list[Batch]:
        """What is here of [offset, end), and gaps for the rest: at least one batch, no more than fit."""
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
        """Where the next batch begins, or the end."""
        rank = self.offsets.rank(offset - 1) if offset else 0
        return min(end, int(self.offsets[rank])) if rank < len(self.offsets) else end

    def merged(self, batches: list[Batch], offset: int, max_bytes: int) -> list[Batch]:
        """What was read from the log, from the batch that holds the offset on, with what is here in its gaps."""
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
                break  # whoever wants more reads on from there
        return found

    def older_than(self, moment_ms: int, offset: int) -> int:
        """The offset behind those, from this one on, that were appended before the moment."""
        return self._batches.older_than(moment_ms, offset)

    # --- acknowledging ----------------------------------------------------------------------------------

    def only_here(self, runs: Sequence[Run]) -> bool:
        """Whether all of these would be gone with this holder of the stream, acknowledged or not."""
        return all(
            self.offsets.contains_range(first, end) and not self._carried.range_cardinality(first, end)
            for first, end in runs
        )

    def forget(self, cursor: Cursor) -> None:
        """What is acknowledged goes."""
        self._batches.forget(cursor)

    @property
    def has_carried(self) -> bool:
        """Whether anything that was written down is still wanted."""
        return bool(self._carried)

    def carry(self) -> list[Batch]:
        """All of them, which are being written down: from now on acknowledging them has to be, too."""
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
