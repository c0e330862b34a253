"""Promises of the storage broken on purpose (see `mutation`)."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from weir.bookie.bookie import Bookie
from weir.ledger import recovery as ledger_recovery
from weir.ledger import transitions
from weir.ledger.copying import Copier
from weir.ledger.ensemble import OpenEnsemble, Window
from weir.ledger.losses import Losses
from weir.ledger.quorum import Stripes
from weir.ledger.records import LedgerRecords
from weir.ledger.recovery import Fencing, Recovery
from weir.ledger.transitions import Answer, Verdict, decide
from weir.ledger.writer import LedgerWriter
from weir.meta.key_space import KeySpace
from weir.model.errors import BookieError, EntryCorruptError, RecoveryFailedError
from weir.model.ids import NO_ENTRY
from weir.model.ledger import LedgerMetadata, LedgerState, Quorum
from weir.testing.mutation import Mutations
from weir.testing.storage import checkers
from weir.testing.storage.mutations_bookie import BOOKIE_MUTATIONS
from weir.testing.storage.plan import Fault
from weir.wire.entry import verify_entry

#: Those of bookies, and those of the clients of bookies below.
MUTATIONS = Mutations(BOOKIE_MUTATIONS)
_mutation = MUTATIONS.add
_TWO_OF_TWO = Quorum(3, 2, 2)
_TWO_OF_THREE = Quorum(3, 3, 2)
_ROT_OF_ONE_COPY: dict[str, Any] = {
    "quorum": Quorum(1, 1, 1),
    "faults": (Fault.ROT,),
    "fault_every_s": 0.4,
    "appends": 200,
    "deletes": False,
    "max_payload": 300,
    "duration_s": 6.0,
}


@contextmanager
def _everywhere(function: Callable[..., Any], instead: Callable[..., Any]) -> Iterator[None]:
    """Replace a function in every module of Weir that imported it by name."""
    with ExitStack() as stack:
        for name, module in sorted(sys.modules.items()):
            if name.startswith("weir.") and getattr(module, function.__name__, None) is function:
                stack.enter_context(patch.object(module, function.__name__, instead))
        yield


# --- the writer -----------------------------------------------------------------------------------------------


@_mutation(
    "ack-below-quorum",
    checkers.acknowledged_is_replicated,
    quorum=_TWO_OF_TWO,
    faults=(Fault.CRASH_CLIENT, Fault.PARTITION),
    repair=False,
)
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


@_mutation("acks-out-of-order", checkers.acknowledgements_in_order)
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


@_mutation(
    "unrecorded-ensemble-change",
    checkers.acknowledged_is_replicated,
    bookies=5,
    quorum=_TWO_OF_TWO,
    faults=(Fault.KILL_BOOKIE, Fault.STUCK_DISK),
    repair=False,
)
def _unrecorded_ensemble_change() -> Iterator[None]:
    """The writer goes on with new bookies without writing the change down in the metadata."""

    async def keep_to_oneself(self: OpenEnsemble, bookies: Any) -> None:
        return

    with patch.object(OpenEnsemble, "_write_down", keep_to_oneself):
        yield


@_mutation("close-forgets-last-entry", checkers.recovery_keeps_acknowledged)
def _close_forgets_last_entry() -> Iterator[None]:
    """The writer closes its ledger one entry before the last acknowledged one."""
    close_at = transitions._closed

    def too_early(ledger: Any, last_entry: Any, length: int) -> Any:
        first = ledger.fragments[-1].first_entry
        return close_at(ledger, last_entry - 1 if last_entry >= first else last_entry, length)

    with patch.object(transitions, "_closed", too_early):
        yield


@_mutation("append-doubled", checkers.read_order_is_append_order)
def _append_doubled() -> Iterator[None]:
    """The writer puts the payload that starts a batch into it twice, and acknowledges the second."""
    put = LedgerWriter._put

    def put_twice(self: LedgerWriter, payload: Any, size: int) -> Any:
        if self._filling is None:
            put(self, payload, size)
        return put(self, payload, size)

    with patch.object(LedgerWriter, "_put", put_twice):
        yield


# --- recovery -------------------------------------------------------------------------------------------------


@_mutation("recovery-trusts-last-confirmed", checkers.recovery_keeps_acknowledged, recoverers=2)
def _recovery_trusts_last_confirmed() -> Iterator[None]:
    """Recovery closes at the last-add-confirmed that the bookies know, without reading on."""

    async def nothing(self: Recovery, first: Any) -> list[Any]:
        return []

    with patch.object(Recovery, "_next_chunk", nothing):
        yield


@_mutation(
    "recovery-believes-one-denial",
    checkers.recovery_keeps_acknowledged,
    bookies=3,
    recoverers=6,
    quorum=_TWO_OF_THREE,
    faults=(Fault.ONE_WAY, Fault.PARTITION),
    fault_every_s=0.3,
)
def _recovery_believes_one_denial() -> Iterator[None]:
    """Recovery ends the ledger as soon as one bookie denies an entry that none has given yet."""

    def hasty(answers: Any, quorum: Any) -> Verdict:
        answers = list(answers)
        verdict = decide(answers, quorum)
        return Verdict.ABSENT if verdict is Verdict.UNDECIDED and Answer.DENIED in answers else verdict

    with patch.object(ledger_recovery, "decide", hasty):
        yield


def recovery_without_fencing() -> Iterator[None]:
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


_mutation("recovery-without-fencing", checkers.nothing_is_acknowledged_after_recovery, recoverers=2)(
    recovery_without_fencing
)


@_mutation(
    "recovery-never-taken-over",
    checkers.all_is_available_after_healing,
    recoverers=2,
    faults=(Fault.CRASH_CLIENT,),
    fault_every_s=0.3,
)
def _recovery_never_taken_over() -> Iterator[None]:
    """Recovery leaves a ledger alone that someone else has begun to recover, even if that one died."""
    begin = transitions.begin_recovery

    def begin_only_once(ledger: LedgerMetadata) -> LedgerMetadata:
        if ledger.state is LedgerState.IN_RECOVERY:
            raise RecoveryFailedError(f"ledger {ledger.ledger_id} is in recovery already")
        return begin(ledger)

    with patch.object(ledger_recovery, "begin_recovery", begin_only_once):
        yield


@_mutation(
    "recovery-of-the-closed",
    checkers.end_never_changes,
    recoverers=2,
    quorum=Quorum(3, 3, 3),
    link_s=0.02,
    faults=(Fault.ONE_WAY, Fault.PARTITION),
    fault_every_s=0.3,
    repair=False,
)
def _recovery_of_the_closed() -> Iterator[None]:
    """Recovery does not stop at a ledger that is closed, but looks for its end once more."""
    begin = transitions.begin_recovery

    def begin_again(ledger: LedgerMetadata) -> LedgerMetadata:
        reopened = replace(ledger, state=LedgerState.IN_RECOVERY, last_entry=NO_ENTRY, length=0)
        return reopened if ledger.state is LedgerState.CLOSED else begin(ledger)

    with patch.object(ledger_recovery, "begin_recovery", begin_again):
        yield


# --- metadata and bytes ---------------------------------------------------------------------------------------


@_mutation(
    "compare-and-set-without-compare",
    checkers.one_acknowledgement_per_entry,
    writers=3,
    recoverers=2,
    ledger_appends=4,
    meta_delay_s=0.05,
    faults=(),
)
def _cas_without_compare() -> Iterator[None]:
    """The metadata store ignores the expected version of a put."""
    put = KeySpace.put

    def put_anyway(self: KeySpace, key: str, value: bytes, *, expect: Any, lease_id: int) -> Any:
        return put(self, key, value, expect=None, lease_id=lease_id)

    with patch.object(KeySpace, "put", put_anyway):
        yield


@_mutation("left-out-silently", checkers.only_damaged_is_left_out, **_ROT_OF_ONE_COPY)
def _left_out_silently() -> Iterator[None]:
    """What is damaged in its only copy is left out without a record."""

    async def nothing(self: Losses, *where: Any, **more: Any) -> None:
        pass

    with patch.object(Losses, "record", nothing):
        yield


@_mutation("whole-taken-for-damaged", checkers.only_damaged_is_left_out, **_ROT_OF_ONE_COPY)
def _whole_taken_for_damaged() -> Iterator[None]:
    """A bookie that has found damage in a ledger gives up all that it has of it."""
    read = Bookie.read
    bad: dict[tuple[Any, Any], None] = {}

    async def given_up(self: Bookie, ledger_id: Any, first: Any, last: Any, **more: Any) -> Any:
        if (self, ledger_id) in bad:
            raise EntryCorruptError(f"ledger {ledger_id} is damaged")
        try:
            return await read(self, ledger_id, first, last, **more)
        except EntryCorruptError:
            bad[self, ledger_id] = None
            raise

    with patch.object(Bookie, "read", given_up):
        yield


@_mutation("delete-keeps-record", checkers.deleted_stays_deleted, recoverers=2, deletes=True)
def _delete_keeps_record() -> Iterator[None]:
    """Delete tells the bookies to forget the ledger, but leaves its record in the metadata."""

    async def leave_it(self: LedgerRecords, ledger_id: Any) -> None:
        return

    with patch.object(LedgerRecords, "delete", leave_it):
        yield


@_mutation(
    "no-checksums",
    checkers.acknowledged_is_unchanged,
    checkers.reads_return_what_was_appended,
    faults=(Fault.BIT_FLIPS, Fault.KILL_BOOKIE),
)
def _no_checksums() -> Iterator[None]:
    """Nobody verifies the checksum of an entry that was read."""
    with _everywhere(verify_entry, lambda data: None):
        yield


# --- repair ---------------------------------------------------------------------------------------------------


@_mutation(
    "repair-without-copying",
    checkers.acknowledged_is_replicated,
    bookies=5,
    quorum=_TWO_OF_TWO,
    faults=(Fault.LOST_DISK,),
    repair=True,
)
def _repair_without_copying() -> Iterator[None]:
    """Repair writes another bookie down in the place of a lost one, but copies nothing to it."""

    async def copy_nothing(self: Copier, *_args: Any, **_options: Any) -> None:
        return

    with patch.object(Copier, "copy", copy_nothing):
        yield
