"""Reads that many ask for at once: one answers all who asked before it began."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from weir.runtime.tasks import TaskScope

T = TypeVar("T")


class SharedReads(Generic[T]):
    """Whoever asks gets an answer that was read after the question."""

    def __init__(self, read: Callable[[str], Awaitable[T]], name: str) -> None:
        self._read = read
        self._tasks = TaskScope(name)
        self._next: dict[str, asyncio.Future[T]] = {}
        self._under_way: dict[str, asyncio.Future[T]] = {}

    async def read(self, key: str) -> T:
        waiting = self._next.get(key)
        if waiting is None:
            waiting = self._next[key] = asyncio.get_running_loop().create_future()
            if key not in self._under_way:
                self._begin(key)
        return await asyncio.shield(waiting)

    def _begin(self, key: str) -> None:
        self._under_way[key] = self._next.pop(key)
        self._tasks.spawn(self._run(key), key)

    async def _run(self, key: str) -> None:
        answer = self._under_way[key]
        try:
            found = await self._read(key)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except Exception as failure:
            if not answer.done():
                answer.set_exception(failure)
                answer.exception()  # those who asked may have gone
        else:
            if not answer.done():
                answer.set_result(found)
        finally:
            del self._under_way[key]
            if key in self._next:
                self._begin(key)

    async def close(self) -> None:
        await self._tasks.close()
