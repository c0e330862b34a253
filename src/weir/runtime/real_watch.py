"""A watch over the event loop: how long it was held by one thing, and by what.

A timer of the loop that comes late says that something ran for so long without a pause. The delay counts as far as
the loop's own thread was computing meanwhile: on a machine that is busy with other programs, or that was asleep, a
timer is late and nothing was held. A thread looks at where the loop is while it is held, so that the log names it.
"""

import asyncio
import logging
import sys
import threading
import time
from types import FrameType, TracebackType

from weir.runtime.interfaces import LoopHolds

log = logging.getLogger(__name__)

_INTERVAL_S = 0.1
#: From here on a hold is counted, and its place is in the log.
LONG_S = 0.25
#: Places that are named; whoever has more has another problem.
_MOST_PLACES = 100


class LoopWatch:
    """Watches the loop that runs within `with`, and writes down what it sees."""

    def __init__(self, holds: LoopHolds, *, interval_s: float = _INTERVAL_S, long_s: float = LONG_S) -> None:
        self._holds = holds
        self._interval_s = interval_s
        self._long_s = long_s
        self._named: dict[str, None] = {}
        self._place = ""
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()

    def __enter__(self) -> "LoopWatch":
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._arm()
        self._looker = threading.Thread(target=self._look, name="loop-watch", daemon=True)
        self._looker.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._beat()
        if self._timer is not None:
            self._timer.cancel()
        self._stopped.set()
        self._looker.join()

    def _arm(self) -> None:
        self._due = time.monotonic() + self._interval_s
        self._computed_s = time.thread_time()
        self._place = ""
        self._timer = self._loop.call_later(self._interval_s, self._beat)

    def _beat(self) -> None:
        held_s = min(time.monotonic() - self._due, time.thread_time() - self._computed_s)
        holds = self._holds
        if held_s > holds.longest_s:
            holds.longest_s, holds.longest_at = held_s, self._place
        if held_s >= self._long_s:
            holds.count += 1
            self._tell(held_s, self._place)
        if self._timer is not None:
            self._timer.cancel()
        self._arm()

    def _tell(self, held_s: float, place: str) -> None:
        """Once for each place: a client that found a slow one would fill the log with it."""
        if place not in self._named and len(self._named) < _MOST_PLACES:
            self._named[place] = None
            where = place or "a place that nobody saw"
            log.warning("the event loop was held for %.2f s at %s; everyone waited for it", held_s, where)

    def _look(self) -> None:
        """In a thread of its own: where the loop is, if it is late."""
        while not self._stopped.wait(self._interval_s):
            if not self._place and time.monotonic() - self._due > self._long_s / 2:
                self._place = _place_of(sys._current_frames().get(self._thread_id))


def _place_of(frame: FrameType | None) -> str:
    """The innermost function of Weir's own in a stack."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] == "weir" and name != __name__:
            return f"{name}.{frame.f_code.co_name}"
        frame = frame.f_back
    return ""
