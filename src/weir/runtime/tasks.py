"""Background tasks with an owner: started by one part, ended with it, never failing unseen."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from weir.model.errors import DiskFullError

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
