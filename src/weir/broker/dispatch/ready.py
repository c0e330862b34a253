"""Messages that are ready to be delivered, as sets of offsets: those that came back, or all, by their levels."""

from collections.abc import Callable, Sequence
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
    """All that is ready, by its level: the highest first, and within a level the lowest offset. A lower level that
    has something ready has its turn, for one message, when `passed` of higher ones went before it since its last
    turn, or after `longest_ms`; 0: no such bound."""

    def __init__(self, levels: int, passed: int = 0, longest_ms: int = 0, now_ms: Callable[[], int] = int) -> None:
        self._ready = [BitMap64() for _ in range(levels + 1)]
        #: What has a level above 0, ready or not: it has it still when it comes back.
        self._marked = [BitMap64() for _ in range(levels + 1)]
        self._bound = passed
        self._longest_ms = longest_ms
        self._now_ms = now_ms
        #: Of each level: how many of higher ones were delivered while it had something, and since when that is.
        self._passed = [0] * (levels + 1)
        self._since_ms = [0] * (levels + 1)
        #: Whose turn it is.
        self._turn = 0
        #: How many of it may be delivered before another is looked at; None: as many as there are.
        self._room: int | None = None

    @property
    def levels(self) -> int:
        return len(self._ready) - 1

    def __bool__(self) -> bool:
        return any(self._ready)

    def first(self) -> int:
        self._choose()
        return int(self._ready[self._turn].min())

    def _choose(self) -> None:
        ready = self._ready
        top = next(level for level in range(len(ready) - 1, -1, -1) if ready[level])
        self._turn, self._room = top, None
        if not top or not (self._bound or self._longest_ms):
            return
        waiting = [level for level in range(top) if ready[level]]
        if not waiting:
            return
        late = self._now_ms() - self._longest_ms if self._longest_ms else None
        for level in waiting:
            if (self._bound and self._passed[level] >= self._bound) or (
                late is not None and self._since_ms[level] <= late
            ):
                self._turn, self._room = level, 1
                return
        if self._bound:
            self._room = min(self._bound - self._passed[level] for level in waiting)

    def within(self, end: int, most: int) -> Sequence[int]:
        most = most if self._room is None else min(most, self._room)
        return _some(self._ready[self._turn], end, most)

    def _now_waits(self, level: int) -> None:
        """It had nothing, and is about to have something."""
        self._passed[level] = 0
        if self._longest_ms:
            self._since_ms[level] = self._now_ms()

    def note(self, base: int, indices: Sequence[int], levels: Sequence[int] | None) -> None:
        """Messages of a batch that nobody has had yet."""
        if levels is None:
            if not self._ready[0]:
                self._now_waits(0)
            hold(self._ready[0], base, indices)
            return
        most = self.levels
        for index in indices:
            level = min(levels[index], most)
            if not self._ready[level]:
                self._now_waits(level)
            self._ready[level].add(base + index)
            if level:
                self._marked[level].add(base + index)

    def add(self, offsets: BitMap64) -> None:
        rest = offsets
        for level in range(1, len(self._ready)):
            mine = self._marked[level] & rest
            if mine:
                self._add(level, mine)
                rest = rest - mine
        self._add(0, rest)

    def _add(self, level: int, offsets: BitMap64) -> None:
        if offsets and not self._ready[level]:
            self._now_waits(level)
        self._ready[level] |= offsets

    def remove(self, offsets: Sequence[int]) -> None:
        _remove(self._ready[self._turn], offsets)
        if self._bound or self._longest_ms:
            for level in range(self._turn):
                self._passed[level] += len(offsets)
            self._now_waits(self._turn)

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
