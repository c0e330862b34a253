"""The metadata store in this process: the shared core of the in-memory and the embedded driver.

The core decides every change immediately, in a plain function, and appends it to a change log; the client's
methods then wait until the log has made it durable. Clients never see data that is not durable: reads, conflicts
and watches wait for it too. The in-memory store has one core, and a client of it for each node; it does not
survive the process.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.meta.interfaces import ABSENT, Change, Creation, Lease, Listing, Versioned
from weir.meta.key_space import NO_LEASE, KeySpace, check_entry
from weir.meta.leases import HeldLease, usable_lease
from weir.meta.watch import RecentListings, WatchTracker
from weir.model.errors import MetaConflictError, MetaError, MetaHistoryLostError
from weir.runtime.interfaces import Clock, Runtime, Timer
from weir.runtime.tasks import TaskScope


class Waker(Protocol):
    """Receives a call for new changes."""

    def wake(self) -> None: ...


class ChangeLog(Protocol):
    """Makes decided changes durable, in order."""

    @property
    def durable(self) -> int:
        """The last durable revision."""

    async def wait_capacity(self) -> None:
        """Wait until the log can accept another change; MetaUnavailableError once it has failed."""

    def append(self, change: Change, *, leased: bool) -> None:
        """Queue the next change."""

    async def settled(self, revision: int) -> None:
        """Wait until the revision is durable, or raise MetaUnavailableError."""


class VolatileLog:
    """The log of the in-memory store: every change is durable at once."""

    def __init__(self, core: "LocalCore") -> None:
        self._core = core
        self.durable = core.state.revision

    async def wait_capacity(self) -> None:
        return

    def append(self, change: Change, *, leased: bool) -> None:
        self.durable = change.version
        self._core.published()

    async def settled(self, revision: int) -> None:
        return


@dataclass(slots=True)
class _Term:
    ttl_s: float
    ends_at: float


class LocalCore:
    """The store itself; outlives its clients. Leases end by the core's clock, not by those of their holders."""

    def __init__(self, clock: Clock, state: KeySpace | None = None) -> None:
        self.state = state if state is not None else KeySpace()
        self.log: ChangeLog = VolatileLog(self)
        self._clock = clock
        self._terms: dict[int, _Term] = {}
        self._last_lease = NO_LEASE
        self._timer: Timer | None = None
        self._feeds: dict[Waker, None] = {}

    # --- changes ----------------------------------------------------------------------------------------------

    def put(self, key: str, value: bytes, *, expect: int | None, lease_id: int) -> int:
        """Decide a put; returns its version, which becomes valid once it is durable."""
        self.expire()
        change = self.state.put(key, value, expect=expect, lease_id=lease_id)
        self.log.append(change, leased=lease_id != NO_LEASE)
        return change.version

    def delete(self, key: str, *, expect: int | None) -> None:
        self.expire()
        change = self.state.delete(key, expect=expect)
        if change is not None:
            self.log.append(change, leased=False)

    # --- the same, until they are durable ---------------------------------------------------------------------

    async def read(self, key: str) -> Versioned | None:
        self.expire()
        item = self.state.get(key)
        await self.log.settled(self.state.revision)
        return item

    async def put_durably(self, key: str, value: bytes, *, expect: int | None, lease_id: int) -> int:
        """Put the key and wait until the change is durable. The caller has waited for capacity."""
        try:
            version = self.put(key, value, expect=expect, lease_id=lease_id)
        except MetaConflictError:
            await self.log.settled(self.state.revision)
            raise
        await self.log.settled(version)
        return version

    async def delete_durably(self, key: str, *, expect: int | None) -> None:
        await self.log.wait_capacity()
        try:
            self.delete(key, expect=expect)
        finally:
            await self.log.settled(self.state.revision)

    async def create_durably(self, creations: Sequence[Creation]) -> list[int]:
        """Create the absent keys and wait until they are durable; their versions. The caller has waited for
        capacity."""
        for key, value in ((k, v) for each in creations for k, v in ((each.key, each.value), *each.beside)):
            check_entry(key, value)
        versions = [self._create(creation) for creation in creations]
        await self.log.settled(self.state.revision)
        return versions

    def _create(self, creation: Creation) -> int:
        self.expire()
        if self.state.get(creation.key) is not None:
            return ABSENT
        for key, value in creation.beside:
            self.put(key, value, expect=None, lease_id=NO_LEASE)
        return self.put(creation.key, creation.value, expect=ABSENT, lease_id=NO_LEASE)

    async def read_page(self, prefix: str, *, after: str, limit: int) -> Listing:
        self.expire()
        page = Listing(self.state.page(prefix, after=after, limit=limit), self.state.revision)
        await self.log.settled(page.revision)
        return page

    async def count(self, prefix: str) -> int:
        self.expire()
        found = self.state.count(prefix)
        await self.log.settled(self.state.revision)
        return found

    async def read_all(self, prefix: str) -> Listing:
        listing = self.listing(prefix)
        await self.log.settled(listing.revision)
        return listing

    async def revoke_durably(self, lease_id: int) -> None:
        self.revoke(lease_id)
        await self.log.settled(self.state.revision)

    # --- leases -----------------------------------------------------------------------------------------------

    def grant(self, ttl_s: float) -> int:
        self._last_lease += 1
        self.state.grant(self._last_lease)
        self._terms[self._last_lease] = _Term(ttl_s, self._clock.monotonic() + ttl_s)
        self._schedule()
        return self._last_lease

    def renew(self, lease_id: int) -> bool:
        """Restart the lease's TTL; false if it has expired."""
        self.expire()
        term = self._terms.get(lease_id)
        if term is None:
            return False
        term.ends_at = self._clock.monotonic() + term.ttl_s
        return True

    def revoke(self, lease_id: int) -> None:
        if self._terms.pop(lease_id, None) is not None:
            self._drop(lease_id)

    def drop_all_leases(self) -> None:
        """Delete every leased key, since the holders no longer run."""
        self._terms.clear()
        for lease_id in self.state.lease_ids():
            self._drop(lease_id)

    def expire(self) -> None:
        """End every expired lease. Also called before each change, so that correctness does not depend on
        timers."""
        now = self._clock.monotonic()
        over = [lease_id for lease_id, term in self._terms.items() if term.ends_at <= now]
        for lease_id in over:
            del self._terms[lease_id]
            self._drop(lease_id)

    def _drop(self, lease_id: int) -> None:
        for change in self.state.drop_lease(lease_id):
            self.log.append(change, leased=False)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        earliest = min((term.ends_at for term in self._terms.values()), default=math.inf)
        if earliest < math.inf:
            # Slightly late rather than early, or rounding would make it spin.
            delay_s = max(0.0, earliest - self._clock.monotonic()) + 0.001
            self._timer = self._clock.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.expire()
        self._schedule()

    def stop(self) -> None:
        """Stop the timer; leases no longer expire."""
        if self._timer is not None:
            self._timer.cancel()
        self._terms.clear()

    # --- watches ----------------------------------------------------------------------------------------------

    def add_feed(self, feed: Waker) -> None:
        self._feeds[feed] = None

    def remove_feed(self, feed: Waker) -> None:
        self._feeds.pop(feed, None)

    def published(self) -> None:
        """Wake the watches, because more changes became durable."""
        for feed in self._feeds:
            feed.wake()

    def listing(self, prefix: str) -> Listing:
        self.expire()
        return Listing(self.state.under(prefix), self.state.revision)


