"""The bookies that are registered in the metadata, kept up to date, and those best left alone for a while."""

import logging

from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.model.errors import MetaError, WireError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.metadata import BookieInfo, decode_bookie_info

log = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.5


class BookieDirectory:
    """Follows the registrations by listing them once and watching from there."""

    def __init__(self, clock: Clock, meta: MetaStore) -> None:
        self._clock = clock
        self._meta = meta
        self._tables: dict[str, dict[BookieId, BookieInfo]] = {
            keys.BOOKIES_WRITABLE: {},
            keys.BOOKIES_READ_ONLY: {},
        }
        self._racks: dict[BookieId, str] = {}
        self._gone_at: dict[BookieId, float] = {}
        self._tasks = TaskScope("bookie-directory")
        self._started = False

    async def start(self) -> None:
        """Know every registered bookie, and follow changes from now on. Starting twice is fine."""
        if self._started:
            return
        self._started = True
        for prefix in self._tables:
            revision = await self._load(prefix)
            self._tasks.spawn(self._follow(prefix, revision), prefix)

    async def close(self) -> None:
        await self._tasks.close()

    def writable(self) -> dict[BookieId, BookieInfo]:
        """Bookies that take entries, by id."""
        return dict(sorted(self._tables[keys.BOOKIES_WRITABLE].items()))

    def read_only(self) -> dict[BookieId, BookieInfo]:
        """Bookies that only serve reads for now, by id."""
        return dict(sorted(self._tables[keys.BOOKIES_READ_ONLY].items()))

    def resolve(self, bookie_id: BookieId) -> BookieInfo | None:
        """Where a registered bookie is. An address of one that is gone may be someone else's by now."""
        for table in self._tables.values():
            if bookie_id in table:
                return table[bookie_id]
        return None

    def rack_of(self, bookie_id: BookieId) -> str | None:
        """The rack that the bookie last registered with; None if it was never seen."""
        return self._racks.get(bookie_id)

    def racks(self) -> dict[BookieId, str]:
        """The rack of every bookie ever seen."""
        return dict(self._racks)

    def gone_for_s(self, bookie_id: BookieId) -> float:
        """For how long the bookie has been registered nowhere, as far as was seen; zero if it is registered."""
        if self.resolve(bookie_id) is not None:
            self._gone_at.pop(bookie_id, None)
            return 0.0
        now = self._clock.monotonic()
        return now - self._gone_at.setdefault(bookie_id, now)

    async def _load(self, prefix: str) -> int:
        listing = await self._meta.list(prefix)
        table = self._tables[prefix]
        present = {keys.bookie_id_of(item.key): item.value for item in listing.items}
        for bookie_id in [b for b in table if b not in present]:
            self._set(prefix, bookie_id, None)
        for bookie_id, value in present.items():
            self._set(prefix, bookie_id, value)
        return listing.revision

    async def _follow(self, prefix: str, revision: int) -> None:
        while True:
            try:
                async for change in self._meta.watch(prefix, since=revision):
                    self._set(prefix, keys.bookie_id_of(change.key), change.value)
                return  # the store was closed
            except MetaError as failure:
                log.warning("watch of %s broke, listing again: %s", prefix, failure)
            revision = await self._list_again(prefix)

    async def _list_again(self, prefix: str) -> int:
        while True:
            await self._clock.sleep(_RETRY_PAUSE_S)
            try:
                return await self._load(prefix)
            except MetaError as failure:
                log.warning("cannot list %s: %s", prefix, failure)

    def _set(self, prefix: str, bookie_id: BookieId, value: bytes | None) -> None:
        table = self._tables[prefix]
        try:
            info = None if value is None else decode_bookie_info(value)
        except WireError as bad:
            log.error("registration of %s cannot be read: %s", bookie_id, bad)
            info = None
        if info is None:
            table.pop(bookie_id, None)
            if self.resolve(bookie_id) is None:
                self._gone_at.setdefault(bookie_id, self._clock.monotonic())
        else:
            table[bookie_id] = info
            self._racks[bookie_id] = info.rack
            self._gone_at.pop(bookie_id, None)


class Quarantine:
    """Bookies that failed lately. New ensembles avoid them; replacements never take them."""

    def __init__(self, clock: Clock, *, for_s: float) -> None:
        self._clock = clock
        self._for_s = for_s
        self._until: dict[BookieId, float] = {}

    def put(self, bookie_id: BookieId) -> None:
        self._until[bookie_id] = self._clock.monotonic() + self._for_s

    def holds(self, bookie_id: BookieId) -> bool:
        until = self._until.get(bookie_id)
        if until is None:
            return False
        if self._clock.monotonic() < until:
            return True
        del self._until[bookie_id]
        return False

    def held(self) -> list[BookieId]:
        """Everyone in it now."""
        return [bookie_id for bookie_id in sorted(self._until) if self.holds(bookie_id)]
