"""A queue that nobody uses: it goes once it had no consumer, and was neither declared nor asked for a message, for
as long as its rules say. It is counted from the moment that this broker has it."""

from collections.abc import Callable
from typing import Protocol

from weir.model.queues import QueueRules
from weir.runtime.interfaces import Clock, Timer

#: A timer that is due later is set anew by then.
_LONGEST_S = 3600.0


class UsedQueue(Protocol):
    @property
    def rules(self) -> QueueRules: ...

    @property
    def consumer_count(self) -> int: ...

    @property
    def alive(self) -> bool: ...


class UnusedQueue:
    """`expired`: called once nobody has used it for so long, and again as long as it is there."""

    def __init__(self, queue: UsedQueue, expired: Callable[[], None], clock: Clock) -> None:
        self._queue = queue
        self._expired = expired
        self._clock = clock
        self._used_s = clock.monotonic()
        self._timer: Timer | None = None
        self._limit_ms: int | None = None

    def used(self) -> None:
        self._used_s = self._clock.monotonic()

    def apply(self) -> None:
        """The rules may have changed."""
        limit_ms = self._queue.rules.expires_ms
        if limit_ms != self._limit_ms:
            self.close()
            self._limit_ms = limit_ms
            self._set()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._limit_ms = None

    def _set(self) -> None:
        if self._limit_ms is not None:
            left_s = self._used_s + self._limit_ms / 1000 - self._clock.monotonic()
            self._timer = self._clock.call_later(min(max(left_s, 0.001), _LONGEST_S), self._rung)

    def _rung(self) -> None:
        self._timer = None
        if self._limit_ms is None or not self._queue.alive:
            return
        if self._queue.consumer_count:
            self.used()
        elif self._clock.monotonic() - self._used_s >= self._limit_ms / 1000:
            self._expired()
            self.used()  # if it could not be deleted, it is tried again
        self._set()
