"""Adding entries to one bookie on behalf of a recovery or a repair, with patience for a busy one."""

import asyncio
from collections.abc import Sequence

from weir.ledger.interfaces import BookiePool
from weir.model.errors import BookieBusyError, BookieError, BookieUnavailableError
from weir.model.ids import BookieId, Buffer, EntryId, LedgerId
from weir.runtime.interfaces import Clock

_BUSY_PAUSE_S = 0.05


async def recovery_add(
    clock: Clock,
    pool: BookiePool,
    bookie_id: BookieId,
    ledger_id: LedgerId,
    entries: Sequence[tuple[EntryId, Buffer]],
    *,
    timeout_s: float,
) -> BookieError | None:
    """Store the entries past any fence; answers why not, if not."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await pool.get(bookie_id).add(ledger_id, entries, recovery=True)
                    return None
                except BookieBusyError:
                    await clock.sleep(_BUSY_PAUSE_S)
    except TimeoutError:
        return BookieUnavailableError(f"{bookie_id} did not store entries within {timeout_s} s")
    except BookieError as failure:
        return failure
