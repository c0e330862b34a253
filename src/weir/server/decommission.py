"""Decommissions a bookie: places no new ledgers on it, and copies its ledgers to other bookies."""

import logging
from dataclasses import dataclass

from weir.broker.api.cluster import BookieStatus, DecommissionProgress
from weir.ledger.client import LedgerClient
from weir.ledger.marks import Marks
from weir.ledger.repair import Repair
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.model.errors import MetaError, NotAllowedError, WeirError
from weir.model.ids import BookieId
from weir.model.ledger import LedgerMetadata
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.broker_load import decode_leader

log = logging.getLogger(__name__)

_AGAIN_S = 1.0


@dataclass(slots=True)
class _Job:
    problem: str = ""
    running: bool = True


class StorageAdministration:
    """Fills `broker.api.StorageAdmin` over the metadata and the ledgers of this broker."""

    def __init__(self, runtime: Runtime, meta: MetaStore, ledgers: LedgerClient) -> None:
        self._clock = runtime.clock
        self._meta = meta
        self._ledgers = ledgers
        self._marks = Marks(runtime, meta)
        self._jobs: dict[BookieId, _Job] = {}
        self._tasks = TaskScope("decommission")

    async def close(self) -> None:
        await self._tasks.close()

    async def leader(self) -> str:
        found = await self._meta.get(keys.BALANCE_LEADER)
        return "" if found is None else decode_leader(found.value).broker_id

    async def under_replicated(self) -> int:
        return len(await self._marks.list())

    async def bookies(self) -> list[BookieStatus]:
        directory = self._ledgers.context.directory
        writable, read_only = directory.writable(), directory.read_only()
        leaving = {keys.bookie_id_of(item.key) for item in (await self._meta.list(keys.BOOKIES_LEAVING)).items}
        held: dict[BookieId, int] = {}
        for ledger in await self._ledgers.context.records.list():
            for bookie_id in ledger.bookies():
                held[bookie_id] = held.get(bookie_id, 0) + 1
        found = []
        for bookie_id in sorted({*writable, *read_only, *held, *leaving}):
            info = writable.get(bookie_id) or read_only.get(bookie_id)
            state = "writable" if bookie_id in writable else "read-only" if info is not None else "lost"
            if bookie_id in leaving:
                state = "leaving" if held.get(bookie_id) else "empty"
            where = "" if info is None else f"{info.host}:{info.port}"
            rack = "" if info is None else info.rack
            found.append(BookieStatus(bookie_id, where, rack, state, held.get(bookie_id, 0)))
        return found

    async def decommission(self, bookie: str) -> DecommissionProgress:
        """Begin or resume; NotAllowedError if other bookies cannot take its ledgers."""
        bookie_id = BookieId(bookie)
        held = await self._held(bookie_id)
        self._check(bookie_id, held)
        await self._meta.put(keys.bookie_leaving(bookie_id), b"")
        job = self._jobs.get(bookie_id)
        if job is None or not job.running:
            job = self._jobs[bookie_id] = _Job()
            self._tasks.spawn(self._empty(bookie_id, job), bookie)
        return DecommissionProgress(bookie, len(held), job.problem)

    async def progress(self, bookie: str) -> DecommissionProgress:
        job = self._jobs.get(BookieId(bookie))
        return DecommissionProgress(
            bookie, len(await self._held(BookieId(bookie))), "" if job is None else job.problem
        )

    async def recommission(self, bookie: str) -> None:
        """Let the bookie accept ledgers again."""
        await self._meta.delete(keys.bookie_leaving(BookieId(bookie)))

    def _check(self, bookie_id: BookieId, held: list[LedgerMetadata]) -> None:
        others = [b for b in self._ledgers.context.directory.writable() if b != bookie_id]
        known = self._ledgers.context.directory.resolve(bookie_id) is not None
        if not known and not held:
            raise NotAllowedError(f"there is no bookie {bookie_id}", hint="see weir cluster status")
        needed = max((ledger.quorum.ensemble for ledger in held), default=1)
        if len(others) < needed:
            raise NotAllowedError(
                f"ledgers of {bookie_id} need {needed} bookies, and {len(others)} others accept entries",
                hint="start another bookie first",
            )

    async def _held(self, bookie_id: BookieId) -> list[LedgerMetadata]:
        return [each for each in await self._ledgers.context.records.list() if bookie_id in each.bookies()]

    async def _empty(self, bookie_id: BookieId, job: _Job) -> None:
        """Move closed ledgers, and open ones by closing them, in rounds, until the bookie holds none."""
        repair = Repair(self._ledgers.context)
        try:
            while await self._meta.get(keys.bookie_leaving(bookie_id)) is not None:
                held = await self._held(bookie_id)
                if not held:
                    job.problem = ""
                    return
                problems = [await self._move(repair, ledger, bookie_id) for ledger in held]
                job.problem = next((problem for problem in problems if problem), "")
                if job.problem:
                    await self._clock.sleep(_AGAIN_S)
        except MetaError as failure:
            job.problem = str(failure)
        finally:
            job.running = False

    async def _move(self, repair: Repair, ledger: LedgerMetadata, bookie_id: BookieId) -> str:
        """Move one ledger; return the error, or "" if it succeeded."""
        try:
            report = await repair.repair(ledger.ledger_id, [bookie_id], fence_open=True, leaving=[bookie_id])
        except WeirError as failure:
            log.warning("ledger %s could not be moved off %s: %s", ledger.ledger_id, bookie_id, failure)
            return str(failure)
        return report.failures[0] if report.failures else ""
