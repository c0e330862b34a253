"""The auditor: finds ledgers with lost bookies and marks them for repair. One at a time in a cluster."""

import logging

from weir.ledger.context import LedgerContext
from weir.ledger.locks import LeasedLocks
from weir.ledger.marks import Marks
from weir.meta import keys
from weir.model.errors import MetaError
from weir.model.ids import BookieId, LedgerId

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
