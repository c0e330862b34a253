"""Auditor and replication worker: mark ledgers with lost bookies, and repair marked ledgers one by one.

Any node can run both. One auditor at a time is active in a cluster. Locks in the metadata keep nodes from doing
the same work; a lease frees the locks of a dead node. Two nodes that both believe they own a lock do no harm,
since each change is a compare-and-set.
"""

import logging

from weir.ledger.context import LedgerContext
from weir.ledger.marks import Mark, Marks
from weir.ledger.repair import Repair
from weir.meta import keys
from weir.meta.interfaces import ABSENT, Lease, MetaStore
from weir.model.errors import LeaseExpiredError, LedgerNotFoundError, MetaConflictError, MetaError, WeirError
from weir.model.ids import BookieId, LedgerId


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


log = logging.getLogger(__name__)

#: Every so many rounds all ledgers are looked at, even if no bookie is known to be lost.
_FULL_EVERY = 20


class Auditor:
    """Run it on any number of nodes: whoever holds the lock works, the others wait for it to be free. In the
    background: `tasks.spawn(auditor.run(), "auditor")`."""

    def __init__(self, context: LedgerContext, owner: str) -> None:
        self._context = context
        self._settings = context.settings.repair
        self._marks = Marks(context.runtime, context.meta)
        self._locks = LeasedLocks(context.meta, owner, ttl_s=self._settings.lease_s)
        self._holds_lock = False
        self._rounds = 0

    async def run(self) -> None:
        """Audit until cancelled."""
        try:
            while True:
                try:
                    await self._round()
                except MetaError as failure:
                    log.warning("auditor: %s", failure)
                await self._context.runtime.clock.sleep(self._settings.audit_every_s)
        finally:
            await self._locks.close()

    async def _round(self) -> None:
        self._holds_lock = (self._holds_lock and self._locks.alive) or await self._locks.take(keys.AUDITOR)
        if not self._holds_lock:
            return
        self._rounds += 1
        if await self.lost() or self._rounds % _FULL_EVERY == 1:
            await self.audit()

    async def lost(self) -> list[BookieId]:
        """Bookies that have existed and are registered nowhere for longer than the grace period."""
        cookies = await self._context.meta.list(keys.COOKIES)
        ever = {keys.bookie_id_of(item.key): None for item in cookies.items}
        ever.update(dict.fromkeys(self._context.directory.racks()))
        return [bookie_id for bookie_id in sorted(ever) if self._is_lost(bookie_id)]

    async def audit(self) -> dict[LedgerId, tuple[BookieId, ...]]:
        """Look at every ledger; marks, and returns, those with a lost bookie."""
        found: dict[LedgerId, tuple[BookieId, ...]] = {}
        for ledger in await self._context.records.list():
            lost = tuple(bookie_id for bookie_id in ledger.bookies() if self._is_lost(bookie_id))
            if lost:
                await self._marks.add(ledger.ledger_id, lost)
                found[ledger.ledger_id] = lost
        if found:
            log.warning("%d ledgers have copies on lost bookies: they are marked for repair", len(found))
        return found

    def _is_lost(self, bookie_id: BookieId) -> bool:
        return self._context.directory.gone_for_s(bookie_id) > self._settings.bookie_grace_s


class ReplicationWorker:
    """Copies the ledgers that the auditor, or a writer that lost a bookie, marked. Run it in the background:
    `tasks.spawn(worker.run(), "replication")`."""

    def __init__(self, context: LedgerContext, owner: str) -> None:
        self._context = context
        self._settings = context.settings.repair
        self._clock = context.runtime.clock
        self._marks = Marks(context.runtime, context.meta)
        self._locks = LeasedLocks(context.meta, owner, ttl_s=self._settings.lease_s)
        self._repair = Repair(context)
        #: When a mark on a ledger was first seen here; an open ledger is left to its writer for a while.
        self._seen_at: dict[LedgerId, float] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                try:
                    await self.work_once()
                except MetaError as failure:
                    log.warning("replication worker: %s", failure)
                await self._clock.sleep(self._settings.work_every_s)
        finally:
            await self._locks.close()

    async def work_once(self) -> int:
        """Repair what is marked and not being repaired elsewhere; returns how many ledgers are whole again."""
        marks = await self._marks.list()
        now = self._clock.monotonic()
        self._seen_at = {mark.ledger_id: self._seen_at.get(mark.ledger_id, now) for mark in marks}
        repaired = 0
        for mark in marks:
            lock = keys.repair_lock(mark.ledger_id)
            if await self._locks.take(lock):
                try:
                    repaired += await self._work_off(mark)
                finally:
                    await self._locks.release(lock)
        return repaired

    async def _work_off(self, mark: Mark) -> bool:
        """Repair one ledger and take its mark off; False if something is left to do."""
        patient = self._clock.monotonic() - self._seen_at[mark.ledger_id] < self._settings.open_grace_s
        try:
            report = await self._repair.repair(mark.ledger_id, mark.suspects, fence_open=not patient)
        except LedgerNotFoundError:
            await self._marks.clear(mark)
            return False
        except WeirError as failure:
            log.warning("ledger %s cannot be repaired now: %s", mark.ledger_id, failure)
            return False
        for left in report.failures:
            log.warning("ledger %s is not whole: %s", mark.ledger_id, left)
        if report.lost:
            log.warning("ledger %s: entries %s are damaged in every copy", mark.ledger_id, report.lost)
        if report.complete:
            await self._marks.clear(mark)
        return report.complete
