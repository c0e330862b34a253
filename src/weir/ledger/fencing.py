"""Fencing the last ensemble of a ledger: every bookie is asked until it has answered once."""

import asyncio

from weir.ledger.context import LedgerContext
from weir.ledger.quorum import Stripes
from weir.model.errors import BookieError
from weir.model.ids import NO_ENTRY, BookieId, EntryId
from weir.model.ledger import LedgerMetadata
from weir.runtime.tasks import TaskScope


class Fencing:
    """Who is fenced so far. Bookies that do not answer are asked again until `close()`."""

    def __init__(self, context: LedgerContext, ledger: LedgerMetadata) -> None:
        self._context = context
        self._settings = context.settings.recovery
        self._ledger_id = ledger.ledger_id
        self._stripes = Stripes(ledger.quorum)
        self._tasks = TaskScope(f"fence-{ledger.ledger_id}")
        self._fenced = 0
        self._confirmed = NO_ENTRY
        self._moved = asyncio.Event()
        self._answers: dict[BookieId, asyncio.Task[None]] = {
            bookie_id: self._tasks.spawn(self._fence(slot, bookie_id), bookie_id)
            for slot, bookie_id in enumerate(ledger.fragments[-1].bookies)
        }

    async def covered(self) -> EntryId:
        """Wait until no write set has an ack quorum of bookies left that would take an add of the writer; answers
        the highest last-add-confirmed that any of them knew."""
        while not self._stripes.covered(self._fenced):
            self._moved.clear()
            await self._moved.wait()
        return self._confirmed

    async def fenced(self, bookie_id: BookieId) -> None:
        """Wait until this bookie is fenced."""
        await asyncio.shield(self._answers[bookie_id])

    async def close(self) -> None:
        await self._tasks.close()

    async def _fence(self, slot: int, bookie_id: BookieId) -> None:
        confirmed = await self._ask(bookie_id)
        while confirmed is None:
            await self._context.runtime.clock.sleep(self._settings.retry_pause_s)
            confirmed = await self._ask(bookie_id)
        self._fenced |= 1 << slot
        self._confirmed = max(self._confirmed, confirmed)
        self._moved.set()

    async def _ask(self, bookie_id: BookieId) -> EntryId | None:
        """The last-add-confirmed of the bookie, which is fenced now; None if it did not say so."""
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                return await self._context.pool.get(bookie_id).fence(self._ledger_id)
        except (BookieError, TimeoutError):
            return None
