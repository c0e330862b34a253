"""Turns of the loop: how much one connection does before all others have their turn.

All connections of a process share one event loop, so whatever one of them makes it do without a pause, every
other waits for. A session spends units of work out of its turn: one for a command that is done at once, more for
a larger one or for a list that it looks through. When the turn is over it waits for the next. All tasks of a
session share its turns, so that a thousand requests under way get no more of the loop than one.

Units are counted, so that a simulation repeats exactly. The clock is a net under the counting: work that costs
more than its units say is noticed after it, and ends the turn as well.

Background tasks with an owner: started by one part, ended with it, never failing unseen.

What log lines are about: fields that every line of a task, and of the tasks that it starts, carries.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from itertools import islice
from typing import Any, TypeVar

from weir.model.check import Steps
from weir.model.errors import DiskFullError
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)

#: Tasks that `close` cancels in one turn of the loop: each of them runs once more to end.
_CANCELS_PER_TURN = 128


class TaskScope:
    """The background tasks of one part. `close()` cancels and awaits them all.

    A task that fails is logged and handed to `on_failure`; the part decides what that means for it.
    """

    def __init__(self, name: str, *, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._name = name
        self._on_failure = on_failure
        # A dict, not a set: cancelled in the order of their start, so that a seed repeats exactly.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` in the background until it ends or the scope closes."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}/{name}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        if self._closed:
            task.cancel()
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            trace = None if isinstance(failure, DiskFullError) else failure  # it says all that there is to know
            log.error("background task %s failed: %s", task.get_name(), failure, exc_info=trace)
            if self._on_failure is not None:
                self._on_failure(failure)

    def __len__(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """Cancel every task and wait until the last has ended. A task of the scope may close it."""
        self._closed = True
        this = asyncio.current_task()
        pending = [task for task in self._tasks if task is not this]
        for at in range(0, len(pending), _CANCELS_PER_TURN):
            if at:
                await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, whatever its clock says
            for task in pending[at : at + _CANCELS_PER_TURN]:
                task.cancel()
        left = [task for task in pending if not task.done()]
        if left:
            await asyncio.gather(*left, return_exceptions=True)


T = TypeVar("T")

#: Work that yields the units it has spent wherever it may be interrupted: plain code, which its caller cuts.
Work = Steps[None]

#: Units of one turn; one is about what a small command costs, some microseconds.
UNITS = 256
#: Bytes that cost as much as a unit, where bytes are looked at.
UNIT_BYTES = 4096
#: Elements of a list that cost as much as a unit, where each of them takes about a microsecond.
UNIT_ELEMENTS = 8
#: Units of looking something up by its name, and of answering that there is none such.
LOOK_UP_UNITS = 4
#: Units of opening a producer or consumer, or of letting go of one.
OPEN_UNITS = 8
#: No turn is longer, in seconds, once the command at hand is done.
LONGEST_S = 0.005


class Turns:
    """Those of one connection."""

    def __init__(self, clock: Clock, units: int = UNITS) -> None:
        self._clock = clock
        self._units = units
        self._left = units
        self._began = clock.monotonic()
        self._next = asyncio.Lock()

    def begin(self) -> None:
        """A new turn: whoever calls has just waited for something."""
        self._left = self._units
        self._began = self._clock.monotonic()

    @property
    def left(self) -> int:
        """Units that the turn still has."""
        return self._left

    def spend(self, units: int = 1) -> bool:
        """So much was done; whether the turn is over by that."""
        self._left -= units
        return self._left <= 0 or self._clock.monotonic() - self._began > LONGEST_S

    async def next(self) -> None:
        """Wait for the next turn: after every other task that is ready, and those of this connection that waited
        before."""
        waits = self._next.locked()
        async with self._next:
            if waits and not self.spend(0):  # it waited for others, who left something of the turn that they began
                return
            await self._clock.sleep(0)
            self.begin()

    async def through(self, work: Steps[T]) -> T:
        """Do work that says where it may pause; the next turn is waited for wherever one is over."""
        while True:
            try:
                units = next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            if self.spend(units):
                await self.next()

    async def run_all(self, works: Iterable[Coroutine[Any, Any, object]], units: int) -> list[Exception]:
        """Run all of these, `units` each, some at once in each turn; answers the errors of those that failed.
        `works` makes each coroutine when its turn has come."""
        failures: list[Exception] = []
        size = max(1, self._units // units)
        rest = iter(works)
        while some := list(islice(rest, size)):
            done = await asyncio.gather(*some, return_exceptions=True)
            failures += [failure for failure in done if isinstance(failure, Exception)]
            await self.pause(units * len(some))
        return failures

    async def pause(self, units: int = 1) -> None:
        """So much was done, of something that is not `Work`; wait if the turn is over by that."""
        if self.spend(units):
            await self.next()


_NOTHING: Mapping[str, str] = {}
_about: ContextVar[Mapping[str, str]] = ContextVar("log_about", default=_NOTHING)


def log_about(**fields: str) -> None:
    """From here on, in this task, lines are about this (a topic, a connection) and nothing else."""
    _about.set(fields)


def log_fields() -> Mapping[str, str]:
    """What a line written now is about."""
    return _about.get()
