"""A timer that is set for the earliest of many moments, and set anew only when an earlier one comes."""

from collections.abc import Callable

from weir.runtime.interfaces import Clock, Timer
from weir.runtime.movable import unmoved

NEVER = float("inf")
#: A timer that is later by more than this was held up by its process, and so was the reading of requests.
_LATE_S = 0.5
#: For so long at most an alarm waits for requests that came while the process stood still.
_GRACE_S = 5.0


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
