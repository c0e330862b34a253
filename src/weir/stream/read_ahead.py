"""Read-ahead of old batches for sequential readers.

A reader far behind the tail requests the next batches only after it has processed the last ones. A read that
continues where another ended starts a run: a window of batches is read while the reader is busy. The run keeps
them until the reader has moved past them, so batches that did not fit one response are not read again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from weir.model.batch import Batch
from weir.model.errors import WeirError
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.runtime.waiters import Waiters

log = logging.getLogger(__name__)

#: Size of one read of a run, smaller than the window: a reader waits for its first batch only.
_CHUNK_BYTES = 1024 * 1024
#: Maximum number of runs per stream.
_RUNS_PER_STREAM = 16
#: A run is dropped when its reader has not read for this time.
_PATIENCE_S = 5.0

Read = Callable[[int, int], Awaitable[list[Batch]]]


class _Run:
    """Consecutive batches from the position of one reader."""

    __slots__ = ("_growth", "batches", "handed", "next", "owner", "size", "task", "used_at")

    def __init__(self, owner: "ReadAhead", offset: int) -> None:
        self.owner = owner
        self.batches: deque[Batch] = deque()
        self.size = 0
        #: Bytes of the batches that the reader got and has not moved past.
        self.handed = 0
        #: Offset of the next read.
        self.next = offset
        self.task: asyncio.Task[None] | None = None
        self.used_at = 0.0
        self._growth = Waiters()

    @property
    def start(self) -> int:
        return self.batches[0].base_offset if self.batches else self.next

    async def grown(self) -> None:
        """Wait until the run has more batches, or its reading has ended."""
        await self._growth.wait()

    def wake(self) -> None:
        self._growth.wake()


class AheadBudget:
    """Memory limit for the read-ahead of all streams of a broker; unused runs are dropped after a timeout."""

    def __init__(self, clock: Clock, limit_bytes: int) -> None:
        self._clock = clock
        self._limit = limit_bytes
        self._runs: dict[_Run, None] = {}
        self._sweeping = False
        self.size_bytes = 0

    @property
    def has_capacity(self) -> bool:
        return self.size_bytes < self._limit

    def use(self, run: _Run) -> None:
        """Record that the run's reader has read."""
        run.used_at = self._clock.monotonic()
        self._runs[run] = None
        if not self._sweeping:
            self._sweeping = True
            self._clock.call_later(_PATIENCE_S, self._sweep)

    def forget(self, run: _Run) -> None:
        self._runs.pop(run, None)
        self.size_bytes -= run.size

    def _sweep(self) -> None:
        late = self._clock.monotonic() - _PATIENCE_S
        for run in [run for run in self._runs if run.used_at <= late]:
            run.owner.drop(run)
        self._sweeping = bool(self._runs)
        if self._sweeping:
            self._clock.call_later(_PATIENCE_S, self._sweep)


class ReadAhead:
    """The runs of one stream. `read` returns old batches from an offset on; empty if the tail has them."""

    def __init__(self, name: str, budget: AheadBudget, window_bytes: int, read: Read) -> None:
        self._budget = budget
        self._window = window_bytes
        self._read = read
        self._runs: dict[_Run, None] = {}
        self._tasks = TaskScope(f"{name} ahead")

    def cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        """The result of `read` if it was read ahead; None otherwise."""
        run = self._run_at(offset)
        return None if run is None or offset >= run.next else self._take(run, offset, max_bytes)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        run = self._run_at(offset)
        if run is None:
            return await self._directly(offset, max_bytes)
        self._move(run, offset)
        self._fill(run)
        while run.next <= offset and run.task is not None:
            await run.grown()
        if run not in self._runs or not run.start <= offset < run.next:  # dropped, no room, a failure, moved on
            self.drop(run)
            return await self._directly(offset, max_bytes)
        return self._take(run, offset, max_bytes)

    def drop(self, run: _Run) -> None:
        """Drop a run; its reader reads directly."""
        if run in self._runs:
            del self._runs[run]
            self._budget.forget(run)
            if run.task is not None:
                run.task.cancel()
                run.task = None  # a task that is cancelled before its start never runs its `finally`
            run.wake()

    async def close(self) -> None:
        for run in list(self._runs):
            self.drop(run)
        await self._tasks.close()

    async def _directly(self, offset: int, max_bytes: int) -> list[Batch]:
        found = await self._read(offset, max_bytes)
        if found and self._run_at(found[-1].end_offset) is None:
            self._begin(found[-1].end_offset)
        return found

    def _run_at(self, offset: int) -> _Run | None:
        for run in self._runs:
            if run.start <= offset <= run.next:
                return run
        return None

    def _begin(self, offset: int) -> None:
        """Start a run at the position where a reader would continue; reading starts with its next read."""
        if len(self._runs) >= _RUNS_PER_STREAM:
            self.drop(min(self._runs, key=lambda run: run.used_at))
        run = _Run(self, offset)
        self._runs[run] = None
        self._budget.use(run)

    def _move(self, run: _Run, offset: int) -> None:
        """Drop the batches before the offset: the reader has moved past them."""
        self._budget.use(run)
        run.handed = 0
        while run.batches and run.batches[0].end_offset <= offset:
            size = len(run.batches.popleft())
            run.size -= size
            self._budget.size_bytes -= size

    def _take(self, run: _Run, offset: int, max_bytes: int) -> list[Batch]:
        self._move(run, offset)
        found: list[Batch] = []
        for batch in run.batches:
            if found and run.handed + len(batch) > max_bytes:
                break
            found.append(batch)
            run.handed += len(batch)
        self._fill(run)
        return found

    def _fill(self, run: _Run) -> None:
        if run.task is None and self._wants_more(run):
            run.task = self._tasks.spawn(self._go_on(run), "read")

    def _wants_more(self, run: _Run) -> bool:
        return run.size - run.handed < self._window and self._budget.has_capacity and run in self._runs

    async def _go_on(self, run: _Run) -> None:
        try:
            while self._wants_more(run):
                found = await self._read(run.next, _CHUNK_BYTES)
                if not found or run not in self._runs:
                    break
                size = sum(map(len, found))
                run.batches.extend(found)
                run.next = found[-1].end_offset
                run.size += size
                self._budget.size_bytes += size
                run.wake()
        except WeirError as failure:
            log.debug("read-ahead ended: %s", failure)  # a direct read of these batches raises the error
        finally:
            run.task = None
            run.wake()
