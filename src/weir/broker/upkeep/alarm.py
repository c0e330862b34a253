"""A timer that is set for the earliest of many moments, and set anew only when an earlier one comes."""

from collections.abc import Callable

from weir.runtime.interfaces import Clock, Timer

NEVER = float("inf")


class Alarm:
    """`ring` is called once the moment has come; it looks for itself what is due, and sets the next. Moments that
    are put off (a heartbeat came) cost nothing: the alarm rings, and nothing is due."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: Timer | None = None
        self._at = NEVER

    def at(self, when: float) -> None:
        """Ring at this moment of the monotonic clock at the latest."""
        if when >= self._at:
            return
        self.stop()
        self._at = when
        self._timer = self._clock.call_later(max(0.0, when - self._clock.monotonic()), self._rung)

    def _rung(self) -> None:
        self._timer, self._at = None, NEVER
        self._ring()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, NEVER
