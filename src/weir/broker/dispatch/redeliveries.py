"""How often each message of a queue was delivered before: per message, in bits rather than numbers.

A consumer that leaves may give a million messages back, each for the first time; one message may come back a
thousand times. Both are small as sets: those that came back once or more, twice or more, and so on.
"""

from pyroaring import BitMap64

#: Counts go no higher: a message that is given back for ever must not cost more each time.
MOST = 1000


class Redeliveries:
    __slots__ = ("_at_least",)

    def __init__(self) -> None:
        #: At place n: what was delivered more than n times before. Each holds the next.
        self._at_least: list[BitMap64] = []

    def __bool__(self) -> bool:
        return bool(self._at_least)

    def of(self, offset: int) -> int:
        """How often it was delivered before."""
        low, high = 0, len(self._at_least)
        while low < high:
            middle = (low + high) // 2
            if offset in self._at_least[middle]:
                low = middle + 1
            else:
                high = middle
        return low

    def any_in(self, first: int, end: int) -> bool:
        """Whether any of [first, end) was delivered before."""
        if not self._at_least:
            return False
        seen = self._at_least[0]
        return bool(seen.max() >= first and seen.next_set_bit(first) < end)

    def count(self, offsets: BitMap64) -> None:
        """These came back, once more each."""
        more = offsets
        for seen in self._at_least:
            if not more:
                return
            again = seen & more
            seen |= more
            more = again
        if more and len(self._at_least) < MOST:
            self._at_least.append(BitMap64(more))

    def forget(self, first: int, end: int) -> None:
        """Those in [first, end) are done with."""
        for seen in self._at_least:
            seen.remove_range(first, end)
        while self._at_least and not self._at_least[-1]:
            self._at_least.pop()

    def keep(self, offsets: BitMap64) -> None:
        """All others are done with."""
        for seen in self._at_least:
            seen.intersection_update(offsets)
        while self._at_least and not self._at_least[-1]:
            self._at_least.pop()

    def clear(self) -> None:
        self._at_least.clear()
