"""What a session has accepted and not finished: it stops reading while that is too much."""

import asyncio

from weir.gateway.pulsar.settings import SessionLimits


class Load:
    """Requests and sends under way on one connection."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self.requests = 0
        self.publishes = 0
        self.publish_bytes = 0
        self._changed: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        limits = self._limits
        return (
            self.publishes >= limits.max_publishes
            or self.publish_bytes >= limits.max_publish_bytes
            or self.requests >= limits.max_requests
        )

    async def wait_capacity(self) -> None:
        """Wait until one more may be accepted; its one caller is the session's receive loop."""
        while self.full:
            await self._change()

    async def settled(self) -> None:
        """Wait until nothing is under way; only once the receive loop accepts no more."""
        while self.publishes or self.requests:
            await self._change()

    def request(self) -> None:
        self.requests += 1

    def answered(self, count: int = 1) -> None:
        self.requests -= count
        self._wake()

    def publish(self, size: int) -> None:
        self.publishes += 1
        self.publish_bytes += size

    def published(self, size: int, count: int = 1) -> None:
        self.publishes -= count
        self.publish_bytes -= size
        if self._changed is not None:
            self._wake()

    async def _change(self) -> None:
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
