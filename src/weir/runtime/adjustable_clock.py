"""A clock that can be moved forward: tasks that wait on it wake by its time.

The pytest plug-in's brokers run on one (docs/how-to/pytest.md). Waits of messages and policies move with it.
Timeouts for dead clients do not, since a client sends its heartbeats by its own, unmoved clock: they use
`liveness(clock)`, which for every other clock is the clock itself.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush

from weir.runtime.interfaces import Clock, Timer

#: An advance stops at the due time of every call, up to this many stops; after that, and for periodic sleeps, it
#: moves in strides, of which there are at most this many.
_MOST_STOPS = 1000
_STRIDES = 64
#: The clock drops cancelled calls once per this many new ones.
_FORGET_EVERY = 256


@dataclass(order=True, slots=True)
class _Waiting:
    """A call that is due at a time of the moved clock. `round_`: a periodic sleep, which may wake early."""

    due: float
    number: int
    callback: Callable[[], None] = field(compare=False)
    context: contextvars.Context = field(compare=False)
    round_: bool = field(compare=False)
    over: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.over = True


class MovableClock:
    """Implements `Clock`. Runs like `still`, ahead of it by the sum of its moves."""

    def __init__(self, still: Clock, *, ahead_s: float = 0.0) -> None:
        self.still = still
        #: The offset to `still`, in seconds.
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
        """Move forward. Calls that become due run in order, each at its time, and `settle` waits between two times
        until all work that they started is done. Periodic sleeps wake a few times on the way, and twice at the
        end, even before their due time. One advance at a time."""
        if seconds < 0:
            raise ValueError("a clock goes forward only")
        async with self._moving:
            try:
                await settle()
                await self._travel(self.ahead_s + seconds, seconds, settle)
                for _ in range(2):  # the second round may clean up after the first
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
        """Simulate that the other ends were silent for this part of the time that this clock has moved: the clock
        of `liveness`, which must be movable too, moves forward, and this one goes back by as much, so its time
        stays."""
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
        """Run all due calls in order; returns whether any call was due."""
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
        """Set one timer of the unmoved clock, for the first due call."""
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
    """The clock for timeouts of other ends: it runs like theirs."""
    return clock.still if isinstance(clock, MovableClock) else clock


def unmoved(clock: Clock) -> Clock:
    """The innermost clock, without any moves, for waits inside this process."""
    while isinstance(clock, MovableClock):
        clock = clock.still
    return clock


def clients_behind_ms(clock: Clock) -> int:
    """By how much a time from a client's own clock is too early."""
    return int(clock.ahead_s * 1000) + clients_behind_ms(clock.still) if isinstance(clock, MovableClock) else 0


def _wake(awake: "asyncio.Future[None]") -> None:
    if not awake.done():
        awake.set_result(None)
