"""The bookie's state, which only journal records change, in their order: the same code commits and replays.

`LedgerTable` has the state of each ledger except its entries: fence, last-add-confirmed, waiting polls.
`Tombstones` has the deleted ledgers with entries in some log, until the removal of the last such log.
"""

import asyncio

from pyroaring import BitMap64

from weir.bookie.damage import Damages
from weir.bookie.entry_index import Index
from weir.bookie.entry_log_writer import WrittenLog
from weir.bookie.folder import Layout, save_checkpoint
from weir.bookie.journal import FormingRecord
from weir.bookie.write_cache import Batch, WriteCache
from weir.model.check import check
from weir.model.ids import NO_ENTRY, EntryId, LedgerId
from weir.runtime.interfaces import Disk
from weir.wire.bookie_files import (
    Checkpoint,
    Position,
    RecordHeader,
    RecordKind,
    Run,
    decode_ledgers,
    split_entries,
)
from weir.wire.entry import last_confirmed_of


class LedgerTable:
    """A ledger is known once it has a last-add-confirmed; an unknown ledger may have a fence."""

    def __init__(self, gone: bytes = b"") -> None:
        #: Deleted ledgers. Their ids are never reused, and a writer that does not know of the deletion of its
        #: ledger must get no acknowledgement for unreadable entries: the fence outlives the ledger.
        self._gone = BitMap64.deserialize(gone) if gone else BitMap64()
        self._confirmed: dict[LedgerId, EntryId] = {}
        self._fenced: dict[LedgerId, None] = {}
        #: Fences on their way to the journal: already in force, whatever commits before them.
        self._fencing: dict[LedgerId, int] = {}
        self._waiting: dict[LedgerId, dict[asyncio.Future[bool], None]] = {}
        self.waiters = 0

    def is_known(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._confirmed

    def is_fenced(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._fenced or ledger_id in self._fencing

    def is_gone(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._gone

    def highest_gone(self) -> LedgerId:
        """The highest id of a deleted ledger, or 0."""
        return LedgerId(self._gone.max()) if self._gone else LedgerId(0)

    def gone(self) -> bytes:
        """The deleted ledgers in the encoding of a checkpoint."""
        self._gone.run_optimize()
        return self._gone.serialize() if self._gone else b""

    def is_fenced_durably(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._fenced

    def last_confirmed(self, ledger_id: LedgerId) -> EntryId:
        return self._confirmed.get(ledger_id, NO_ENTRY)

    def fenced(self) -> list[LedgerId]:
        return sorted(self._fenced)

    def raise_confirmed(self, ledger_id: LedgerId, last_confirmed: EntryId) -> None:
        """Apply the last-add-confirmed of an entry or a hint: it never decreases."""
        known = self._confirmed.get(ledger_id)
        if known is None or last_confirmed > known:
            self._confirmed[ledger_id] = last_confirmed
            if ledger_id in self._waiting:
                self._wake(ledger_id, for_good=False)

    def hint_confirmed(self, ledger_id: LedgerId, last_confirmed: EntryId) -> None:
        """The same for a hint, which does not make an unknown ledger known without a waiting poll."""
        if ledger_id in self._confirmed or ledger_id in self._waiting:
            self.raise_confirmed(ledger_id, last_confirmed)

    def begin_fence(self, ledger_id: LedgerId) -> None:
        """Refuse adds immediately, before the fence is durable; ended by `end_fence`."""
        self._fencing[ledger_id] = self._fencing.get(ledger_id, 0) + 1

    def end_fence(self, ledger_id: LedgerId) -> None:
        self._fencing[ledger_id] -= 1
        if not self._fencing[ledger_id]:
            del self._fencing[ledger_id]

    def fence(self, ledger_id: LedgerId) -> None:
        self._fenced[ledger_id] = None
        self._wake(ledger_id, for_good=True)

    def refuse(self, ledger_id: LedgerId) -> None:
        """Refuse adds of a ledger before its deletion: a later add would outlive it."""
        self._gone.add(ledger_id)

    def forget(self, ledger_id: LedgerId) -> None:
        """Drop a deleted ledger."""
        self._confirmed.pop(ledger_id, None)
        self._fenced.pop(ledger_id, None)
        self._gone.add(ledger_id)
        self._wake(ledger_id, for_good=True)

    def wait(self, ledger_id: LedgerId) -> "asyncio.Future[bool]":
        """A future that is False when the ledger's last-add-confirmed advances, True at a fence or a deletion.
        Pass it to `stop_waiting` afterwards."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(ledger_id, {})[future] = None
        self.waiters += 1
        return future

    def stop_waiting(self, ledger_id: LedgerId, future: "asyncio.Future[bool]") -> None:
        self.waiters -= 1
        check(self.waiters >= 0, "a waiter of a ledger stops once")
        waiting = self._waiting.get(ledger_id)
        if waiting is not None:
            waiting.pop(future, None)
            if not waiting:
                del self._waiting[ledger_id]

    def wake_all(self) -> None:
        """End all waits, because the bookie closes."""
        for ledger_id in list(self._waiting):
            self._wake(ledger_id, for_good=True)

    def _wake(self, ledger_id: LedgerId, *, for_good: bool) -> None:
        for future in self._waiting.pop(ledger_id, ()):
            if not future.done():
                future.set_result(for_good)


class Tombstones:
    """A tombstone means: entries of this ledger in logs up to that one are dead. If a recovery adds to a ledger
    after its deletion, the ledger is alive in later logs, until the next check for orphans."""

    def __init__(self) -> None:
        self._through: dict[LedgerId, int] = {}
        self._held_by: dict[int, list[LedgerId]] = {}
        self._logs: dict[LedgerId, int] = {}

    def __len__(self) -> int:
        return len(self._through)

    def bury(self, ledger_id: LedgerId, through_log: int) -> None:
        self._through[ledger_id] = max(through_log, self._through.get(ledger_id, 0))

    def is_dead(self, ledger_id: LedgerId, log: int) -> bool:
        return log <= self._through.get(ledger_id, 0)

    def found(self, ledger_id: LedgerId, log: int) -> None:
        """Record that the log has entries of the dead ledger."""
        self._held_by.setdefault(log, []).append(ledger_id)
        self._logs[ledger_id] = self._logs.get(ledger_id, 0) + 1

    def log_removed(self, log: int) -> None:
        for ledger_id in self._held_by.pop(log, ()):
            self._logs[ledger_id] -= 1
            if not self._logs[ledger_id]:
                del self._logs[ledger_id]

    def all(self) -> list[tuple[LedgerId, int]]:
        """Every tombstone, sorted."""
        return sorted(self._through.items())

    def needed(self, being_written: list[int]) -> list[tuple[LedgerId, int]]:
        """The tombstones for a checkpoint, sorted; drops the others. A log in progress may turn out to have
        entries of any ledger deleted since its start."""
        oldest = min(being_written, default=None)
        for ledger_id, through in list(self._through.items()):
            if ledger_id not in self._logs and (oldest is None or oldest > through):
                del self._through[ledger_id]
        return sorted(self._through.items())


class Store:
    """Write cache, index, ledgers and tombstones; a checkpoint has all but the first."""

    def __init__(self, checkpoint: Checkpoint, write_cache_bytes: int) -> None:
        self.cache = WriteCache(write_cache_bytes)
        self.index = Index()
        self.ledgers = LedgerTable(checkpoint.gone)
        self.tombstones = Tombstones()
        self.damages = Damages()
        #: Entry logs have everything before this position.
        self.flushed = checkpoint.position
        self._number = checkpoint.number
        self._next_log = checkpoint.next_log
        self._being_written: dict[int, None] = {}
        self._saving = asyncio.Lock()
        for ledger_id in checkpoint.fenced:
            self.ledgers.fence(ledger_id)
        for ledger_id, through in checkpoint.deleted:
            self.tombstones.bury(ledger_id, through)

    # --- journal records --------------------------------------------------------------------------------------

    def commit(self, record: FormingRecord) -> None:
        """Apply a durable record: change the state, then complete the futures."""
        put, raise_confirmed = self.cache.put, self.ledgers.raise_confirmed
        for batch, future in record.batches:
            put(batch)
            if self.damages:
                self.damages.healed(batch.ledger_id, [entry_id for entry_id, _ in batch.entries])
            raise_confirmed(batch.ledger_id, batch.last_confirmed)
            if not future.done():
                future.set_result(None)
        for ledger_id, future in record.ledgers:
            self._ledger(record.kind, ledger_id)
            if not future.done():
                future.set_result(None)

    def replay(self, header: RecordHeader, body: memoryview) -> None:
        """Apply a record from an earlier run of the bookie."""
        if header.kind is RecordKind.ENTRIES:
            for ledger_id, entry_id, view in split_entries(body):
                data = bytes(view)
                confirmed = last_confirmed_of(data)
                self.cache.put(Batch(ledger_id, [(entry_id, data)], len(data), confirmed, entry_id))
                self.ledgers.raise_confirmed(ledger_id, confirmed)
        elif header.kind is not RecordKind.START:
            for ledger_id in decode_ledgers(body):
                self._ledger(header.kind, ledger_id)

    def _ledger(self, kind: RecordKind, ledger_id: LedgerId) -> None:
        if kind is RecordKind.FENCE:
            self.ledgers.fence(ledger_id)
            return
        # Logs in progress may have entries of it, too: dead through the highest log id issued.
        self.tombstones.bury(ledger_id, self._next_log - 1)
        for run in self.index.get(ledger_id) or ():
            self.tombstones.found(ledger_id, run.log)
        self.index.forget(ledger_id)
        self.cache.forget(ledger_id)
        self.ledgers.forget(ledger_id)
        self.damages.forget(ledger_id)

    # --- logs -------------------------------------------------------------------------------------------------

    def begin_log(self) -> int:
        """The id of a new log, higher than any before: of two copies of an entry, the one in the higher log
        counts."""
        log = self._next_log
        self._next_log += 1
        self._being_written[log] = None
        return log

    def end_log(self, log: int) -> None:
        """End a log, sealed or abandoned."""
        self._being_written.pop(log, None)

    def add_run(self, log: int, run: Run) -> None:
        """Make entries in a log readable, unless their ledger was deleted during the write."""
        if self.tombstones.is_dead(run.ledger_id, log):
            self.tombstones.found(run.ledger_id, log)
        else:
            self.index.add_run(log, run)

    def load_log(self, written: WrittenLog) -> None:
        """Load a log of the checkpoint when the bookie opens."""
        self.index.add_log(written.log, written.size)
        for run in written.runs:
            self.add_run(written.log, run)
            if run.ledger_id in self.index:
                self.ledgers.raise_confirmed(run.ledger_id, run.last_confirmed)
        self.index.seal(written.log)

    def remove_logs(self, logs: list[int]) -> None:
        """Drop removed logs."""
        self.index.remove_logs(logs)
        for log in logs:
            self.tombstones.log_removed(log)

    # --- the checkpoint ---------------------------------------------------------------------------------------

    async def save(self, disk: Disk, layout: Layout) -> Position:
        """Write the current state durably; returns its journal position."""
        async with self._saving:  # one at a time, so that the last one written is the newest
            self._number += 1
            checkpoint = Checkpoint(
                number=self._number,
                position=self.flushed,
                next_log=self._next_log,
                fenced=tuple(self.ledgers.fenced()),
                deleted=tuple(self.tombstones.needed(list(self._being_written))),
                logs=tuple(self.index.logs()),
                gone=self.ledgers.gone(),
            )
            await save_checkpoint(disk, layout, checkpoint)
            return checkpoint.position

    def root(self, position: Position, deleted: tuple[tuple[LedgerId, int], ...], gone: bytes) -> Checkpoint:
        """A checkpoint for a copy of the bookie: with the current logs, and the deletions up to some moment."""
        return Checkpoint(
            number=1,
            position=position,
            next_log=self._next_log,
            fenced=tuple(self.ledgers.fenced()),
            deleted=deleted,
            logs=tuple(self.index.logs()),
            gone=gone,
        )

    # --- questions --------------------------------------------------------------------------------------------

    def known_ledgers(self) -> list[LedgerId]:
        """Every ledger with entries or a fence here."""
        found = dict.fromkeys(self.index.ledgers())
        found |= dict.fromkeys(self.cache.ledgers())
        found |= dict.fromkeys(self.ledgers.fenced())
        return sorted(found)

    def last_entry(self, ledger_id: LedgerId) -> EntryId:
        """The highest stored entry of the ledger."""
        return max(self.index.last_entry(ledger_id), self.cache.last_entry(ledger_id))
