"""The bookie's state, changed only by journal records, in their order: the same code commits and replays."""

import asyncio

from weir.bookie.cache import Batch, WriteCache
from weir.bookie.checkpoints import save_checkpoint
from weir.bookie.damage import Damages
from weir.bookie.index import Index
from weir.bookie.journal import FormingRecord
from weir.bookie.layout import Layout
from weir.bookie.ledgers import LedgerTable
from weir.bookie.log_writer import WrittenLog
from weir.bookie.tombstones import Tombstones
from weir.model.ids import EntryId, LedgerId
from weir.runtime.interfaces import Disk
from weir.wire.checkpoint import Checkpoint, Position
from weir.wire.entry import last_confirmed_of
from weir.wire.entrylog import Run
from weir.wire.journal import RecordHeader, RecordKind, decode_ledgers, split_entries


class Store:
    """Write cache, index, ledgers and tombstones; and the checkpoint that stands for all but the first."""

    def __init__(self, checkpoint: Checkpoint, write_cache_bytes: int) -> None:
        self.cache = WriteCache(write_cache_bytes)
        self.index = Index()
        self.ledgers = LedgerTable(checkpoint.gone)
        self.tombstones = Tombstones()
        self.damages = Damages()
        #: Everything before it is in entry logs.
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
        """A record that is durable now: change the state, then tell who waits."""
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
        """A record that an earlier life of the bookie wrote."""
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
        # Logs that are being written may hold some of it, too: dead through the highest id given out.
        self.tombstones.bury(ledger_id, self._next_log - 1)
        for run in self.index.get(ledger_id) or ():
            self.tombstones.found(ledger_id, run.log)
        self.index.forget(ledger_id)
        self.cache.forget(ledger_id)
        self.ledgers.forget(ledger_id)
        self.damages.forget(ledger_id)

    # --- logs -------------------------------------------------------------------------------------------------

    def begin_log(self) -> int:
        """The id of a new log. Higher than any before: of two copies of an entry the one in the higher counts."""
        log = self._next_log
        self._next_log += 1
        self._being_written[log] = None
        return log

    def end_log(self, log: int) -> None:
        """The log is sealed, or given up."""
        self._being_written.pop(log, None)

    def add_run(self, log: int, run: Run) -> None:
        """Entries can be read from a log from now on, unless their ledger was deleted while it was written."""
        if self.tombstones.is_dead(run.ledger_id, log):
            self.tombstones.found(run.ledger_id, log)
        else:
            self.index.add_run(log, run)

    def load_log(self, written: WrittenLog) -> None:
        """A log that the checkpoint names, when the bookie opens."""
        self.index.add_log(written.log, written.size)
        for run in written.runs:
            self.add_run(written.log, run)
            if run.ledger_id in self.index:
                self.ledgers.raise_confirmed(run.ledger_id, run.last_confirmed)
        self.index.seal(written.log)

    def remove_logs(self, logs: list[int]) -> None:
        """The logs are gone."""
        self.index.remove_logs(logs)
        for log in logs:
            self.tombstones.log_removed(log)

    # --- the checkpoint ---------------------------------------------------------------------------------------

    async def save(self, disk: Disk, layout: Layout) -> Position:
        """Write the state as it is now, durably; the journal position that it stands for."""
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
        """A checkpoint of its own, for a copy: of the logs that are there now, and what was deleted by some
        moment."""
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
        """Every ledger that has entries here, or a fence."""
        found = dict.fromkeys(self.index.ledgers())
        found |= dict.fromkeys(self.cache.ledgers())
        found |= dict.fromkeys(self.ledgers.fenced())
        return sorted(found)

    def last_entry(self, ledger_id: LedgerId) -> EntryId:
        """The highest entry that is held of the ledger."""
        return max(self.index.last_entry(ledger_id), self.cache.last_entry(ledger_id))
