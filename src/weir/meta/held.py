"""A metadata store whose changes wait while this node's writes are held; looking, watching and leases go on."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from weir.meta.interfaces import Change, Creation, Lease, Listing, MetaStore, Versioned


class HeldMeta:
    """Fills `MetaStore`. `over`: waits while nothing may be written."""

    def __init__(self, store: MetaStore, over: Callable[[], Awaitable[None]]) -> None:
        #: For what must be written all the same.
        self.store = store
        self._over = over

    async def get(self, key: str) -> Versioned | None:
        return await self.store.get(key)

    async def put(self, key: str, value: bytes, *, expect: int | None = None, lease: Lease | None = None) -> int:
        await self._over()
        return await self.store.put(key, value, expect=expect, lease=lease)

    async def delete(self, key: str, *, expect: int | None = None) -> None:
        await self._over()
        await self.store.delete(key, expect=expect)

    async def create_many(self, creations: Sequence[Creation]) -> Sequence[int]:
        await self._over()
        return await self.store.create_many(creations)

    async def list(self, prefix: str) -> Listing:
        return await self.store.list(prefix)

    async def page(self, prefix: str, *, after: str = "", limit: int) -> Listing:
        return await self.store.page(prefix, after=after, limit=limit)

    async def count(self, prefix: str) -> int:
        return await self.store.count(prefix)

    def watch(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        return self.store.watch(prefix, since=since)

    def changes(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        return self.store.changes(prefix, since=since)

    async def lease(self, ttl_s: float) -> Lease:
        return await self.store.lease(ttl_s)

    async def close(self) -> None:
        await self.store.close()
