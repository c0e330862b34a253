"""What every part of a process has that is started and ended: all of it, or nothing."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack


class Node(ABC):
    """`start`, then `close`. What `_start` has made is put on `_started`, and ends in the opposite order."""

    def __init__(self) -> None:
        self._started = AsyncExitStack()

    async def start(self) -> None:
        """If anything fails, all is undone."""
        try:
            await self._start()
        except BaseException:
            await self._started.aclose()
            raise

    @abstractmethod
    async def _start(self) -> None: ...

    async def close(self) -> None:
        """Take nothing new, answer what was taken, and let go of everything."""
        await self._started.aclose()

    async def failed(self) -> None:
        """Wait until it failed for good, and is to be closed and started anew. Never, if it says nothing else:
        what dies is started again, and what others have comes back."""
        await asyncio.Event().wait()
