"""Counts the requests in flight on one connection: the session stops reading while they exceed its limits."""

from weir.gateway.kafka.settings import SessionLimits
from weir.runtime.budgets import RequestShare
from weir.runtime.waiters import Waiters


class Load:
    """Requests in flight on one connection, and their bytes."""

    def __init__(self, limits: SessionLimits, request_share: RequestShare) -> None:
        """`request_share`: this connection's share of the request bytes of all connections."""
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
        """Wait until the limits permit one more request; only the session's receive loop calls this."""
        while self.full:
            await self._change.wait()

    async def settled(self) -> None:
        """Wait until no request is in flight; call it only after the receive loop has stopped."""
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
