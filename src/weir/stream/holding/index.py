"""The near future of a holding area, in memory: places in the order of their release, bounded in number."""

from heapq import heappop, heappush

from weir.stream.holding.windows import DuePosition


class NearIndex:
    """A heap of places. It may hold a place twice, or one that is no longer held: whoever pops it looks."""

    def __init__(self, limit: int) -> None:
        self._limit = max(2, limit)
        self._heap: list[DuePosition] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def is_low(self) -> bool:
        """Whether there is room for more to be read in without cutting soon."""
        return len(self._heap) * 4 <= self._limit

    @property
    def is_over(self) -> bool:
        return len(self._heap) > self._limit

    @property
    def first(self) -> DuePosition | None:
        return self._heap[0] if self._heap else None

    def push(self, place: DuePosition) -> bool:
        """Add a place; whether it is now the first."""
        heappush(self._heap, place)
        return self._heap[0] == place

    def pop(self) -> DuePosition:
        return heappop(self._heap)

    def cut(self) -> DuePosition | None:
        """Forget what is there twice and, if that is not enough, the later half; answers the first place that is
        forgotten."""
        self._heap = sorted(set(self._heap))  # a sorted list is a heap
        if not self.is_over:
            return None
        keep = self._limit // 2
        first_gone = self._heap[keep]
        del self._heap[keep:]
        return first_gone
