"""Small chores of very many writers on one timer."""

from collections.abc import Callable

from weir.runtime.interfaces import Clock, Timer

Chore = Callable[[], None]


class Rounds:
    """Each chore is done once, one to two intervals after it was asked for. Asking costs no timer, however
    many ledgers are open."""

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._asked: dict[Chore, None] = {}  # since the last round
        self._due: dict[Chore, None] = {}  # in the next one
        self._timer: Timer | None = None

    def ask(self, chore: Chore) -> None:
        """Have it done; asking again before it is done changes nothing."""
        if chore not in self._due:
            self._asked[chore] = None
        if self._timer is None:
            self._timer = self._clock.call_later(self._interval_s, self._round)

    def _round(self) -> None:
        due, self._due, self._asked = self._due, self._asked, {}
        self._timer = self._clock.call_later(self._interval_s, self._round) if self._due else None
        for chore in due:
            chore()
