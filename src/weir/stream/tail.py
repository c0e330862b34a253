"""Tail cache: the newest batches of every stream in memory, with one limit in bytes for all streams.

The cache evicts the batch with the earliest append, of any stream: readers at the tail never read from disk, and
readers far behind never evict the tail.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from weir.model.batch import Batch

#: Approximate memory of a batch besides its payload.
_OVERHEAD_BYTES = 300
#: Minimum number of evicted slots at the front of a tail's list before the list is cut.
_CUT_AT = 256
#: Maximum number of batches of one read, since readers process them without yielding.
MOST_BATCHES = 1024


class StreamTail:
    """The cached batches of one stream: consecutive, up to its end."""

    __slots__ = ("_bases", "_batches", "_cache", "_head", "generation", "hits", "misses")

    def __init__(self, cache: "TailCache") -> None:
        self._cache = cache
        self._bases: list[int] = []
        self._batches: list[Batch | None] = []
        self._head = 0
        #: Number of clears, so that the cache does not evict for batches that were cleared.
        self.generation = 0
        self.hits = 0
        self.misses = 0

    def push(self, batches: Sequence[Batch]) -> None:
        """Add the stream's newest batches."""
        self._bases += [batch.base_offset for batch in batches]
        self._batches += batches
        self._cache.added(self, [len(batch.payload) + _OVERHEAD_BYTES for batch in batches])

    def read(self, offset: int, max_bytes: int) -> list[Batch] | None:
        """Read batches, starting with the one that contains `offset`; None if the tail does not have it."""
        at = bisect_right(self._bases, offset, lo=self._head) - 1
        if at < self._head:
            self.misses += 1
            return None
        found: list[Batch] = []
        size = 0
        for place in range(at, len(self._batches)):  # a slice would copy the whole tail for one batch
            batch = self._batches[place]
            if batch is None or (found and size + len(batch) > max_bytes) or len(found) == MOST_BATCHES:
                break
            found.append(batch)
            size += len(batch)
        self.hits += 1
        return found

    def holds(self, offset: int) -> bool:
        """Whether the tail has the batch with the offset, which must be before the end."""
        return self._head < len(self._bases) and offset >= self._bases[self._head]

    def clear(self) -> None:
        """Drop all batches, since the stream is closed or its end is in doubt."""
        self._bases, self._batches, self._head = [], [], 0
        self.generation += 1

    def drop_first(self) -> None:
        """Evict the oldest batch; for the cache."""
        self._batches[self._head] = None
        self._head += 1
        if self._head >= _CUT_AT and self._head * 2 >= len(self._bases):
            del self._bases[: self._head], self._batches[: self._head]
            self._head = 0

    def __len__(self) -> int:
        return len(self._bases) - self._head


class TailCache:
    """Memory limit for the tails of all streams of a broker."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._order: deque[tuple[StreamTail, int, int]] = deque()
        self.size_bytes = 0

    def tail(self) -> StreamTail:
        """Create the tail of a stream."""
        return StreamTail(self)

    def added(self, tail: StreamTail, sizes: list[int]) -> None:
        generation = tail.generation
        self._order += [(tail, generation, size) for size in sizes]
        self.size_bytes += sum(sizes)
        while self.size_bytes > self._limit and len(self._order) > 1:
            oldest, generation, freed = self._order.popleft()
            if generation == oldest.generation:
                oldest.drop_first()
            self.size_bytes -= freed