class Feed:
    """One watch on a core."""

    def __init__(self, core: LocalCore, prefix: str, since: int, known: list[str] | None) -> None:
        """`known`: the keys that the reader knows; None: the watch ends when the history is lost."""
        self._core = core
        self._prefix = prefix
        self._tracker = WatchTracker(since, known)
        self._woken = asyncio.Event()
        self._closed = asyncio.Event()
        self._waiting = False

    def wake(self) -> None:
        """Wake for durable changes. Changes of other prefixes do not run a waiting watch, as there may be
        thousands."""
        if self._waiting:
            durable = self._core.log.durable
            if self._core.state.changes(self._prefix, after=self._tracker.position, upto=durable) == []:
                self._tracker.settle(durable)
                return
        self._woken.set()

    def close(self) -> None:
        self._closed.set()
        self._woken.set()

    async def changes(self) -> AsyncIterator[Change]:
        """Every durable change from now on, until closed."""
        self._core.add_feed(self)
        try:
            while not self._closed.is_set():
                self._woken.clear()
                for change in await self._take():
                    yield change
                    if self._closed.is_set():
                        return
                self._waiting = True
                await self._woken.wait()
                self._waiting = False
        finally:
            self._core.remove_feed(self)

    async def _take(self) -> list[Change]:
        durable = self._core.log.durable
        changes = self._core.state.changes(self._prefix, after=self._tracker.position, upto=durable)
        if changes is None:
            if not self._tracker.can_resync:
                raise MetaHistoryLostError(f"the store no longer has all changes under {self._prefix}")
            listing = self._core.listing(self._prefix)
            await self._core.log.settled(listing.revision)
            return self._tracker.resync(listing)
        news = [change for change in changes if self._tracker.admit(change)]
        self._tracker.settle(durable)
        return news


