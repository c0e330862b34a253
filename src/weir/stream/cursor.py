"""A cursor: the acknowledged offsets of one subscription.

`(mark_delete, bitmap)`: all offsets up to and including `mark_delete` are acknowledged, and so are the offsets in
the bitmap, all of them above it. A hole costs at most a bit (roaring bitmap), so a hundred thousand of them are
small. A cursor is a plain value with plain functions; the state log persists it.
"""

from pyroaring import BitMap64

from weir.model.batch import bits_at
from weir.model.check import check
from weir.wire.snapshots.subscriptions import decode_cursor, encode_cursor

#: `mark_delete` of a cursor without acknowledged offsets: streams start at offset 0.
BEFORE_FIRST = -1


class Cursor:
    """Acknowledged offsets of one subscription."""

    __slots__ = ("_above", "_mark_delete", "version")

    def __init__(self, mark_delete: int = BEFORE_FIRST, above: BitMap64 | None = None) -> None:
        self._mark_delete = mark_delete
        self._above = BitMap64() if above is None else above
        #: Number of changes; its owner compares it to decide whether to persist the cursor.
        self.version = 0

    @property
    def mark_delete(self) -> int:
        """The highest offset at or below which everything is acknowledged."""
        return self._mark_delete

    @property
    def holes(self) -> int:
        """Number of individually acknowledged offsets above the mark."""
        return len(self._above)

    def ack(self, first: int, end: int) -> bool:
        """Acknowledge the offsets in [first, end); return whether any of them was unacknowledged. It does not
        count them, since the bitmap would scan all neighbors for the count at each call."""
        if self.all_acked(first, end):
            return False
        self.version += 1
        self._above.add_range(max(first, self._mark_delete + 1), end)
        self._absorb()
        return True

    def ack_up_to(self, offset: int) -> None:
        """Acknowledge everything up to and including `offset`; never moves the cursor back."""
        if offset <= self._mark_delete:
            return
        self.version += 1
        self._mark_delete = offset
        self._above.remove_range(0, offset + 1)
        self._absorb()

    def reset(self, next_offset: int) -> None:
        """Drop all acknowledgements and continue at `next_offset`."""
        check(next_offset > BEFORE_FIRST, "the next offset of a cursor is not negative")
        self.version += 1
        self._mark_delete = next_offset - 1
        self._above = BitMap64()

    def cut(self, end_offset: int) -> bool:
        """Drop acknowledgements of offsets at or after the end of the log; return whether any existed."""
        if self._mark_delete < end_offset and (not self._above or self._above.max() < end_offset):
            return False
        self.version += 1
        if self._mark_delete >= end_offset:
            self._mark_delete, self._above = end_offset - 1, BitMap64()
        else:
            self._above.remove_range(end_offset, self._above.max() + 1)
        return True

    def unack(self, offset: int) -> bool:
        """Revoke the acknowledgement of one offset; return whether it was acknowledged. All other acknowledgements
        stay."""
        if offset in self._above:
            self.version += 1
            self._above.remove(offset)
            return True
        if offset > self._mark_delete:
            return False
        self.version += 1
        self._above.add_range(offset + 1, self._mark_delete + 1)
        self._mark_delete = offset - 1
        return True

    def is_acked(self, offset: int) -> bool:
        return offset <= self._mark_delete or offset in self._above

    def all_acked(self, first: int, end: int) -> bool:
        """Whether every offset in [first, end) is acknowledged."""
        first = max(first, self._mark_delete + 1)
        return first >= end or self._above.contains_range(first, end)

    def none_acked(self, first: int, end: int) -> bool:
        """Whether no offset in [first, end) is acknowledged."""
        if first <= self._mark_delete:
            return first >= end
        above = self._above
        return not above or above.max() < first or not above.range_cardinality(first, end)

    def unacked_mask(self, first: int, count: int) -> int:
        """Bit mask of `count` offsets from `first` on, with a bit set for each unacknowledged offset."""
        full = (1 << count) - 1
        if first > self._mark_delete and not self._above.range_cardinality(first, first + count):
            return full
        below = max(0, min(count, self._mark_delete + 1 - first))
        acked = self._above & _range(first + below, first + count)
        return full >> below << below & ~bits_at((offset - first for offset in acked), count)

    def unacked_of(self, offsets: BitMap64) -> BitMap64:
        """The unacknowledged ones of these offsets."""
        found = offsets - self._above
        found.remove_range(0, self._mark_delete + 1)
        return found

    def next_unacked(self, offset: int) -> int:
        """The first unacknowledged offset at or after this one."""
        offset = max(offset, self._mark_delete + 1)
        while offset in self._above:
            offset = self._end_of_run(offset)
        return offset

    def backlog(self, end_offset: int) -> int:
        """Number of unacknowledged offsets before `end_offset`."""
        ahead = max(0, end_offset - self._mark_delete - 1)
        return ahead - self._above.range_cardinality(0, end_offset) if ahead else 0

    def backlog_between(self, first: int, end: int, hidden: BitMap64) -> int:
        """Number of offsets in [first, end), above the mark, that are neither acknowledged nor hidden."""
        if first >= end:
            return 0
        acked, unseen = self._above.range_cardinality(first, end), hidden.range_cardinality(first, end)
        both = (self._above & hidden).range_cardinality(first, end) if acked and unseen else 0
        return end - first - acked - unseen + both

    def ack_all(self, offsets: BitMap64, end: int) -> None:
        """Acknowledge those of the offsets that are before `end`."""
        first = self._mark_delete + 1
        if first < end and offsets.range_cardinality(first, end):
            self.version += 1
            self._above |= offsets & _range(first, end)
            self._absorb()

    def nth_unacked(self, number: int) -> int:
        """The `number`th unacknowledged offset (from 1), as if the stream were endless."""
        low, high = self._mark_delete + 1, self._mark_delete + number + len(self._above)
        while low < high:
            middle = (low + high) // 2
            if self.backlog(middle + 1) >= number:
                high = middle
            else:
                low = middle + 1
        return low

    def _absorb(self) -> None:
        """Move the mark over the acknowledged offsets right above it."""
        following = self._mark_delete + 1
        if following in self._above:
            end = self._end_of_run(following)
            check(end > following, "only a reset moves the mark-delete position back")
            self._above.remove_range(following, end)
            self._mark_delete = end - 1

    def _end_of_run(self, offset: int) -> int:
        """The first offset after `offset` that is not in the bitmap: by doubling, then halving."""
        step = 1
        while self._above.contains_range(offset, offset + step):
            step *= 2
        low, high = offset + step // 2, offset + step
        while low < high:
            middle = (low + high) // 2
            if self._above.contains_range(offset, middle + 1):
                low = middle + 1
            else:
                high = middle
        return low

    def to_bytes(self) -> bytes:
        """Encode the cursor for persistence."""
        self._above.run_optimize()
        return encode_cursor(self._mark_delete, self._above)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Cursor":
        """Decode a persisted cursor; WireError if the data is malformed."""
        return cls(*decode_cursor(data))


def _range(first: int, end: int) -> BitMap64:
    """Bitmap of [first, end), without iterating over the offsets."""
    found = BitMap64()
    found.add_range(first, end)
    return found
