"""Promises broken on purpose: each mutation patches one seam of the product, and the checkers must find it.

A mutation is a plausible mistake, not vandalism: a check left out, a step skipped, an order turned round. If the
checkers miss one, it is the scenario or the checkers that are wrong (`tests/sim/test_mutations.py`).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from weir.bookie.bookie import Bookie
from weir.bookie.gc import GarbageCollector
from weir.bookie.journal import Journal
from weir.bookie.journal_scan import JournalReplay
from weir.bookie.ledgers import LedgerTable
from weir.ledger import recovery as ledger_recovery
from weir.ledger import transforms
from weir.ledger.copying import Copier
from weir.ledger.fencing import Fencing
from weir.ledger.quorum import Stripes
from weir.ledger.recovery import Recovery
from weir.ledger.tail import Answer, Verdict, decide
from weir.ledger.window import Window
from weir.ledger.writer import LedgerWriter
from weir.meta.state import KeySpace
from weir.model.errors import BookieError
from weir.wire import entry as wire_entry
from weir.wire.journal import RecordKind


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way to break a promise."""

    #: What is done wrong.
    sin: str
    apply: Callable[[], AbstractContextManager[Any]]


MUTATIONS: dict[str, Mutation] = {}


def _mutation(name: str) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Enter a generator function as a mutation; its docstring says the sin."""

    def enter(function: Callable[[], Iterator[None]]) -> None:
        MUTATIONS[name] = Mutation((function.__doc__ or name).strip(), contextmanager(function))

    return enter


# --- the writer -----------------------------------------------------------------------------------------------


@_mutation("ack-below-quorum")
def _ack_below_quorum() -> Iterator[None]:
    """The writer acknowledges an entry that one bookie less than the ack quorum holds."""
    held = Stripes.held

    def held_by_fewer(self: Stripes, by: int, first: Any, count: int) -> bool:
        masks, size = self.write_masks, len(self.write_masks)
        spare = [mask & ~by for mask in masks]
        return any(held(self, by | (missing & -missing), first, count) for missing in [0, *spare]) and all(
            by & masks[(first + i) % size] for i in range(min(count, size))
        )

    with patch.object(Stripes, "held", held_by_fewer):
        yield


@_mutation("acks-out-of-order")
def _acks_out_of_order() -> Iterator[None]:
    """The writer acknowledges whatever an ack quorum holds, without waiting for the entries before it."""

    def any_held(self: Window) -> list[Any]:
        batches = self._batches
        done = [batch for batch in batches if self._stripes.held(batch.held_by, batch.first, len(batch.entries))]
        for batch in [] if self.frozen else done:
            batches.remove(batch)
            self.last_confirmed = max(self.last_confirmed, batch.entries[-1][0])
            self.length = max(self.length, batch.length)
        return [] if self.frozen else done

    with patch.object(Window, "pop_acknowledged", any_held):
        yield


@_mutation("unrecorded-ensemble-change")
def _unrecorded_ensemble_change() -> Iterator[None]:
    """The writer goes on with new bookies without writing the change down in the metadata."""

    async def keep_to_oneself(self: LedgerWriter, bookies: Any) -> None:
        return

    with patch.object(LedgerWriter, "_write_down", keep_to_oneself):
        yield


@_mutation("close-forgets-last-entry")
def _close_forgets_last_entry() -> Iterator[None]:
    """The writer closes its ledger one entry before the last acknowledged one."""
    close_at = transforms._closed

    def too_early(ledger: Any, last_entry: Any, length: int) -> Any:
        first = ledger.fragments[-1].first_entry
        return close_at(ledger, last_entry - 1 if last_entry >= first else last_entry, length)

    with patch.object(transforms, "_closed", too_early):
        yield


# --- recovery -------------------------------------------------------------------------------------------------


@_mutation("recovery-trusts-last-confirmed")
def _recovery_trusts_last_confirmed() -> Iterator[None]:
    """Recovery closes at the last-add-confirmed that the bookies know, without reading on."""

    async def nothing(self: Recovery, first: Any) -> list[Any]:
        return []

    with patch.object(Recovery, "_next_chunk", nothing):
        yield


@_mutation("recovery-believes-one-denial")
def _recovery_believes_one_denial() -> Iterator[None]:
    """Recovery ends the ledger as soon as one bookie denies an entry that none has given yet."""

    def hasty(answers: Any, quorum: Any) -> Verdict:
        answers = list(answers)
        verdict = decide(answers, quorum)
        return Verdict.ABSENT if verdict is Verdict.UNDECIDED and Answer.DENIED in answers else verdict

    with patch.object(ledger_recovery, "decide", hasty):
        yield


@_mutation("recovery-without-fencing")
def _recovery_without_fencing() -> Iterator[None]:
    """Recovery only asks the bookies how far they are, and fences none."""

    async def ask_only(self: Fencing, slot: int, bookie_id: Any) -> None:
        confirmed = -1
        with suppress(BookieError):
            confirmed = await self._context.pool.get(bookie_id).last_confirmed(self._ledger_id)
        self._fenced |= 1 << slot
        self._confirmed = max(self._confirmed, confirmed)  # type: ignore[assignment]
        self._moved.set()

    with patch.object(Fencing, "_fence", ask_only):
        yield


# --- metadata and bytes ---------------------------------------------------------------------------------------


@_mutation("compare-and-set-without-compare")
def _cas_without_compare() -> Iterator[None]:
    """The metadata store ignores the expected version of a put."""
    put = KeySpace.put

    def put_anyway(self: KeySpace, key: str, value: bytes, *, expect: Any, lease_id: int) -> Any:
        return put(self, key, value, expect=None, lease_id=lease_id)

    with patch.object(KeySpace, "put", put_anyway):
        yield


@_mutation("no-checksums")
def _no_checksums() -> Iterator[None]:
    """Entries carry no checksum, so that nobody can tell damaged ones."""
    with patch.object(wire_entry, "crc32c", lambda data, crc=0: 0):
        yield


# --- repair ---------------------------------------------------------------------------------------------------


@_mutation("repair-without-copying")
def _repair_without_copying() -> Iterator[None]:
    """Repair writes another bookie down in the place of a lost one, but copies nothing to it."""

    async def copy_nothing(self: Copier, *_args: Any, **_options: Any) -> None:
        return

    with patch.object(Copier, "copy", copy_nothing):
        yield


# --- the bookie -----------------------------------------------------------------------------------------------


@_mutation("bookie-ignores-fence")
def _bookie_ignores_fence() -> Iterator[None]:
    """A bookie takes adds of the writer to a ledger that it has fenced."""
    with patch.object(LedgerTable, "is_fenced", lambda self, ledger_id: False):
        yield


@_mutation("fence-forgotten-at-restart")
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


@_mutation("ack-before-sync")
def _ack_before_sync() -> Iterator[None]:
    """A bookie acknowledges entries that are written to its journal but not synced."""
    write = Journal._write

    async def write_without_sync(self: Journal, records: Any, *, sync: bool) -> None:
        await write(self, records, sync=False)

    with patch.object(Journal, "_write", write_without_sync):
        yield


@_mutation("replay-skips-last-file")
def _replay_skips_last_file() -> Iterator[None]:
    """A bookie that starts does not replay the newest file of its journal."""
    scan = JournalReplay._file

    async def skip_newest(self: JournalReplay, sequence: int, *, is_last: bool) -> int:
        if is_last:
            apply, self._apply = self._apply, lambda header, body: None
            try:
                return await scan(self, sequence, is_last=is_last)
            finally:
                self._apply = apply
        return await scan(self, sequence, is_last=is_last)

    with patch.object(JournalReplay, "_file", skip_newest):
        yield


@_mutation("compaction-drops-entries")
def _compaction_drops_entries() -> Iterator[None]:
    """A bookie that rewrites entry logs leaves out the last live entry of each part."""
    newest = GarbageCollector._newest

    async def drop_last(self: GarbageCollector, ledger_id: Any, log_id: int, part: Any) -> Any:
        return (await newest(self, ledger_id, log_id, part))[:-1]

    with patch.object(GarbageCollector, "_newest", drop_last):
        yield


@_mutation("bookie-confirms-too-much")
def _bookie_confirms_too_much() -> Iterator[None]:
    """A bookie tells readers that every entry it holds is confirmed."""

    async def all_it_holds(self: Bookie, ledger_id: Any) -> Any:
        self._require_known(ledger_id)
        return self._store.last_entry(ledger_id)

    with patch.object(Bookie, "last_confirmed", all_it_holds):
        yield
