"""Receives at other brokers: each waits there for a while, and what it brings belongs to the client that asked.

A call cannot be taken back from another broker. So when its client has been served before, or has hung up, the
poll goes on, and what it brings is for the client's next receive.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from weir.model.errors import WeirError
from weir.runtime.tasks import TaskScope

#: The client, its topic and group, and the broker that is asked.
Key: TypeAlias = tuple[str, str, str, str]
#: Polls that may be under way or left behind; of more, the oldest are forgotten: what they bring is visible to
#: others after its time.
_MOST = 4096


class Polls:
    """Of all clients of one broker."""

    def __init__(self) -> None:
        self._tasks = TaskScope("rocketmq polls")
        self._under_way: dict[Key, asyncio.Task[list[Any] | WeirError]] = {}

    def begin(self, key: Key, poll: Callable[[], Coroutine[Any, Any, list[Any]]]) -> None:
        """Unless one like it is under way, or has brought something."""
        if key not in self._under_way:
            while len(self._under_way) >= _MOST:
                del self._under_way[next(iter(self._under_way))]
            self._under_way[key] = self._tasks.spawn(_outcome(poll()), "poll")

    async def wait(self, keys: Sequence[Key], others: "Sequence[asyncio.Task[Any]]", timeout_s: float) -> None:
        """Until one of them has ended."""
        tasks = [self._under_way[key] for key in keys if key in self._under_way]
        await asyncio.wait([*tasks, *others], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def take(self, keys: Sequence[Key]) -> tuple[list[Any], WeirError | None]:
        """What those have brought that ended, and why one failed."""
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
