"""Locks in the metadata, held under a lease: free again when their holder dies.

They keep several nodes from doing the same work. Nothing unsafe happens when two believe to hold one: every
change they make is a compare-and-set.
"""

from weir.meta.interfaces import ABSENT, Lease, MetaStore
from weir.model.errors import LeaseExpiredError, MetaConflictError, MetaError


class LeasedLocks:
    """The locks of one holder, all under one lease, which is made when first needed."""

    def __init__(self, meta: MetaStore, owner: str, *, ttl_s: float) -> None:
        self._meta = meta
        self._owner = owner.encode()
        self._ttl_s = ttl_s
        self._lease: Lease | None = None

    @property
    def alive(self) -> bool:
        """Whether the locks taken so far are still held."""
        return self._lease is not None and self._lease.alive

    async def take(self, key: str) -> bool:
        """Take the lock; False if someone holds it. A MetaError if the store does not answer."""
        if self._lease is None or not self._lease.alive:
            self._lease = await self._meta.lease(self._ttl_s)
        try:
            await self._meta.put(key, self._owner, expect=ABSENT, lease=self._lease)
        except (MetaConflictError, LeaseExpiredError):
            return False
        return True

    async def release(self, key: str) -> None:
        """Give it back; if the store does not answer, the lease's end does."""
        try:
            found = await self._meta.get(key)
            if found is not None and found.value == self._owner:
                await self._meta.delete(key, expect=found.version)
        except MetaError:
            await self.close()

    async def close(self) -> None:
        """Give everything back."""
        if self._lease is not None:
            lease, self._lease = self._lease, None
            try:
                await lease.revoke()
            except MetaError:
                return  # it runs out by itself
