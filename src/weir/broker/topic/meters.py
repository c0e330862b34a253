"""Counting what passes: totals and rates, and durations as histograms."""

from bisect import bisect_left

from weir.broker.api import BOUNDS_S, TopicsFlow
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock

#: Rates are means over about this long.
_WINDOW_S = 10.0


class Meter:
    """Messages, batches and bytes that passed, and how many messages and bytes per second of late."""

    __slots__ = ("_at", "_clock", "_flow", "_rates", "_seen", "_topic", "batches", "bytes", "messages")

    def __init__(self, clock: Clock, flow: TopicsFlow | None = None, topic: TopicName | None = None) -> None:
        """`flow`: of all topics together, where this one's counts as well."""
        self._clock = clock
        self._flow = flow
        self._topic = topic
        self._at = clock.monotonic()
        self._seen = (0, 0)
        self._rates = (0.0, 0.0)
        self.messages = 0
        self.bytes = 0
        self.batches = 0

    def count(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        self.batches += 1
        if self._flow is not None and self._topic is not None:
            self._flow.note(self._topic, messages, size)

    def rates(self) -> tuple[float, float]:
        """Messages and bytes per second, over the time since they were last asked for or the window."""
        now = self._clock.monotonic()
        elapsed = now - self._at
        if elapsed >= 1.0:
            weight = min(1.0, elapsed / _WINDOW_S)
            fresh = ((self.messages - self._seen[0]) / elapsed, (self.bytes - self._seen[1]) / elapsed)
            old = self._rates
            self._rates = (old[0] + weight * (fresh[0] - old[0]), old[1] + weight * (fresh[1] - old[1]))
            self._seen = (self.messages, self.bytes)
            self._at = now
        return self._rates


class Histogram:
    """How long things took, in classes."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def note(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += times
        self.total_s += seconds * times

    def snapshot(self) -> tuple[tuple[int, ...], float]:
        return tuple(self.counts), self.total_s
