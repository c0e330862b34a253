"""Limits on rates, as token buckets."""

from collections.abc import Callable, Sequence

from weir.model.policies import Rate
from weir.runtime.interfaces import Clock, Timer


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
