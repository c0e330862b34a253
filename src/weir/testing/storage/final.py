"""After all faults are healed: recover every ledger, read everything back, and count the copies.

What is asked here must succeed within bounded virtual time. Attempts that fail are repeated until then; the
history gets one operation for all attempts.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from weir.ledger.client import LedgerClient
from weir.ledger.losses import decode_runs
from weir.ledger.reader import LedgerReader
from weir.meta import keys
from weir.model.errors import (
    EntryCorruptError,
    EntryLostError,
    EntryUnreadableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    WeirError,
)
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import LedgerMetadata
from weir.testing.checking import AVAILABLE, Violation
from weir.testing.operations import FINAL
from weir.testing.storage.cluster import Cluster
from weir.testing.storage.history import LedgerOpKind, payload_id
from weir.testing.storage.workload import raise_bug
from weir.wire.entry import verify_entry

T = TypeVar("T")

#: Virtual seconds within which, after healing, everything must work: several time-outs and leases long.
_PATIENCE_S = 40.0
_REPAIR_PATIENCE_S = 120.0
_PAUSE_S = 0.25
_AT_ONCE = 32
_CHUNK_BYTES = 1 << 20


class FinalCheck:
    """Runs on a node of its own, which saw none of the trouble."""

    def __init__(self, cluster: Cluster, client: LedgerClient, ledgers: list[LedgerId]) -> None:
        self._cluster = cluster
        self._history = cluster.history
        self._client = client
        self._known = ledgers
        self.violations: list[Violation] = []

    async def run(self) -> None:
        await self._bookies_are_back()
        closed = [ledger for ledger in [await self._recover(i) for i in await self._ledgers()] if ledger]
        for ledger in closed:
            await self._read_back(ledger.ledger_id, ledger.last_entry)
        if not self._cluster.plan.repair:
            gone = sum(not self._cluster.repaired(lost) for lost in self._cluster.lost)
            for ledger in closed:
                await self._count_copies(await self._client.metadata(ledger.ledger_id), gone)
        self._cluster.add_repair()
        await self._repair_ends()
        for ledger in closed:
            await self._count_copies(await self._client.metadata(ledger.ledger_id), 0)

    # --- steps ---------------------------------------------------------------------------------------------

    async def _bookies_are_back(self) -> None:
        def all_registered() -> bool:
            writable = self._client.context.directory.writable()
            return all(BookieId(name) in writable for name in self._cluster.bookie_names)

        if not await self._until(all_registered, _PATIENCE_S):
            writable = sorted(self._client.context.directory.writable())
            self._violated(f"of the bookies {self._cluster.bookie_names} only {writable} take entries")

    async def _ledgers(self) -> list[LedgerId]:
        """Every ledger that anyone knows and nobody tried to delete."""
        deleted = {op.ledger for op in self._history.ops() if op.kind is LedgerOpKind.DELETE}
        listed = [ledger.ledger_id for ledger in await self._client.list()]
        return [ledger for ledger in sorted({*self._known, *listed}) if ledger not in deleted]

    async def _recover(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        pending = self._history.begin(FINAL, LedgerOpKind.RECOVER, ledger=ledger_id)
        try:
            closed = await self._insist(lambda: self._client.recover(ledger_id))
        except WeirError as failure:
            pending.failed(failure)
            return None
        pending.ok(end=closed.last_entry)
        return closed

    async def _read_back(self, ledger_id: LedgerId, end: EntryId) -> None:
        reader = await self._client.open(ledger_id, recover=False)
        for first in range(0, end + 1, _AT_ONCE):
            await self._read(reader, first, min(end, first + _AT_ONCE - 1))
        await reader.close()

    async def _read(self, reader: LedgerReader, first: int, last: int) -> None:
        """A range at once; if that fails, entry by entry, so that the history tells which."""
        pending = {
            EntryId(e): self._history.begin(FINAL, LedgerOpKind.READ, ledger=reader.ledger_id, entry=EntryId(e))
            for e in range(first, last + 1)
        }
        try:
            for entry in await reader.read(EntryId(first), EntryId(last)):
                pending.pop(entry.entry_id).ok(payload=payload_id(entry.payload))
        except WeirError as failure:
            raise_bug(failure)
        patience_s = _PATIENCE_S
        hopeless = (EntryLostError,) if self._cluster.plan.quorum.ack == 1 else ()
        for entry_id, each in pending.items():
            try:
                entries = await self._insist(
                    lambda e=entry_id: reader.read(e, e),  # type: ignore[misc]
                    patience_s,
                    final=hopeless,
                )
                each.ok(payload=payload_id(entries[0].payload))
            except hopeless as lost:
                each.failed(lost)
                await self._leave_out(reader, lost)
            except WeirError as failure:
                each.failed(failure)
                patience_s = _PAUSE_S  # enough was waited in this range

    async def _leave_out(self, reader: LedgerReader, lost: EntryLostError) -> None:
        """Go on behind an entry of which no copy is whole, as a stream does; it must be named then."""
        ledger_id, entry_id = reader.ledger_id, EntryId(lost.entry_id)
        pending = self._history.begin(FINAL, LedgerOpKind.LEFT_OUT, ledger=ledger_id, entry=entry_id)
        try:
            await self._insist(lambda: reader.leave_out(lost))
        except WeirError as failure:
            pending.failed(failure)
            return
        named = [
            run
            for item in self._cluster.core.listing(keys.lost_entries(ledger_id)).items
            for run in decode_runs(item.value)
            if run.first <= entry_id <= run.last
        ]
        if named:
            pending.ok()
        else:
            pending.failed(lost)

    async def _repair_ends(self) -> None:
        def repaired() -> bool:
            marks = self._cluster.core.listing(keys.UNDERREPLICATED).items
            return not marks and all(self._cluster.repaired(lost) for lost in self._cluster.lost)

        if not await self._until(repaired, _REPAIR_PATIENCE_S):
            marks = [item.key for item in self._cluster.core.listing(keys.UNDERREPLICATED).items]
            lost = [lost for lost in self._cluster.lost if not self._cluster.repaired(lost)]
            self._violated(f"repair does not end: marks {marks}, ledgers still name the lost bookies {lost}")

    async def _count_copies(self, ledger: LedgerMetadata, gone: int) -> None:
        """Each entry must be whole on as many bookies as its ack quorum, less the disks that are gone and not made
        up for yet, and less one if a disk of the run rots."""
        needed = max(1, ledger.quorum.ack - gone - (self._cluster.rotten is not None))
        copies = {EntryId(e): 0 for e in range(ledger.last_entry + 1)}
        bounds = [*(fragment.first_entry for fragment in ledger.fragments[1:]), ledger.last_entry + 1]
        for fragment, beyond in zip(ledger.fragments, bounds, strict=True):
            for bookie_id in fragment.bookies:
                for entry_id in await self._held(ledger.ledger_id, bookie_id, fragment.first_entry, beyond - 1):
                    if bookie_id in ledger.write_set(entry_id):
                        copies[entry_id] += 1
        for entry_id, count in copies.items():
            pending = self._history.begin(FINAL, LedgerOpKind.COPIES, ledger=ledger.ledger_id, entry=entry_id)
            if count >= needed:
                pending.ok()
            else:
                where = ledger.write_set(entry_id)
                pending.failed(EntryUnreadableError(f"{count} of {needed} copies on {where}"))

    async def _held(self, ledger_id: LedgerId, bookie_id: BookieId, first: int, last: int) -> list[EntryId]:
        """The entries of a range that one bookie holds whole."""
        held: list[EntryId] = []
        bookie = self._client.context.pool.get(bookie_id)
        while first <= last:
            try:
                result = await self._insist(
                    lambda at=first: bookie.read(ledger_id, EntryId(at), EntryId(last), max_bytes=_CHUNK_BYTES),  # type: ignore[misc]
                    _PATIENCE_S,
                    final=(NoSuchEntryError, NoSuchLedgerError, EntryCorruptError),
                )
            except (NoSuchEntryError, EntryCorruptError):
                first += 1
                continue
            except WeirError as failure:
                raise_bug(failure)
                return held  # the bookie holds nothing of it, or is gone
            for entry_id, data in result.entries:
                verify_entry(data)
                held.append(entry_id)
            first = result.entries[-1][0] + 1
        return held

    # --- patience ------------------------------------------------------------------------------------------

    async def _insist(
        self,
        ask: Callable[[], Awaitable[T]],
        patience_s: float = _PATIENCE_S,
        *,
        final: tuple[type[WeirError], ...] = (),
    ) -> T:
        """Ask until it works; the last error once patience is over."""
        until = self._cluster.world.now + patience_s
        while True:
            try:
                return await ask()
            except WeirError as failure:
                raise_bug(failure)
                if self._cluster.world.now >= until or isinstance(failure, final):
                    raise
            await self._client.context.runtime.clock.sleep(_PAUSE_S)

    async def _until(self, holds: Callable[[], bool], patience_s: float) -> bool:
        until = self._cluster.world.now + patience_s
        while not holds():
            if self._cluster.world.now >= until:
                return False
            await self._client.context.runtime.clock.sleep(_PAUSE_S)
        return True

    def _violated(self, sentence: str) -> None:
        self.violations.append(Violation(AVAILABLE, sentence, ()))
