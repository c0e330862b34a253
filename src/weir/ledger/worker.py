"""The replication worker: takes marked ledgers one by one and repairs them. Any node can run one."""

import logging

from weir.ledger.context import LedgerContext
from weir.ledger.locks import LeasedLocks
from weir.ledger.marks import Mark, Marks
from weir.ledger.repair import Repair
from weir.meta import keys
from weir.model.errors import LedgerNotFoundError, MetaError, WeirError
from weir.model.ids import LedgerId

log = logging.getLogger(__name__)


class ReplicationWorker:
    """Looks for marks (`weir.ledger.auditor` makes them, and writers that lost bookies) and works them off. Run it
    in the background: `tasks.spawn(worker.run(), "replication")`."""

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
