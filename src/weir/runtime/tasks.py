"""Background tasks with an owner, turns of the event loop for connections, and log fields of a task.

All connections of a process share one event loop, so a connection that keeps it busy delays all others. A session
spends units of work from its turn: one for a fast command, more for a larger one or for a scan of a list. When the
turn is over it waits for the next one. All tasks of a session share its turns, so that a thousand concurrent
requests get no more of the loop than one. Counting units keeps simulations reproducible. The clock is a safety
net: if work takes longer than its units suggest, the turn ends as well, after that work.

A `TaskScope` ends its tasks with their owner, and logs every failure. `log_about` sets fields for every log line
of a task and of the tasks that it starts.
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

#: Tasks that `close` cancels per turn of the loop: each of them runs once more to end.
_CANCELS_PER_TURN = 128


class TaskScope:
    """The background tasks of one part. `close()` cancels and awaits them all.

    It logs the failure of a task and passes it to `on_failure`, which decides on the consequences.
    """

    def __init__(self, name: str, *, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._name = name
        self._on_failure = on_failure
        # A dict, not a set: cancellation in start order, so that a seed repeats exactly.
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
            trace = None if isinstance(failure, DiskFullError) else failure  # its message is sufficient
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
                await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, independent of its clock
            for task in pending[at : at + _CANCELS_PER_TURN]:
                task.cancel()
        left = [task for task in pending if not task.done()]
        if left:
            await asyncio.gather(*left, return_exceptions=True)


T = TypeVar("T")

#: Work that yields its spent units at each interruptible point: plain code, which its caller splits.
Work = Steps[None]

#: Units of one turn; one is about the cost of a small command, some microseconds.
UNITS = 256
#: Bytes per unit, for work that scans bytes.
UNIT_BYTES = 4096
#: List elements per unit, for work of about a microsecond per element.
UNIT_ELEMENTS = 8
#: Units of a lookup by name, including the answer for a missing one.
LOOK_UP_UNITS = 4
#: Units of opening or closing a producer or consumer.
OPEN_UNITS = 8
#: Maximum length of a turn in seconds, checked after each command.
LONGEST_S = 0.005


class Turns:
    """The turns of one connection."""

    def __init__(self, clock: Clock, units: int = UNITS) -> None:
        self._clock = clock
        self._units = units
        self._left = units
        self._began = clock.monotonic()
        self._next = asyncio.Lock()

    def begin(self) -> None:
        """Start a new turn, because the caller has just waited."""
        self._left = self._units
        self._began = self._clock.monotonic()

    @property
    def left(self) -> int:
        """Remaining units of the turn."""
        return self._left

    def spend(self, units: int = 1) -> bool:
        """Spend units; returns whether the turn is over."""
        self._left -= units
        return self._left <= 0 or self._clock.monotonic() - self._began > LONGEST_S

    async def next(self) -> None:
        """Wait for the next turn: after every other ready task, and after earlier waits of this connection."""
        waits = self._next.locked()
        async with self._next:
            if waits and not self.spend(0):  # an earlier waiter has begun a turn with units left
                return
            await self._clock.sleep(0)
            self.begin()

    async def through(self, work: Steps[T]) -> T:
        """Run work that yields at interruptible points, waiting for the next turn whenever one is over."""
        while True:
            try:
                units = next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            if self.spend(units):
                await self.next()

    async def run_all(self, works: Iterable[Coroutine[Any, Any, object]], units: int) -> list[Exception]:
        """Run all of these, `units` each, several concurrently per turn; returns the errors of failed ones.
        `works` creates each coroutine when its turn has started."""
        failures: list[Exception] = []
        size = max(1, self._units // units)
        rest = iter(works)
        while some := list(islice(rest, size)):
            done = await asyncio.gather(*some, return_exceptions=True)
            failures += [failure for failure in done if isinstance(failure, Exception)]
            await self.pause(units * len(some))
        return failures

    async def pause(self, units: int = 1) -> None:
        """Spend units outside of `Work`; wait if the turn is over."""
        if self.spend(units):
            await self.next()


_NOTHING: Mapping[str, str] = {}
_about: ContextVar[Mapping[str, str]] = ContextVar("log_about", default=_NOTHING)


def log_about(**fields: str) -> None:
    """Set the fields of this task's log lines (a topic, a connection), replacing the previous ones."""
    _about.set(fields)


def log_fields() -> Mapping[str, str]:
    """The fields for a log line now."""
    return _about.get()
