"""Whether this bookie is being decommissioned, as the metadata says."""

import asyncio
import logging

from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.model.errors import MetaError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.5


class Leaving:
    """`load` once, then `follow` in the background."""

    def __init__(self, meta: MetaStore, clock: Clock, bookie_id: BookieId) -> None:
        self._meta = meta
        self._clock = clock
        self._key = keys.bookie_leaving(bookie_id)
        self._revision = 0
        self._changed = asyncio.Event()
        self.now = False

    async def load(self) -> None:
        listing = await self._meta.list(self._key)
        self._revision = listing.revision
        self._set(any(item.key == self._key for item in listing.items))

    async def follow(self) -> None:
        while True:
            try:
                async for change in self._meta.watch(self._key, since=self._revision):
                    if change.key == self._key:
                        self._set(change.value is not None)
                return  # the store was closed
            except MetaError as failure:
                log.warning("watch of %s broke, asking again: %s", self._key, failure)
            await self._clock.sleep(_RETRY_PAUSE_S)
            try:
                await self.load()
            except MetaError as failure:
                log.warning("cannot read %s: %s", self._key, failure)

    async def changed(self, known: bool) -> None:
        """Wait until it is no longer as it was known to be."""
        while self.now == known:
            self._changed.clear()
            await self._changed.wait()

    def _set(self, leaving: bool) -> None:
        self.now = leaving
        self._changed.set()
