"""Write freeze of a node, for a consistent copy of the cluster: pending writes complete, new ones wait.

A write depends only on writes that were acknowledged before it. So if all nodes freeze at the same time, a copy of
the cluster is consistent: it has everything that was acknowledged before the freeze, and no later effects.

The freeze includes changes of the metadata; reads, watches and leases continue.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Protocol
from weakref import WeakSet

from weir.meta.interfaces import Change, Creation, Lease, Listing, MetaStore, Versioned
from weir.model.ids import EntryId, LedgerId


class HeldWriter(Protocol):
    """What `weir.ledger.writer.LedgerWriter` offers."""

    ledger_id: LedgerId

    @property
    def last_confirmed(self) -> EntryId: ...

    @property
    def ended(self) -> bool: ...


class WriteHold:
    """One per ledger client. `on`: writes wait. `keeps`: no ledger is deleted; whoever would has it done later."""

    def __init__(self) -> None:
        self.on = False
        self.keeps = False
        self._writers: WeakSet[HeldWriter] = WeakSet()
        self._waiting: list[Callable[[], None]] = []
        self._over = asyncio.Event()
        self._over.set()
        #: Ledgers that would have been deleted.
        self.postponed: dict[LedgerId, None] = {}

    def join(self, writer: HeldWriter) -> None:
        self._writers.add(writer)

    def ends(self) -> Iterator[tuple[LedgerId, EntryId]]:
        """Of each ledger that is written to here: its last acknowledged entry."""
        return ((one.ledger_id, one.last_confirmed) for one in list(self._writers) if not one.ended)

    def begin(self) -> None:
        self.on = self.keeps = True
        self._over.clear()

    def end(self) -> None:
        """Writes go on, those that waited first."""
        self.on = False
        self._over.set()
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def let_go(self) -> list[LedgerId]:
        """Ledgers may be deleted again; those that would have been."""
        self.keeps = False
        postponed, self.postponed = list(self.postponed), {}
        return postponed

    def when_over(self, go_on: Callable[[], None]) -> None:
        self._waiting.append(go_on)

    async def over(self) -> None:
        """Wait while writes wait."""
        while self.on:
            await self._over.wait()


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
