"""Ledgers that a bookie still holds although nobody knows them any more.

Deleting a ledger deletes its metadata first and then asks each bookie; one that was down then would keep it for
ever. So each bookie compares what it holds with the metadata from time to time.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.model.errors import BookieError, DiskError, MetaError
from weir.model.ids import LedgerId
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)


class HoldsLedgers(Protocol):
    """The part of a bookie that is asked here."""

    def ledgers(self) -> Sequence[LedgerId]: ...

    async def delete(self, ledger_id: LedgerId) -> None: ...


async def delete_orphans(bookie: HoldsLedgers, meta: MetaStore) -> list[LedgerId]:
    """Delete what the metadata no longer has, and say which.

    First the bookie is asked, then the metadata: a ledger is in the metadata before its first entry is anywhere,
    so whatever the bookie held before the listing and the listing does not have was deleted.
    """
    held = list(bookie.ledgers())
    if not held:
        return []
    listing = await meta.list(keys.LEDGERS)
    known = {keys.ledger_id_of(item.key) for item in listing.items}
    orphans = [ledger_id for ledger_id in held if ledger_id not in known]
    for ledger_id in orphans:
        await bookie.delete(ledger_id)
    return orphans


async def watch_for_orphans(bookie: HoldsLedgers, meta: MetaStore, clock: Clock, *, interval_s: float) -> None:
    """`delete_orphans` from time to time; a failure waits for the next time."""
    while True:
        await clock.sleep(interval_s)
        try:
            orphans = await delete_orphans(bookie, meta)
        except (MetaError, BookieError, DiskError) as failure:
            log.warning("could not look for deleted ledgers: %s", failure)
            continue
        if orphans:
            log.info("%d ledgers that the metadata no longer has were deleted", len(orphans))
