"""A timer that is set for the earliest of many moments, and set anew only when an earlier one comes; and deadlines
of many objects, of which the earliest is known without a scan."""

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from weir.runtime.interfaces import Clock, Timer
from weir.runtime.movable import unmoved

K = TypeVar("K", bound=Hashable)

NEVER = float("inf")
#: A timer that is later by more than this was held up by its process, and so was the reading of requests.
_LATE_S = 0.5
#: For so long at most an alarm waits for requests that came while the process stood still.
_GRACE_S = 5.0
#: A heap has so many invalid entries before they are worth removing.
_SPARE_ENTRIES = 64


class Alarm:
    """`ring` is called once the moment has come; it looks for itself what is due, and sets the next. Moments that
    are put off (a heartbeat came) cost nothing: the alarm rings, and nothing is due. After the process stood still
    it rings later, when the heartbeats that came meanwhile have been read. A clock that was moved forward is no
    standstill."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        #: Whether the process stood still is asked of this one.
        self._unmoved = unmoved(clock)
        self._ring = ring
        self._timer: Timer | None = None
        self._at = NEVER
        #: The same moment, if nobody moves the clock until then, by the clock that nobody moves.
        self._expected = NEVER
        #: It does not ring before.
        self._not_before = -NEVER

    def at(self, when: float) -> None:
        """Ring at this moment of the monotonic clock at the latest."""
        when = max(when, self._not_before)
        if when >= self._at:
            return
        self.stop()
        self._at = when
        delay = max(0.0, when - self._clock.monotonic())
        self._expected = self._unmoved.monotonic() + delay
        self._timer = self._clock.call_later(delay, self._rung)

    def _rung(self) -> None:
        due, late_s = self._at, self._unmoved.monotonic() - self._expected
        self._timer, self._at = None, NEVER
        if late_s > _LATE_S and due > self._not_before:
            self._not_before = self._clock.monotonic() + min(late_s, _GRACE_S)
            self.at(self._not_before)
        else:
            self._ring()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, NEVER


class Deadlines(Generic[K]):
    """A deadline for each of many keys. All operations take O(log n), amortized: a deadline that is extended
    leaves its heap entry where it is, and the entry moves when it becomes the first."""

    def __init__(self) -> None:
        self._deadlines: dict[K, float] = {}
        #: The time of the one valid heap entry of each key; it is not after the deadline.
        self._queued: dict[K, float] = {}
        #: Time, number, key: the numbers keep the order, and spare the comparison of keys.
        self._heap: list[tuple[float, int, K]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: K, deadline: float) -> None:
        """Replace the deadline of the key."""
        self._deadlines[key] = deadline
        if deadline < self._queued.get(key, NEVER):
            self._push(key, deadline)

    def remove(self, key: K) -> bool:
        """Remove the key; answers whether it had a deadline."""
        self._queued.pop(key, None)
        return self._deadlines.pop(key, None) is not None

    def clear(self) -> None:
        self._deadlines.clear()
        self._queued.clear()
        self._heap.clear()

    def first(self) -> float:
        """A time that is not after any deadline; NEVER without keys."""
        return self._heap[0][0] if self._heap else NEVER

    def pop_due(self, now: float) -> list[K]:
        """Remove the keys whose deadline has come, and answer them in the order of their deadlines."""
        due: list[K] = []
        heap = self._heap
        while heap:
            when, _, key = heap[0]
            if self._queued.get(key) != when:  # removed, or replaced by an earlier entry
                heappop(heap)
                continue
            deadline = self._deadlines[key]
            if deadline > when:
                heappop(heap)
                self._push(key, deadline)
                continue
            if when > now:
                break
            heappop(heap)
            self.remove(key)
            due.append(key)
        return due

    def _push(self, key: K, deadline: float) -> None:
        self._queued[key] = deadline
        self._number += 1
        heappush(self._heap, (deadline, self._number, key))
        if len(self._heap) > 2 * len(self._queued) + _SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if self._queued.get(entry[2]) == entry[0]]
            heapify(self._heap)
