"""Counts the commands in flight on one connection: the session stops reading while they exceed its limits."""

from weir.gateway.pulsar.settings import SessionLimits
from weir.runtime.waiters import Waiters


class Load:
    """Requests and sends in flight on one connection."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self.requests = 0
        self.publishes = 0
        self.publish_bytes = 0
        self._change = Waiters()

    @property
    def full(self) -> bool:
        limits = self._limits
        return (
            self.publishes >= limits.max_publishes
            or self.publish_bytes >= limits.max_publish_bytes
            or self.requests >= limits.max_requests
        )

    async def wait_capacity(self) -> None:
        """Wait until the limits permit one more; only the session's receive loop calls this."""
        while self.full:
            await self._change.wait()

    async def settled(self) -> None:
        """Wait until nothing is in flight; call it only after the receive loop has stopped."""
        while self.publishes or self.requests:
            await self._change.wait()

    def request(self) -> None:
        self.requests += 1

    def answered(self, count: int = 1) -> None:
        self.requests -= count
        self._change.wake()

    def publish(self, size: int, count: int = 1) -> None:
        self.publishes += count
        self.publish_bytes += size

    @property
    def publishes_left(self) -> tuple[int, int]:
        """The sends, and their bytes, that the limits still permit."""
        limits = self._limits
        return limits.max_publishes - self.publishes, limits.max_publish_bytes - self.publish_bytes

    def published(self, size: int, count: int = 1) -> None:
        self.publishes -= count
        self.publish_bytes -= size
        self._change.wake()
