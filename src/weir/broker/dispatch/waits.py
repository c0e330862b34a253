"""Messages that wait for a moment, as sets of offsets: few sets, however many messages.

Moments are rounded up to steps that grow with the wait (to less than a thirtieth of it), so that what fails at
about the same time waits in one set: a million messages that wait are a few hundred bitmaps.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from pyroaring import BitMap64

#: A wait is rounded up by less than the 2^n-th part of it.
_EXACT_BITS = 5


class Waits:
    """A message waits once at the most: who adds it again calls `drop` before."""

    __slots__ = ("_due", "_moments")

    def __init__(self, due: Mapping[int, BitMap64] | None = None) -> None:
        #: By their moments, in milliseconds since 1970.
        self._due: dict[int, BitMap64] = dict(due or {})
        self._moments = list(self._due)
        heapify(self._moments)

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, offsets: BitMap64, now_ms: int, wait_ms: int) -> None:
        """From now on for so long."""
        step = 1 << max(0, (wait_ms >> _EXACT_BITS).bit_length() - 1)
        moment = -(-(now_ms + wait_ms) // step) * step
        there = self._due.get(moment)
        if there is None:
            self._due[moment] = BitMap64(offsets)
            heappush(self._moments, moment)
        else:
            there |= offsets

    @property
    def next_ms(self) -> int | None:
        """When the first of them are due."""
        return self._moments[0] if self._moments else None

    def pop_due(self, now_ms: int) -> BitMap64:
        """Those that wait no longer."""
        found = BitMap64()
        while self._moments and self._moments[0] <= now_ms:
            found |= self._due.pop(heappop(self._moments))
        return found

    def drop(self, offsets: BitMap64) -> None:
        """These do not wait any more."""
        for waiting in self._due.values():
            waiting.difference_update(offsets)

    def keep(self, offsets: BitMap64) -> None:
        """No others wait any more."""
        for moment in list(self._due):
            self._due[moment] &= offsets
            if not self._due[moment]:
                del self._due[moment]
        self._moments = list(self._due)
        heapify(self._moments)

    def all(self) -> BitMap64:
        return BitMap64().union(*self._due.values()) if self._due else BitMap64()

    @property
    def due(self) -> Mapping[int, BitMap64]:
        return self._due

    def clear(self) -> None:
        self._due.clear()
        self._moments.clear()
