"""Messages that are ready to be delivered, as sets of offsets: those that came back, or all, by their levels."""

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Protocol

from pyroaring import BitMap64


class Ready(Protocol):
    """Which are next: `first`, and `within` a batch from it on. What is handed out is removed."""

    def __bool__(self) -> bool: ...

    def first(self) -> int: ...

    def within(self, end: int, most: int) -> Sequence[int]:
        """From `first` on, those of its level before `end`: at most so many, ascending."""

    def add(self, offsets: BitMap64) -> None: ...

    def remove(self, offsets: Sequence[int]) -> None:
        """What `within` answered is delivered."""

    def drop(self, first: int, end: int) -> None:
        """Those in [first, end) are done with, ready or not."""

    def empty(self, kept: BitMap64) -> None:
        """All that is ready is done with; `kept` is not ready, and may come back."""

    def clear(self) -> None: ...


class Returned:
    """Those that came back, the lowest offset first."""

    def __init__(self) -> None:
        self._offsets = BitMap64()

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def first(self) -> int:
        return int(self._offsets.min())

    def within(self, end: int, most: int) -> Sequence[int]:
        return _some(self._offsets, end, most)

    def add(self, offsets: BitMap64) -> None:
        self._offsets |= offsets

    def remove(self, offsets: Sequence[int]) -> None:
        _remove(self._offsets, offsets)

    def drop(self, first: int, end: int) -> None:
        if self._offsets:
            self._offsets.remove_range(first, end)

    def empty(self, kept: BitMap64) -> None:
        self._offsets.clear()

    def clear(self) -> None:
        self._offsets.clear()


class Levelled:
    """All that is ready, by its level: the highest first, and within a level the lowest offset."""

    def __init__(self, levels: int) -> None:
        self._ready = [BitMap64() for _ in range(levels + 1)]
        #: What has a level above 0, ready or not: it has it still when it comes back.
        self._marked = [BitMap64() for _ in range(levels + 1)]

    @property
    def levels(self) -> int:
        return len(self._ready) - 1

    def __bool__(self) -> bool:
        return any(self._ready)

    def _top(self) -> BitMap64:
        return next(offsets for offsets in reversed(self._ready) if offsets)

    def first(self) -> int:
        return int(self._top().min())

    def within(self, end: int, most: int) -> Sequence[int]:
        return _some(self._top(), end, most)

    def note(self, base: int, indices: Sequence[int], levels: Sequence[int] | None) -> None:
        """Messages of a batch that nobody has had yet."""
        if levels is None:
            hold(self._ready[0], base, indices)
            return
        most = self.levels
        for index in indices:
            level = min(levels[index], most)
            self._ready[level].add(base + index)
            if level:
                self._marked[level].add(base + index)

    def add(self, offsets: BitMap64) -> None:
        rest = offsets
        for ready, marked in zip(self._ready[1:], self._marked[1:], strict=True):
            mine = marked & rest
            if mine:
                ready |= mine
                rest = rest - mine
        self._ready[0] |= rest

    def remove(self, offsets: Sequence[int]) -> None:
        _remove(self._top(), offsets)

    def unmark(self, first: int, end: int) -> None:
        """Those in [first, end), none of them ready, are done with."""
        for offsets in self._marked:
            if offsets:
                offsets.remove_range(first, end)

    def drop(self, first: int, end: int) -> None:
        for offsets in (*self._ready, *self._marked):
            if offsets:
                offsets.remove_range(first, end)

    def empty(self, kept: BitMap64) -> None:
        for offsets in self._ready:
            offsets.clear()
        for offsets in self._marked:
            offsets.intersection_update(kept)

    def clear(self) -> None:
        for offsets in (*self._ready, *self._marked):
            offsets.clear()


def hold(offsets: BitMap64, base: int, indices: Sequence[int]) -> None:
    """Put messages of a batch into a set; they ascend."""
    first, last = indices[0], indices[-1]
    if last - first + 1 == len(indices):
        offsets.add_range(base + first, base + last + 1)
    else:
        offsets.update([base + index for index in indices])


def _some(offsets: BitMap64, end: int, most: int) -> Sequence[int]:
    first: int = offsets.min()
    stop = min(end, first + most)
    if stop <= first:
        return ()
    if offsets.contains_range(first, stop):
        return range(first, stop)
    return list(islice(takewhile(end.__gt__, offsets.iter_equal_or_larger(first)), most))


def _remove(offsets: BitMap64, these: Sequence[int]) -> None:
    first, last = these[0], these[-1]
    if last - first + 1 == len(these):
        offsets.remove_range(first, last + 1)
    else:
        offsets.difference_update(BitMap64(these))
