"""Ledger client: creates, opens, recovers, lists and deletes ledgers."""

import asyncio
import logging

from weir.ledger.bookie_directory import BookieDirectory, Quarantine
from weir.ledger.context import LedgerContext, Rounds
from weir.ledger.interfaces import BookiePool
from weir.ledger.losses import Losses
from weir.ledger.marks import Marks
from weir.ledger.quorum import choose_ensemble
from weir.ledger.reader import LedgerReader
from weir.ledger.records import LedgerRecords
from weir.ledger.recovery import recover as recover_ledger
from weir.ledger.replicas import ReplicaReads
from weir.ledger.settings import LedgerSettings
from weir.ledger.write_freeze import WriteHold
from weir.ledger.writer import LedgerWriter
from weir.meta.interfaces import MetaStore
from weir.meta.update import IdBlocks
from weir.model.errors import BookieError, LedgerNotFoundError, MetaError, StorageFullError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, Quorum
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)

_DELETE_TIMEOUT_S = 5.0
#: A damaged copy that is found again after so long is marked again: the repair may have come to nothing.
_MARK_AGAIN_S = 60.0
#: Overdue answers are looked for this many times per time-out.
_ROUNDS_PER_TIMEOUT = 8


class LedgerClient:
    """One node's view of all ledgers. `await start()` first, `await close()` last; a directory that is handed in
    (because the pool resolves ids by it) is started here but closed by its owner."""

    def __init__(
        self,
        runtime: Runtime,
        meta: MetaStore,
        pool: BookiePool,
        settings: LedgerSettings | None = None,
        *,
        directory: BookieDirectory | None = None,
        hold: WriteHold | None = None,
    ) -> None:
        """`hold`: shared with others who write."""
        settings = settings or LedgerSettings()
        self._owns_directory = directory is None
        self._tasks = TaskScope("ledgers")
        #: Copies that were found damaged where another one is whole, and are marked for repair.
        self._marked: dict[tuple[LedgerId, BookieId], None] = {}
        self._ids = IdBlocks(runtime.clock, meta, size=settings.id_block)
        self.context = LedgerContext(
            runtime=runtime,
            meta=meta,
            records=LedgerRecords(runtime, meta, settings.update),
            directory=directory or BookieDirectory(runtime.clock, meta),
            quarantine=Quarantine(runtime.clock, for_s=settings.quarantine_s),
            pool=pool,
            reads=ReplicaReads(runtime.clock, pool, settings.reader, damaged=self._damaged),
            settings=settings,
            losses=Losses(runtime, meta, pause_s=settings.reader.second_look_s),
            confirming=Rounds(runtime.clock, settings.writer.confirm_idle_s / 2),
            watching=Rounds(runtime.clock, settings.writer.add_timeout_s / _ROUNDS_PER_TIMEOUT),
            hold=hold or WriteHold(),
        )

    async def start(self) -> None:
        """Know which bookies there are, and what is lost."""
        await self.context.directory.start()
        await self.context.losses.start()

    async def close(self) -> None:
        """Stop following the bookies. Writers and readers are closed by whoever opened them."""
        await self._tasks.close()
        if self._owns_directory:
            await self.context.directory.close()

    async def create(self, quorum: Quorum, *, above: LedgerId | None = None) -> LedgerWriter:
        """A new ledger on bookies that take entries, and its one writer; NotEnoughBookiesError if there are too
        few. `above`: its id shall be higher than this one, which another client may have taken from a later block.
        """
        full = self.full(quorum)
        if full is not None:
            raise full
        writable = self.context.directory.writable()
        ensemble = choose_ensemble(
            {bookie_id: info.rack for bookie_id, info in writable.items()},
            quorum,
            self.context.runtime.rng,
            avoid=self.context.quarantine.held(),
        )
        ledger = LedgerMetadata(
            ledger_id=await self._next_id(above),
            quorum=quorum,
            fragments=(Fragment(EntryId(0), ensemble),),
            created_ms=self.context.runtime.clock.wall_ms(),
        )
        return LedgerWriter(self.context, await self.context.records.create(ledger))

    def full(self, quorum: Quorum) -> StorageFullError | None:
        """Why no ledger can be made, if that is because disks are full."""
        directory = self.context.directory
        if len(directory.writable()) >= quorum.ensemble:
            return None
        whys = [info.why for info in directory.read_only().values() if info.why]
        return StorageFullError("; ".join(whys)) if whys else None

    async def _next_id(self, above: LedgerId | None) -> LedgerId:
        ledger_id = await self._ids.take()
        while above is not None and ledger_id <= above:
            ledger_id = await self._ids.take()
        return ledger_id

    async def open(self, ledger_id: LedgerId, *, recover: bool = True) -> LedgerReader:
        """A reader. With `recover`, the ledger is fenced and closed first, so that all of it can be read and its
        writer, if it still lives, can add nothing more. Without, an open ledger is read behind its writer."""
        look = recover_ledger(self.context, ledger_id) if recover else self.context.records.get(ledger_id)
        return LedgerReader(self.context, await look)

    async def recover(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Fence the ledger, find its end and close it; at once if it is closed."""
        return (await recover_ledger(self.context, ledger_id)).ledger

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """The ledger's record, or LedgerNotFoundError."""
        return (await self.context.records.get(ledger_id)).ledger

    async def list(self) -> list[LedgerMetadata]:
        """Every ledger, by id."""
        return await self.context.records.list()

    async def delete(self, ledger_id: LedgerId) -> None:
        """Forget the ledger; fine if it is gone. A bookie that cannot be told now finds out later by itself. While
        a copy of the cluster is being made it is done later."""
        if self.context.hold.keeps:
            self.context.hold.postponed[ledger_id] = None
            return
        try:
            ledger = await self.metadata(ledger_id)
        except LedgerNotFoundError:
            return
        await self.context.records.delete(ledger_id)
        await self.context.losses.forget(ledger_id)
        await asyncio.gather(*(self._delete_on(bookie_id, ledger_id) for bookie_id in ledger.bookies()))

    def _damaged(self, ledger_id: LedgerId, bookie_id: BookieId) -> None:
        """A copy is damaged and another one is whole: have it written again. The mark is a hint."""
        key = (ledger_id, bookie_id)
        if key in self._marked:
            return
        log.warning("%s has a damaged copy of ledger %s: it is marked for repair", bookie_id, ledger_id)
        self._marked[key] = None
        self.context.runtime.clock.call_later(_MARK_AGAIN_S, lambda: self._marked.pop(key, None))
        self._tasks.spawn(self._mark(ledger_id, bookie_id), "mark")

    async def _mark(self, ledger_id: LedgerId, bookie_id: BookieId) -> None:
        try:
            await Marks(self.context.runtime, self.context.meta).add(ledger_id, (bookie_id,))
        except MetaError as failure:
            log.warning("ledger %s is not marked for repair: %s", ledger_id, failure)

    async def _delete_on(self, bookie_id: BookieId, ledger_id: LedgerId) -> None:
        try:
            async with asyncio.timeout(_DELETE_TIMEOUT_S):
                await self.context.pool.get(bookie_id).delete(ledger_id)
        except (BookieError, TimeoutError) as failure:
            log.info("%s did not delete ledger %s: %r", bookie_id, ledger_id, failure)
