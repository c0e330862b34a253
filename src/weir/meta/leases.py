"""A lease on the holder's side: renewed in the background, and trusted for a shorter time than in the store."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from weir.meta.interfaces import Lease
from weir.meta.key_space import NO_LEASE
from weir.model.errors import LeaseExpiredError, MetaUnavailableError
from weir.runtime.interfaces import Clock, Timer

#: The holder trusts a lease for this fraction of its TTL since it sent the last renewal: with clock drift of up to
#: a tenth, the lease still ends here before it ends in the store.
TRUSTED = 0.9
#: Renewals per TTL while the store answers, and while it does not.
_RENEWALS = 3
_RETRIES = 12


class HeldLease:
    """The lease of every driver; `renew` and `revoke` are the driver's requests to its store."""

    def __init__(
        self,
        clock: Clock,
        lease_id: int,
        *,
        ttl_s: float,
        asked_at: float,
        renew: Callable[[], Awaitable[bool]],
        revoke: Callable[[], Awaitable[None]],
    ) -> None:
        """`asked_at`: the clock's `monotonic()` just before the request for the lease. `ttl_s` may be infinite."""
        self.lease_id = lease_id
        self.ttl_s = ttl_s
        # Both are attributes so that the test kit can put faults between the lease and its store.
        #: Requests another TTL from the store; false if the lease has expired.
        self.renew = renew
        #: Requests the store to drop the lease and its keys.
        self.give_up = revoke
        self._clock = clock
        self._ended = asyncio.Event()
        self._trusted_until = asked_at + ttl_s * TRUSTED
        self._timer: Timer | None = None if math.isinf(ttl_s) else self._at_the_end()

    @property
    def alive(self) -> bool:
        return not self._ended.is_set() and self._clock.monotonic() < self._trusted_until

    async def lost(self) -> None:
        await self._ended.wait()

    async def revoke(self) -> None:
        self.end()
        await self.give_up()

    def end(self) -> None:
        """Stop trusting it for good. A late renewal does not undo this, since the holder may have acted on the
        loss."""
        self._cancel_timer()
        self._ended.set()

    async def keep(self) -> None:
        """Renew until it is lost; the driver runs this in the background."""
        pause_s = self.ttl_s / _RENEWALS
        while True:
            await self._clock.sleep(pause_s)
            if not self.alive:
                return
            pause_s = self.ttl_s / (_RENEWALS if await self._renewed() else _RETRIES)

    async def _renewed(self) -> bool:
        asked_at = self._clock.monotonic()
        try:
            kept = await self.renew()
        except MetaUnavailableError:
            return False
        if not kept:
            self.end()
        elif self.alive:
            self._cancel_timer()
            self._trusted_until = asked_at + self.ttl_s * TRUSTED
            self._timer = self._at_the_end()
        return True

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _at_the_end(self) -> Timer:
        return self._clock.call_later(max(0.0, self._trusted_until - self._clock.monotonic()), self.end)


def usable_lease(lease: Lease | None, key: str) -> int:
    """The id of a lease that its holder may still rely on, or NO_LEASE for none."""
    if lease is None:
        return NO_LEASE
    if not isinstance(lease, HeldLease) or not lease.alive:
        raise LeaseExpiredError(f"the lease has expired; {key} was not put")
    return lease.lease_id
