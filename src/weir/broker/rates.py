"""Limits on rates, as token buckets.

Counting what passes: totals and rates, and durations as histograms.

How much passed through a topic since it was loaded, whatever the protocol.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from weir.broker.api.broker import TopicsFlow
from weir.broker.api.stats import BOUNDS_S
from weir.model.policies import Rate
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock, Timer

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


class Bucket:
    """Tokens that come at a steady rate, up to a burst. Spending may run into debt, which is then waited for: what
    is sent is only known once it was sent."""

    __slots__ = ("_at", "_burst", "_clock", "_per_s", "_tokens")

    def __init__(self, clock: Clock, per_s: float, burst_s: float) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = max(1.0, per_s * burst_s)
        self._tokens = self._burst
        self._at = clock.monotonic()

    def delay_s(self) -> float:
        """How long until something may be spent; zero if now."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s)
        self._at = now
        return 0.0 if self._tokens > 0 else (1e-6 - self._tokens) / self._per_s

    def spend(self, amount: int) -> None:
        self._tokens -= amount


class RateLimit:
    """At most so many messages and bytes per second; no limit costs nothing."""

    __slots__ = ("_burst_s", "_bytes", "_clock", "_messages", "_rate")

    def __init__(self, clock: Clock, rate: Rate, burst_s: float) -> None:
        self._clock = clock
        self._burst_s = burst_s
        self._rate = Rate()
        self._messages: Bucket | None = None
        self._bytes: Bucket | None = None
        self.set(rate)

    def set(self, rate: Rate) -> None:
        """Another rate from now on."""
        if rate == self._rate:
            return
        self._rate = rate
        self._messages = self._bucket(rate.messages)
        self._bytes = self._bucket(rate.bytes)

    def _bucket(self, per_s: int) -> Bucket | None:
        return Bucket(self._clock, per_s, self._burst_s) if per_s > 0 else None

    @property
    def limits(self) -> bool:
        """Whether there is any limit."""
        return self._messages is not None or self._bytes is not None

    def delay_s(self) -> float:
        delay = 0.0 if self._messages is None else self._messages.delay_s()
        return delay if self._bytes is None else max(delay, self._bytes.delay_s())

    def spend(self, messages: int, size: int) -> None:
        if self._messages is not None:
            self._messages.spend(messages)
        if self._bytes is not None:
            self._bytes.spend(size)


class Brake:
    """Holds a dispatcher back while any of its rates says so, and wakes it when it may go on."""

    def __init__(self, clock: Clock, limits: Sequence[RateLimit], wake: Callable[[], None]) -> None:
        self._clock = clock
        self._limits = limits
        self._wake = wake
        self._timer: Timer | None = None

    def free(self) -> bool:
        """Whether something may be delivered now; if not, there will be a call to `wake`."""
        if self._timer is not None:
            return False
        delay = max((limit.delay_s() for limit in self._limits if limit.limits), default=0.0)
        if delay <= 0:
            return True
        self._timer = self._clock.call_later(delay, self._due)
        return False

    def spend(self, messages: int, size: int) -> None:
        for limit in self._limits:
            limit.spend(messages, size)

    def _due(self) -> None:
        self._timer = None
        self._wake()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Traffic(NamedTuple):
    """Totals. Those given out can fall, when a subscription goes and its count with it."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0


def traffic_of(taken: Meter, given: Iterable[Meter]) -> Traffic:
    """`given`: of each subscription, and of those who read by offset."""
    messages = size = 0
    for meter in given:
        messages += meter.messages
        size += meter.bytes
    return Traffic(taken.messages, taken.bytes, messages, size)
