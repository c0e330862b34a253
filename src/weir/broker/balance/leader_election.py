"""Leader election by a lease on one metadata key; all brokers learn the leader by watching that key."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from weir.meta import keys
from weir.meta.interfaces import ABSENT, Lease, MetaStore
from weir.meta.mirror import Mirror
from weir.meta.update import Codec
from weir.model.cluster import BalanceLeader
from weir.model.errors import LeaseExpiredError, MetaConflictError, MetaError
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.runtime.waiters import Waiters
from weir.wire.broker_load import decode_leader, encode_leader

log = logging.getLogger(__name__)

LEADER: Codec[BalanceLeader] = Codec(encode_leader, decode_leader)


class Election:
    """This broker's part in the election. `lead` runs while this broker is the leader, and is cancelled when it is
    not. Requests that `lead` has sent by then may still take effect, which is safe: only a bundle's owner changes
    its claim."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        broker_id: str,
        lead: Callable[[], Coroutine[Any, Any, None]],
        *,
        ttl_s: float = 10.0,
        retry_s: float = 1.0,
        close_timeout_s: float = 2.0,
        stands: bool = True,
    ) -> None:
        """`stands`: whether this broker may become leader; if not, it only observes."""
        self._meta = meta
        self._runtime = runtime
        self._broker_id = broker_id
        self._lead = lead
        self._ttl_s = ttl_s
        self._retry_s = retry_s
        self._close_timeout_s = close_timeout_s
        self._stands = stands
        self._changed = Waiters()
        self._mirror = Mirror(meta, runtime, keys.LEADERS, LEADER, lambda key, present: self._changed.wake())
        self._lease: Lease | None = None
        self._elected = False
        self._tasks = TaskScope(f"election {broker_id}")

    @property
    def leading(self) -> bool:
        """Whether this broker is the leader, with a valid lease."""
        return self._elected and self._lease is not None and self._lease.alive

    def leader(self) -> str:
        """The broker id of the leader as known here; "" if none is known."""
        if self.leading:
            return self._broker_id
        found = self._mirror.get(keys.BALANCE_LEADER)
        return "" if found is None else found.broker_id

    async def start(self) -> None:
        """Observe the leader, and stand for election from now on."""
        await self._mirror.start()
        if self._stands:
            self._tasks.spawn(self._stand(), "stand")

    async def close(self) -> None:
        """Withdraw. The next leader is elected at once, or when the lease has expired."""
        await self._tasks.close()
        lease, self._lease, self._elected = self._lease, None, False
        if lease is not None:
            try:
                async with asyncio.timeout(self._close_timeout_s):
                    await lease.revoke()
            except (MetaError, TimeoutError) as failure:
                log.warning("broker %s is leader until its lease runs out: %s", self._broker_id, failure)
        await self._mirror.close()

    # --- candidacy ----------------------------------------------------------------------------------------------

    async def _stand(self) -> None:
        while True:
            await self._changed.wait_until(lambda: self._mirror.get(keys.BALANCE_LEADER) is None)
            try:
                elected = await self._acquire()
            except MetaError as failure:
                log.warning("broker %s could not stand for leader: %s", self._broker_id, failure)
                elected = None
            if elected is None:
                await self._runtime.clock.sleep(self._retry_s)
            else:
                await self._preside(elected)

    async def _acquire(self) -> Lease | None:
        """Try to become leader: return the lease, or None if another broker is the leader."""
        lease = self._lease
        if lease is None or not lease.alive:
            lease = self._lease = await self._meta.lease(self._ttl_s)
        mine = encode_leader(BalanceLeader(self._broker_id, f"{self._runtime.rng.getrandbits(64):016x}"))
        try:
            await self._meta.put(keys.BALANCE_LEADER, mine, expect=ABSENT, lease=lease)
        except (MetaConflictError, LeaseExpiredError):
            return None
        except MetaError:
            # The put may have succeeded: revoke the lease, or its key would name a leader that does not lead.
            self._lease = None
            await lease.revoke()
            raise
        return lease

    async def _preside(self, lease: Lease) -> None:
        """Lead until the lease is lost."""
        log.info("broker %s leads the balance of the cluster", self._broker_id)
        self._elected = True
        leading = self._tasks.spawn(self._lead(), "lead")
        lost = self._tasks.spawn(lease.lost(), "lost")
        try:
            await asyncio.wait([leading, lost], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._elected = False
            leading.cancel()
            lost.cancel()
        await asyncio.wait([leading])
        if lease.alive:  # `lead` ended, which is a defect: let another broker try
            await self._step_down(lease)
        log.warning("broker %s no longer leads the balance of the cluster", self._broker_id)
        self._lease = None

    async def _step_down(self, lease: Lease) -> None:
        try:
            await lease.revoke()
        except MetaError as failure:
            log.warning("broker %s is leader until its lease runs out: %s", self._broker_id, failure)
        await self._runtime.clock.sleep(self._retry_s)
