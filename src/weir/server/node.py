"""The life cycle of a process's parts: a start is complete or undone."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack


class Node(ABC):
    """`start`, then `close`. `_start` registers resources on `_started`, which closes them in reverse order."""

    def __init__(self) -> None:
        self._started = AsyncExitStack()

    async def start(self) -> None:
        """Start; a failure undoes all of it."""
        try:
            await self._start()
        except BaseException:
            await self._started.aclose()
            raise

    @abstractmethod
    async def _start(self) -> None: ...

    async def close(self) -> None:
        """Reject new requests, answer accepted ones, and release all resources."""
        await self._started.aclose()

    async def failed(self) -> None:
        """Wait until the node has failed for good and needs a restart. By default it never does: its processes are
        restarted, and remote resources recover."""
        await asyncio.Event().wait()
