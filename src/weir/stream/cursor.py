"""A cursor: what one subscription has acknowledged, as offsets.

`(mark_delete, bitmap)`: everything up to and with `mark_delete` is acknowledged, and so are the offsets in the
bitmap, all of them above it. Holes cost a bit or less each (roaring), so a hundred thousand of them are small.
A plain value with plain functions; who persists it, and when, is the state log's job.
"""

from pyroaring import BitMap64

from weir.model.batch import bits_at
from weir.model.check import check
from weir.wire.snapshots.subscriptions import decode_cursor, encode_cursor

#: No acknowledged offset yet: the stream starts at zero.
BEFORE_FIRST = -1


class Cursor:
    """Acknowledged offsets of one subscription."""

    __slots__ = ("_above", "_mark_delete", "version")

    def __init__(self, mark_delete: int = BEFORE_FIRST, above: BitMap64 | None = None) -> None:
        self._mark_delete = mark_delete
        self._above = BitMap64() if above is None else above
        #: Counts changes, so that its keeper knows whether there is something new to persist.
        self.version = 0

    @property
    def mark_delete(self) -> int:
        """The highest offset at or below which everything is acknowledged."""
        return self._mark_delete

    @property
    def holes(self) -> int:
        """How many offsets above the mark are acknowledged one by one."""
        return len(self._above)

    def ack(self, first: int, end: int) -> bool:
        """Acknowledge the offsets in [first, end); answers whether any of them was not acknowledged yet. How many
        is not counted: the bitmap would look through all of its neighbours for that, at each call."""
        if self.all_acked(first, end):
            return False
        self.version += 1
        self._above.add_range(max(first, self._mark_delete + 1), end)
        self._absorb()
        return True

    def ack_up_to(self, offset: int) -> None:
        """Acknowledge everything up to and with `offset`; a cursor never moves back this way."""
        if offset <= self._mark_delete:
            return
        self.version += 1
        self._mark_delete = offset
        self._above.remove_range(0, offset + 1)
        self._absorb()

    def reset(self, next_offset: int) -> None:
        """Forget everything: the next offset to deliver is this one."""
        check(next_offset > BEFORE_FIRST, "a cursor stands at an offset")
        self.version += 1
        self._mark_delete = next_offset - 1
        self._above = BitMap64()

    def cut(self, end_offset: int) -> bool:
        """Forget acknowledgements of offsets at and after the end of the log; answers whether there were any."""
        if self._mark_delete < end_offset and (not self._above or self._above.max() < end_offset):
            return False
        self.version += 1
        if self._mark_delete >= end_offset:
            self._mark_delete, self._above = end_offset - 1, BitMap64()
        else:
            self._above.remove_range(end_offset, self._above.max() + 1)
        return True

    def unack(self, offset: int) -> bool:
        """Take back the acknowledgement of one offset; answers whether there was one. What is acknowledged besides
        stays so."""
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
        """A bit for each of `count` offsets from `first` on: set where it is not acknowledged."""
        full = (1 << count) - 1
        if first > self._mark_delete and not self._above.range_cardinality(first, first + count):
            return full
        below = max(0, min(count, self._mark_delete + 1 - first))
        acked = self._above & _range(first + below, first + count)
        return full >> below << below & ~bits_at((offset - first for offset in acked), count)

    def unacked_of(self, offsets: BitMap64) -> BitMap64:
        """Those of them that are not acknowledged."""
        found = offsets - self._above
        found.remove_range(0, self._mark_delete + 1)
        return found

    def next_unacked(self, offset: int) -> int:
        """The first offset at or after this one that is not acknowledged."""
        offset = max(offset, self._mark_delete + 1)
        while offset in self._above:
            offset = self._end_of_run(offset)
        return offset

    def backlog(self, end_offset: int) -> int:
        """How many offsets before `end_offset` are not acknowledged."""
        ahead = max(0, end_offset - self._mark_delete - 1)
        return ahead - self._above.range_cardinality(0, end_offset) if ahead else 0

    def backlog_between(self, first: int, end: int, hidden: BitMap64) -> int:
        """How many offsets in [first, end) are neither acknowledged nor hidden; `first` is above the mark."""
        if first >= end:
            return 0
        acked, unseen = self._above.range_cardinality(first, end), hidden.range_cardinality(first, end)
        both = (self._above & hidden).range_cardinality(first, end) if acked and unseen else 0
        return end - first - acked - unseen + both

    def ack_all(self, offsets: BitMap64, end: int) -> None:
        """Acknowledge those of the offsets that lie before the end."""
        first = self._mark_delete + 1
        if first < end and offsets.range_cardinality(first, end):
            self.version += 1
            self._above |= offsets & _range(first, end)
            self._absorb()

    def nth_unacked(self, number: int) -> int:
        """The offset of the `number`th (from 1) that is not acknowledged, in a stream without end."""
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
            check(end > following, "the mark-delete position goes back by a reset alone")
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
        """The cursor as it is persisted."""
        self._above.run_optimize()
        return encode_cursor(self._mark_delete, self._above)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Cursor":
        """A persisted cursor; WireError if it is none."""
        return cls(*decode_cursor(data))


def _range(first: int, end: int) -> BitMap64:
    """[first, end), without looking at each of them."""
    found = BitMap64()
    found.add_range(first, end)
    return found
