"""Where in a ledger an offset lies: what is known by having read it, and how to search for the rest.

Entries of a ledger hold batches of different sizes, so an offset's entry is found by bisection over entries that
are read. Every entry that was read for whatever reason narrows the next search, and a reader that goes on where
it stopped never searches at all.
"""

from bisect import bisect_right, insort
from collections.abc import Awaitable, Callable

from weir.model.batch import Batch

#: Known places per ledger; enough to make a search in a full ledger a few reads.
_KEPT = 1024

Probe = Callable[[int], Awaitable[Batch]]


class Places:
    """Known (offset, entry) pairs of one ledger: the entry's first offset."""

    def __init__(self, first_offset: int) -> None:
        self._known: list[tuple[int, int]] = [(first_offset, 0)]

    def learn(self, offset: int, entry: int) -> None:
        """An entry begins at this offset."""
        at = bisect_right(self._known, (offset, entry))
        if self._known[at - 1] != (offset, entry):
            insort(self._known, (offset, entry))
            if len(self._known) > _KEPT:
                del self._known[1::2]

    def around(self, offset: int, end_entry: int) -> tuple[int, int]:
        """The entries that may hold the offset: from the first to before the second."""
        at = bisect_right(self._known, offset, key=lambda pair: pair[0])
        if at and self._known[at - 1][0] == offset:  # a reader that goes on where it stopped
            return self._known[at - 1][1], self._known[at - 1][1] + 1
        low = self._known[at - 1][1] if at else 0
        high = self._known[at][1] if at < len(self._known) else end_entry
        return low, min(high, end_entry)


async def find_entry(places: Places, offset: int, end_entry: int, probe: Probe) -> int:
    """The entry whose batch holds the offset; `probe` reads one entry. The offset must lie in the ledger."""
    low, high = places.around(offset, end_entry)
    while high - low > 1:
        middle = (low + high) // 2
        batch = await probe(middle)
        places.learn(batch.base_offset, middle)
        if batch.base_offset <= offset:
            low = middle
            if offset < batch.end_offset:
                break
        else:
            high = middle
    return low


async def find_time(moment_ms: int, end_entry: int, probe: Probe) -> int:
    """The first entry that was appended at or after the moment; `end_entry` if none was."""
    low, high = 0, end_entry
    while low < high:
        middle = (low + high) // 2
        if (await probe(middle)).append_ms < moment_ms:
            low = middle + 1
        else:
            high = middle
    return low
