"""Ledgers that a bookie still holds although the metadata no longer knows them.

Deleting a ledger deletes its metadata first and then asks each bookie; one that was down then would keep it for
ever. So each bookie compares what it holds with the metadata from time to time.
"""

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.model.errors import BookieError, DiskError, MetaError
from weir.model.ids import LedgerId
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)


class Collects(Protocol):
    """The part of a bookie that is asked here; it asks for the live ledgers after it listed its own."""

    async def collect(self, live_ledgers: Callable[[], Awaitable[Collection[LedgerId]]]) -> int: ...


async def live_ledgers(meta: MetaStore) -> list[LedgerId]:
    """Every ledger that the metadata has."""
    listing = await meta.list(keys.LEDGERS)
    return [keys.ledger_id_of(item.key) for item in listing.items]


async def watch_for_orphans(bookie: Collects, meta: MetaStore, clock: Clock, *, interval_s: float) -> None:
    """Have the bookie delete its orphans from time to time; a failure waits for the next time."""
    while True:
        await clock.sleep(interval_s)
        try:
            deleted = await bookie.collect(lambda: live_ledgers(meta))
        except (MetaError, BookieError, DiskError) as failure:
            log.warning("could not look for deleted ledgers: %s", failure)
            continue
        if deleted:
            log.info("%d ledgers that the metadata no longer has were deleted", deleted)
