"""Promises of bookies broken on purpose (see `mutation`)."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from weir.bookie.bookie import Bookie
from weir.bookie.garbage_collection import GarbageCollector
from weir.bookie.journal import Journal
from weir.bookie.journal_scan import JournalReplay
from weir.bookie.store import LedgerTable, Store
from weir.model.ledger import Quorum
from weir.testing.mutation import Mutations
from weir.testing.storage import checkers
from weir.testing.storage.plan import Fault
from weir.wire.bookie_files import RecordHeader, RecordKind

BOOKIE_MUTATIONS = Mutations()
_mutation = BOOKIE_MUTATIONS.add
_TWO_OF_TWO = Quorum(3, 2, 2)
_TWO_OF_THREE = Quorum(3, 3, 2)


@_mutation("bookie-ignores-fence", checkers.nothing_is_acknowledged_after_recovery, recoverers=2)
def _bookie_ignores_fence() -> Iterator[None]:
    """A bookie takes adds of the writer to a ledger that it has fenced."""
    with patch.object(LedgerTable, "is_fenced", lambda self, ledger_id: False):
        yield


@_mutation(
    "fence-forgotten-with-ledger",
    checkers.nothing_is_acknowledged_after_recovery,
    writers=1,
    recoverers=6,
    deletes=True,
    appends=100,
    ledger_appends=400,
)
def _fence_forgotten_with_ledger() -> Iterator[None]:
    """A bookie forgets the fence of a ledger that it deletes."""
    with patch.object(LedgerTable, "is_gone", lambda self, ledger_id: False):
        yield


@_mutation(
    "fence-forgotten-at-restart",
    checkers.nothing_is_acknowledged_after_recovery,
    quorum=Quorum(1, 1, 1),
    writers=3,
    recoverers=2,
    faults=(Fault.KILL_BOOKIE,),
    fault_every_s=0.3,
)
def _fence_forgotten_at_restart() -> Iterator[None]:
    """A bookie acknowledges a fence that is only in its memory."""

    def fence_in_memory(self: Bookie, kind: RecordKind, ledger_id: Any) -> Any:
        if kind is not RecordKind.FENCE:
            return journaled(self, kind, ledger_id)
        self._store.ledgers.fence(ledger_id)
        future = self._loop.create_future()
        future.set_result(None)
        return future

    journaled = Bookie._journaled
    with (
        patch.object(Bookie, "_journaled", fence_in_memory),
        patch.object(LedgerTable, "fenced", lambda self: []),
    ):
        yield


@_mutation("ack-before-sync", checkers.acknowledged_is_kept, faults=(Fault.CRASH_BOOKIE,))
def _ack_before_sync() -> Iterator[None]:
    """A bookie acknowledges entries that are written to its journal but not synced."""
    write = Journal._write

    async def write_without_sync(self: Journal, records: Any, *, sync: bool) -> None:
        await write(self, records, sync=False)

    with patch.object(Journal, "_write", write_without_sync):
        yield


@_mutation("no-replay", checkers.acknowledged_is_replicated, faults=(Fault.CRASH_BOOKIE, Fault.KILL_BOOKIE))
def _no_replay() -> Iterator[None]:
    """A bookie that starts trusts its checkpoint and leaves out the entries that only its journal has."""
    replay = Store.replay

    def only_fences(self: Store, header: RecordHeader, body: memoryview) -> None:
        if header.kind is not RecordKind.ENTRIES:
            replay(self, header, body)

    with patch.object(Store, "replay", only_fences):
        yield


@_mutation(
    "short-journal-taken-for-whole",
    checkers.acknowledged_is_replicated,
    quorum=_TWO_OF_TWO,
    deletes=False,
    faults=(Fault.CUT,),
    fault_every_s=0.5,
)
def _short_journal_taken_for_whole() -> Iterator[None]:
    """A bookie believes that its journal ends where the file does."""
    with (
        patch.object(JournalReplay, "_acknowledged", lambda self, sequence, scan: 0),
        patch.object(JournalReplay, "_reserved", _nothing_reserved),
    ):
        yield


async def _nothing_reserved(*_: Any) -> int:
    return 0


@_mutation(
    "compaction-drops-entries",
    checkers.acknowledged_is_kept,
    checkers.readable_stays_readable,
    deletes=True,
    faults=(),
)
def _compaction_drops_entries() -> Iterator[None]:
    """A bookie that rewrites entry logs leaves out the last live entry of each part."""
    newest = GarbageCollector._newest

    async def drop_last(self: GarbageCollector, ledger_id: Any, log_id: int, part: Any) -> Any:
        return (await newest(self, ledger_id, log_id, part))[:-1]

    with patch.object(GarbageCollector, "_newest", drop_last):
        yield


@_mutation(
    "bookie-confirms-too-much",
    checkers.confirmed_is_true,
    bookies=3,
    quorum=_TWO_OF_THREE,
    readers=2,
    faults=(Fault.ONE_WAY, Fault.PARTITION),
    fault_every_s=0.3,
)
def _bookie_confirms_too_much() -> Iterator[None]:
    """A bookie tells readers that every entry it holds is confirmed."""

    async def all_it_holds(self: Bookie, ledger_id: Any) -> Any:
        self._require_known(ledger_id)
        return self._store.last_entry(ledger_id)

    async def read(self: Bookie, ledger_id: Any, *args: Any, **options: Any) -> Any:
        result = await honest_read(self, ledger_id, *args, **options)
        return result._replace(last_confirmed=self._store.last_entry(ledger_id))

    honest_read = Bookie.read
    with patch.object(Bookie, "last_confirmed", all_it_holds), patch.object(Bookie, "read", read):
        yield
