"""When messages become visible again: one timer for all of them."""

from heapq import heappop, heappush
from typing import Protocol

from weir.runtime.interfaces import Clock, Timer


class Expiring(Protocol):
    def expire(self, offset: int, delivery: int) -> bool: ...


class Deadlines:
    """What was settled meanwhile stays here until its moment, and is nothing then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Expiring, int, int]] = []
        self._number = 0
        self._timer: Timer | None = None
        self._due_ms = 0
        #: How many became visible again.
        self.expired = 0

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def add(self, due_ms: int, who: Expiring, offset: int, delivery: int) -> None:
        self._number += 1
        heappush(self._heap, (due_ms, self._number, who, offset, delivery))
        if self._timer is None or due_ms < self._due_ms:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._due_ms = self._heap[0][0]
            self._timer = self._clock.call_later(max(0, self._due_ms - self.now_ms()) / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            _, _, who, offset, delivery = heappop(self._heap)
            self.expired += who.expire(offset, delivery)
        self._arm()

    def close(self) -> None:
        self._heap.clear()
        self._arm()
