"""A metadata store whose leader can be lost, and a client of it with a bad connection, for simulation."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from weir.meta.interfaces import Change, Creation, Lease, Listing, MetaStore, Versioned
from weir.meta.leases import HeldLease
from weir.meta.local import LocalCore
from weir.model.errors import InvariantError, MetaError, MetaUnavailableError
from weir.runtime.interfaces import Runtime

T = TypeVar("T")

#: How often something that waits for an outage to end looks again.
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class MetaFaults:
    """What goes wrong, from now on. Chances are per call."""

    #: Every request and every reply takes up to this long on its way.
    delay_s: float = 0.0
    #: The request never reaches the store.
    lose_request: float = 0.0
    #: The store does what was asked, and the reply is lost.
    lose_reply: float = 0.0
    #: Nothing reaches the store; watches stand still and catch up when it is over.
    outage: bool = False
    #: Changes reach watches up to this much later.
    watch_delay_s: float = 0.0
    #: Lease renewals do not reach the store, though all else does: leases run out.
    starve_leases: bool = False
    #: The store has no leader: what is asked is done when there is one again, or given up before; some of that is
    #: done nevertheless, when nobody waits for it any more.
    leaderless: bool = False


_NONE = MetaFaults()
#: Of what is asked while there is no leader: so much is given up by who asked, after at most so long; half of that
#: happens nevertheless.
_GIVEN_UP = 0.6
_GIVE_UP_S = 1.5
#: What was given up may happen so long after there is a leader again: it waited with who had been cut off.
_LATE_S = 1.0


class ElectedCore(LocalCore):
    """A core that can lose its leader: no lease ends while there is none, and all begin anew with the next one."""

    leaderless = False

    def lose_leader(self) -> None:
        self.leaderless = True

    def elect(self) -> None:
        if not self.leaderless:
            return
        self.leaderless = False
        for term in self._terms.values():
            term.ends_at = self._clock.monotonic() + term.ttl_s
        self._schedule()

    def expire(self) -> None:
        if not self.leaderless:
            super().expire()

    def _schedule(self) -> None:
        if not self.leaderless:
            super()._schedule()


class FaultyMeta:
    """Fills `MetaStore` by one that works. `faults` may be replaced at any moment."""

    def __init__(
        self, inner: MetaStore, runtime: Runtime, faults: MetaFaults = _NONE, *, rng: Random | None = None
    ) -> None:
        self.faults = faults
        self._inner = inner
        self._clock = runtime.clock
        self._rng = runtime.rng if rng is None else rng
        self._outage_until = 0.0
        self._closed = False
        #: The ids of all leases that were ever held by way of it.
        self.leases: list[int] = []

    def outage_for(self, seconds: float) -> None:
        """Be out of reach for a while."""
        self._outage_until = max(self._outage_until, self._clock.monotonic() + seconds)

    @property
    def out(self) -> bool:
        """Whether nothing reaches the store now."""
        return self.faults.outage or self._clock.monotonic() < self._outage_until

    async def get(self, key: str) -> Versioned | None:
        return await self._call(lambda: self._inner.get(key))

    async def put(self, key: str, value: bytes, *, expect: int | None = None, lease: Lease | None = None) -> int:
        return await self._call(lambda: self._inner.put(key, value, expect=expect, lease=lease))

    async def delete(self, key: str, *, expect: int | None = None) -> None:
        await self._call(lambda: self._inner.delete(key, expect=expect))

    async def create_many(self, creations: Sequence[Creation]) -> Sequence[int]:
        return await self._call(lambda: self._inner.create_many(creations))

    async def page(self, prefix: str, *, after: str = "", limit: int) -> Listing:
        return await self._call(lambda: self._inner.page(prefix, after=after, limit=limit))

    async def count(self, prefix: str) -> int:
        return await self._call(lambda: self._inner.count(prefix))

    async def list(self, prefix: str) -> Listing:
        return await self._call(lambda: self._inner.list(prefix))

    def watch(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        return self._late(self._inner.watch(prefix, since=since))

    def changes(self, prefix: str, *, since: int) -> AsyncIterator[Change]:
        return self._late(self._inner.changes(prefix, since=since))

    async def _late(self, changes: AsyncIterator[Change]) -> AsyncIterator[Change]:
        async for change in changes:
            await self._travel(self.faults.watch_delay_s)
            while self.out and not self._closed:
                await self._clock.sleep(_LOOK_S)
            if self._closed:
                return
            yield change

    async def lease(self, ttl_s: float) -> Lease:
        granted: list[HeldLease] = []

        async def grant() -> HeldLease:
            lease = await self._inner.lease(ttl_s)
            if not isinstance(lease, HeldLease):
                raise InvariantError("every driver's leases are HeldLeases")
            granted.append(lease)
            self.leases.append(lease.lease_id)
            return lease

        try:
            lease = await self._call(grant, late=False)
        except MetaUnavailableError:
            for unknown in granted:
                unknown.end()  # nobody holds it, so nobody renews it
            raise
        self._hinder(lease)
        return lease

    def _hinder(self, lease: HeldLease) -> None:
        """Put the faults between the lease and the store."""
        renew, revoke = lease.renew, lease.give_up

        async def try_to_renew() -> bool:
            if self.faults.starve_leases:
                raise MetaUnavailableError("the renewal was lost on its way")
            return await self._call(renew)

        lease.renew = try_to_renew
        lease.give_up = lambda: self._call(revoke)

    async def close(self) -> None:
        self._closed = True
        await self._inner.close()

    async def _call(self, work: Callable[[], Awaitable[T]], *, late: bool = True) -> T:
        """`late`: it may be done when nobody waits for it any more."""
        await self._travel(self.faults.delay_s)
        self._maybe_lose("request", self.faults.lose_request)
        if self.faults.leaderless:
            await self._leaderless(work if late else None)
        try:
            result = await work()
        except MetaError:
            await self._reply()
            raise
        await self._reply()
        return result

    async def _leaderless(self, work: Callable[[], Awaitable[object]] | None) -> None:
        """Wait for the next leader, or give up before."""
        fate = self._rng.random()
        if fate < _GIVEN_UP:
            if work is not None and fate < _GIVEN_UP / 2:
                asyncio.get_running_loop().create_task(self._done_late(work))
            await self._clock.sleep(self._rng.uniform(0, _GIVE_UP_S))
            raise MetaUnavailableError("there was no leader for too long")
        await self._elected()

    async def _done_late(self, work: Callable[[], Awaitable[object]]) -> None:
        await self._elected()
        await self._travel(_LATE_S)
        with suppress(MetaError):
            await work()

    async def _elected(self) -> None:
        while self.faults.leaderless:
            await self._clock.sleep(_LOOK_S)

    async def _reply(self) -> None:
        """Bring the outcome back, a refusal too; if it is lost, nobody hears of it."""
        await self._travel(self.faults.delay_s)
        self._maybe_lose("reply", self.faults.lose_reply)

    def _maybe_lose(self, what: str, chance: float) -> None:
        if self.out or self._happens(chance):
            raise MetaUnavailableError(f"the {what} was lost on its way")

    async def _travel(self, most_s: float) -> None:
        if most_s > 0:
            await self._clock.sleep(self._rng.uniform(0, most_s))

    def _happens(self, chance: float) -> bool:
        # No dice without a chance: a run without faults is the same run as without this wrapper.
        return chance > 0 and self._rng.random() < chance
