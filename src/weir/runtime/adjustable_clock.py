"""A clock that can be moved forward: whoever waits on it waits no longer than it says.

The pytest plug-in's brokers run on one (docs/how-to/pytest.md). What messages and policies wait for moves with it.
Whether a client still lives does not, since it sends its heartbeats by a clock that nobody moves: such questions
are asked of `liveness(clock)`, which for every other clock is the clock itself.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush

from weir.runtime.interfaces import Clock, Timer

#: An advance stops at every moment for which a call is due, up to so many times; from then on, and for those who
#: just sleep between their rounds, it goes in strides of which there are at most so many.
_MOST_STOPS = 1000
_STRIDES = 64
#: Calls that were cancelled are forgotten once per so many new ones.
_FORGET_EVERY = 256


@dataclass(order=True, slots=True)
class _Waiting:
    """A call that is due at a moment of the moved clock. `round_`: of somebody who sleeps between two looks, and
    may as well look earlier."""

    due: float
    number: int
    callback: Callable[[], None] = field(compare=False)
    context: contextvars.Context = field(compare=False)
    round_: bool = field(compare=False)
    over: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.over = True


class MovableClock:
    """Fills `Clock`. It runs as `still` does, ahead of it by what it was moved."""

    def __init__(self, still: Clock, *, ahead_s: float = 0.0) -> None:
        self.still = still
        #: By how much it was moved, in seconds.
        self.ahead_s = ahead_s
        self._waiting: list[_Waiting] = []
        self._numbers = 0
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._moving = asyncio.Lock()

    def wall_ms(self) -> int:
        return self.still.wall_ms() + int(self.ahead_s * 1000)

    def monotonic(self) -> float:
        return self.still.monotonic() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await self.still.sleep(0)
            return
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._add(seconds, partial(_wake, awake), round_=True)
        try:
            await awake
        finally:
            waiting.cancel()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self._add(seconds, callback, round_=False)

    async def advance(self, seconds: float, settle: Callable[[], Awaitable[None]]) -> None:
        """Be so much later. Calls that become due are made in their order, each at its moment, and `settle` waits
        between two moments until everything that they began is done. Whoever sleeps between rounds has a few on
        the way, and two at the end, whenever the next would have been. One advance at a time."""
        if seconds < 0:
            raise ValueError("a clock goes forward only")
        async with self._moving:
            try:
                await settle()
                await self._travel(self.ahead_s + seconds, seconds, settle)
                for _ in range(2):  # what one round ends, the next may clear away
                    self._ring([each for each in self._waiting if each.round_])
                    self._drop_over()
                    await settle()
                    for _ in range(_MOST_STOPS):
                        if not self._fire():
                            break
                        await settle()
            finally:
                self._arm()

    async def silence(self, seconds: float, settle: Callable[[], Awaitable[None]]) -> None:
        """Of the time that this clock was moved by, whoever is at the other end was silent for so long: the clock
        of `liveness`, which must be movable, too, is so much later, and this one stays as it is."""
        still = self.still
        if not isinstance(still, MovableClock):
            raise ValueError("this clock's liveness cannot be moved")
        async with self._moving, still._moving:
            still.ahead_s += seconds
            self.ahead_s -= seconds
            still._ring([each for each in still._waiting if each.round_ or each.due <= still.monotonic()])
            still._drop_over()
            await settle()
            still._arm()
            self._arm()

    async def _travel(self, target_s: float, seconds: float, settle: Callable[[], Awaitable[None]]) -> None:
        stops, last_round = 0, self.monotonic()
        while True:
            rounds_from = last_round + seconds / _STRIDES
            calls_from = 0.0 if stops < _MOST_STOPS else self.monotonic() + seconds / _MOST_STOPS
            waiting = (each for each in self._waiting if not each.over)
            moments = (max(each.due, rounds_from if each.round_ else calls_from) for each in waiting)
            moment = min(moments, default=None)
            if moment is None or moment - self.still.monotonic() >= target_s:
                break
            self.ahead_s = max(self.ahead_s, moment - self.still.monotonic())
            if self.monotonic() >= rounds_from:
                last_round = self.monotonic()
            stops += 1
            self._fire(rounds=last_round >= rounds_from)
            await settle()
        self.ahead_s = target_s
        self._fire()
        await settle()

    # --- who waits ----------------------------------------------------------------------------------------------

    def _add(self, seconds: float, callback: Callable[[], None], *, round_: bool) -> _Waiting:
        self._numbers += 1
        if not self._numbers % _FORGET_EVERY:
            self._drop_over()
        due = self.monotonic() + seconds
        waiting = _Waiting(due, self._numbers, callback, contextvars.copy_context(), round_)
        heappush(self._waiting, waiting)
        if not self._moving.locked() and (self._timer is None or due < self._timer_at):
            self._arm()
        return waiting

    def _fire(self, *, rounds: bool = True) -> bool:
        """Call everybody who is due, in order; whether there was anybody."""
        now, due = self.monotonic(), []
        while rounds and self._waiting and self._waiting[0].due <= now:
            due.append(heappop(self._waiting))
        if not rounds:
            due = sorted(each for each in self._waiting if each.due <= now and not each.round_)
            self._waiting = [each for each in self._waiting if each.due > now or each.round_]
            heapify(self._waiting)
        self._ring(due)
        return bool(due)

    def _ring(self, due: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        for each in due:
            if not each.over:
                each.over = True
                loop.call_soon(each.callback, context=each.context)

    def _drop_over(self) -> None:
        self._waiting = [each for each in self._waiting if not each.over]
        heapify(self._waiting)

    def _arm(self) -> None:
        """One timer of the clock that nobody moves, for the first who is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and self._waiting[0].over:
            heappop(self._waiting)
        if self._waiting:
            self._timer_at = self._waiting[0].due
            self._timer = self.still.call_later(max(0.0, self._timer_at - self.monotonic()), self._rung)

    def _rung(self) -> None:
        self._timer = None
        if not self._moving.locked():
            self._fire()
            self._arm()


def liveness(clock: Clock) -> Clock:
    """The clock to ask whether somebody at the other end still lives: it goes as theirs do."""
    return clock.still if isinstance(clock, MovableClock) else clock


def unmoved(clock: Clock) -> Clock:
    """The clock under all that move it: for what nobody but this process waits for."""
    while isinstance(clock, MovableClock):
        clock = clock.still
    return clock


def clients_behind_ms(clock: Clock) -> int:
    """By how much a moment that a client names, by its own clock, is too early."""
    return int(clock.ahead_s * 1000) + clients_behind_ms(clock.still) if isinstance(clock, MovableClock) else 0


def _wake(awake: "asyncio.Future[None]") -> None:
    if not awake.done():
        awake.set_result(None)
