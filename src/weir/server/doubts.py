"""Has repair fill up a bookie that goes on after it lost a part of its journal."""

import logging
from collections.abc import Collection

from weir.bookie.bookie import Bookie
from weir.ledger.marks import Marks
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.model.errors import BookieError, DiskError, MetaError
from weir.model.ids import BookieId, LedgerId
from weir.model.ledger import LedgerState
from weir.runtime.interfaces import Runtime
from weir.wire.metadata import decode_ledger

log = logging.getLogger(__name__)


async def replicated_ledgers(meta: MetaStore, bookie_id: BookieId) -> list[LedgerId]:
    """Ledgers that count on this bookie and on others: what it lost of them can be copied back. Nothing can be
    of those that have no second copy, and a doubt would keep them from being read or closed for ever."""
    ledgers = [decode_ledger(item.value) for item in (await meta.list(keys.LEDGERS)).items]
    return [each.ledger_id for each in ledgers if bookie_id in each.bookies() and each.quorum.write > 1]


async def end_doubts(
    bookie: Bookie, meta: MetaStore, runtime: Runtime, me: BookieId, *, interval_s: float
) -> None:
    """Mark every ledger in doubt for repair once it is closed; its doubt ends when the mark is worked off."""
    marked: dict[LedgerId, None] = {}
    while bookie.doubts.ledgers:
        try:
            ended = await _look(bookie.doubts.ledgers, meta, Marks(runtime, meta), me, marked)
            await bookie.doubts.end(ended)
            if ended:
                log.info("%d ledgers are whole again after the accepted loss", len(ended))
        except (MetaError, BookieError, DiskError) as failure:
            log.warning("could not look after ledgers in doubt: %s", failure)
        await runtime.clock.sleep(interval_s)


async def _look(
    doubtful: Collection[LedgerId], meta: MetaStore, marks: Marks, me: BookieId, marked: dict[LedgerId, None]
) -> list[LedgerId]:
    """Mark what can be repaired now; the ledgers that are not in doubt any more."""
    waiting = {mark.ledger_id for mark in await marks.list()}
    ended = []
    for ledger_id in sorted(doubtful):
        found = await meta.get(keys.ledger(ledger_id))
        ledger = None if found is None else decode_ledger(found.value)
        if ledger is None or me not in ledger.bookies():
            ended.append(ledger_id)
        elif ledger.state is LedgerState.CLOSED and ledger_id not in marked:
            await marks.add(ledger_id, (me,))
            marked[ledger_id] = None
        elif ledger_id in marked and ledger_id not in waiting:
            ended.append(ledger_id)
    return ended