class LocalMeta:
    """A node's client of a core; implements `MetaStore`."""

    def __init__(self, core: LocalCore, runtime: Runtime) -> None:
        self._core = core
        self._clock = runtime.clock
        self._tasks = TaskScope("meta")
        self._listed = RecentListings()
        self._feeds: dict[Feed, None] = {}
        self._closed = False

    @property
    def core(self) -> LocalCore:
        """The core of this client, for a server to other processes."""
        return self._core

    async def get(self, key: str) -> Versioned | None:
        self._check_open()
        return await self._core.read(key)

    async def put(self, key: str, value: bytes, *, expect: int | None = None, lease: Lease | None = None) -> int:
        self._check_open()
        await self._core.log.wait_capacity()
        lease_id = usable_lease(lease, key)
        return await self._core.put_durably(key, value, expect=expect, lease_id=lease_id)

    async def delete(self, key: str, *, expect: int | None = None) -> None:
        self._check_open()
        await self._core.delete_durably(key, expect=expect)

    async def create_many(self, creations: Sequence[Creation]) -> Sequence[int]:
        self._check_open()
        await self._core.log.wait_capacity()
        return await self._core.create_durably(creations)

    async def page(self, prefix: str, *, after: str = "", limit: int) -> Listing:
        self._check_open()
        return await self._core.read_page(prefix, after=after, limit=limit)

    async def count(self, prefix: str) -> int:
        self._check_open()
        return await self._core.count(prefix)

    async def list(self, prefix: str) -> Listing:
        self._check_open()
        listing = await self._core.read_all(prefix)
        self._listed.remember(prefix, listing)
        return listing

    def watch(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        self._check_open()
        known = self._core.state.keys_at(prefix, since)
        if known is None:
            known = self._listed.keys(prefix, since)
        feed = Feed(self._core, prefix, since, known or [])
        return self._follow(feed)

    def changes(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        self._check_open()
        return self._follow(Feed(self._core, prefix, since, None))

    async def _follow(self, feed: Feed) -> AsyncIterator[Change]:
        if self._closed:
            return
        self._feeds[feed] = None
        try:
            async for change in feed.changes():
                yield change
        finally:
            self._feeds.pop(feed, None)

    async def lease(self, ttl_s: float) -> Lease:
        return self._grant(ttl_s)

    def _grant(self, ttl_s: float) -> HeldLease:
        self._check_open()
        asked_at = self._clock.monotonic()
        lease_id = self._core.grant(ttl_s)

        async def renew() -> bool:
            return self._core.renew(lease_id)

        async def revoke() -> None:
            await self._core.revoke_durably(lease_id)

        lease = HeldLease(self._clock, lease_id, ttl_s=ttl_s, asked_at=asked_at, renew=renew, revoke=revoke)
        if ttl_s < math.inf:
            self._tasks.spawn(lease.keep(), f"lease-{lease_id}")
        return lease

    async def close(self) -> None:
        self._closed = True
        for feed in list(self._feeds):
            feed.close()
        await self._tasks.close()

    def _check_open(self) -> None:
        if self._closed:
            raise MetaError("this metadata client is closed")


#: The shared state; it outlives the nodes whose clients use it, and its clock ends their leases.
MemoryCore = LocalCore
#: One node's client: its own tasks renew its leases, so they end when the node dies.
MemoryMeta = LocalMeta
