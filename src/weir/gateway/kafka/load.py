"""What a session has taken and not answered: it stops reading while that is too much."""

import asyncio

from weir.gateway.kafka.settings import SessionLimits


class Load:
    """Requests under way on one connection, and their bytes."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self.requests = 0
        self.bytes = 0
        self._changed: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        return self.requests >= self._limits.max_requests or self.bytes >= self._limits.max_pending_bytes

    async def room(self) -> None:
        """Wait until one more may be taken; its one caller is the session's receive loop."""
        while self.full:
            await self._change()

    async def settled(self) -> None:
        """Wait until nothing is under way; only once the receive loop takes no more."""
        while self.requests:
            await self._change()

    def take(self, size: int) -> None:
        self.requests += 1
        self.bytes += size

    def give(self, size: int) -> None:
        self.requests -= 1
        self.bytes -= size
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _change(self) -> None:
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)
