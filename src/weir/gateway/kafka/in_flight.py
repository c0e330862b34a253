"""What a session has taken and not answered: it stops reading while that is too much."""

from weir.gateway.kafka.settings import SessionLimits
from weir.runtime.budgets import RequestShare
from weir.runtime.waiters import Waiters


class Load:
    """Requests under way on one connection, and their bytes."""

    def __init__(self, limits: SessionLimits, request_share: RequestShare) -> None:
        """`request_share`: of what all connections together may have."""
        self._limits = limits
        self._request_share = request_share
        self.requests = 0
        self.bytes = 0
        self._change = Waiters()

    @property
    def full(self) -> bool:
        limits = self._limits
        if self.requests >= limits.max_requests or self.bytes >= limits.max_pending_bytes:
            return True
        return self._request_share.exhausted and self.requests > 0

    async def wait_capacity(self) -> None:
        """Wait until one more may be taken; its one caller is the session's receive loop."""
        while self.full:
            await self._change.wait()

    async def settled(self) -> None:
        """Wait until nothing is under way; only once the receive loop takes no more."""
        while self.requests:
            await self._change.wait()

    def acquire(self, size: int) -> None:
        self.requests += 1
        self.bytes += size
        self._request_share.acquire(size)

    def release(self, size: int) -> None:
        self.requests -= 1
        self.bytes -= size
        self._request_share.release(size)
        self._change.wake()
