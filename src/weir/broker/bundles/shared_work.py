"""Work that several may wait for, and that goes on when they do not; and many small pieces of it, a few at a
time."""

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import islice
from typing import Any, Generic, TypeVar

from weir.model.errors import NotOwnerError, WeirError
from weir.runtime.tasks import TaskScope

K = TypeVar("K")
T = TypeVar("T")


class SharedWork(Generic[K]):
    """One piece of work at a time for each key."""

    def __init__(self, tasks: TaskScope) -> None:
        self._tasks = tasks
        self._under_way: dict[K, asyncio.Task[WeirError | None]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._under_way

    def begin(self, key: K, work: Coroutine[Any, Any, None]) -> "asyncio.Task[WeirError | None]":
        """There must be none under way for the key."""
        task = self._under_way[key] = self._tasks.spawn(_outcome(work), str(key))
        task.add_done_callback(lambda _: self._under_way.pop(key))
        return task

    def under_way(self, key: K) -> "asyncio.Task[WeirError | None] | None":
        return self._under_way.get(key)

    @staticmethod
    async def ended(task: "asyncio.Task[WeirError | None]") -> None:
        """Wait for it, and raise what it raised. Whoever gives up waiting does not end it."""
        await asyncio.wait([task])
        if task.cancelled():
            raise NotOwnerError("the broker is going down")
        failure = task.result()
        if failure is not None:
            raise failure


async def _outcome(work: Coroutine[Any, Any, None]) -> WeirError | None:
    """A refusal is an answer for who waits, not the failure of a task."""
    try:
        await work
    except WeirError as refused:
        return refused
    return None


async def gathered(works: Iterable[Coroutine[Any, Any, T]], at_once: int) -> list[T]:
    """What they answer, so many of them at a time."""
    left, answers = iter(works), list[T]()
    while some := list(islice(left, at_once)):
        answers += await asyncio.gather(*some)
    return answers
