"""Long polls at other brokers; their messages belong to the client that started the poll.

A call to another broker cannot be cancelled. If the client's receive ends first, the poll continues, and the
client's next receive returns its messages.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from weir.model.errors import WeirError
from weir.runtime.tasks import TaskScope

#: Client, topic, group, and the remote broker.
Key: TypeAlias = tuple[str, str, str, str]
#: Maximum running or abandoned polls. Beyond it the oldest are dropped; their messages become visible again after
#: their invisible duration.
_MOST = 4096


class Polls:
    """Remote polls of all clients of one broker."""

    def __init__(self) -> None:
        self._tasks = TaskScope("rocketmq polls")
        self._under_way: dict[Key, asyncio.Task[list[Any] | WeirError]] = {}

    def begin(self, key: Key, poll: Callable[[], Coroutine[Any, Any, list[Any]]]) -> None:
        """Start a poll, unless one with this key is running or has results."""
        if key not in self._under_way:
            while len(self._under_way) >= _MOST:
                del self._under_way[next(iter(self._under_way))]
            self._under_way[key] = self._tasks.spawn(_outcome(poll()), "poll")

    async def wait(self, keys: Sequence[Key], others: "Sequence[asyncio.Task[Any]]", timeout_s: float) -> None:
        """Wait until one poll or task has ended, or until the timeout."""
        tasks = [self._under_way[key] for key in keys if key in self._under_way]
        await asyncio.wait([*tasks, *others], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def take(self, keys: Sequence[Key]) -> tuple[list[Any], WeirError | None]:
        """Remove the finished polls; returns their messages, and the error of a failed one."""
        found: list[Any] = []
        failed: WeirError | None = None
        for key in keys:
            task = self._under_way.get(key)
            if task is None or not task.done():
                continue
            del self._under_way[key]
            outcome: list[Any] | WeirError = [] if task.cancelled() else task.result()
            if isinstance(outcome, WeirError):
                failed = outcome
            else:
                found += outcome
        return found, failed

    def client_gone(self, client: str) -> None:
        for key in [key for key in self._under_way if key[0] == client]:
            del self._under_way[key]

    async def close(self) -> None:
        await self._tasks.close()


async def _outcome(poll: Awaitable[list[Any]]) -> list[Any] | WeirError:
    try:
        return await poll
    except WeirError as failed:
        return failed
