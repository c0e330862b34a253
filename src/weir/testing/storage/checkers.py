"""What the storage promises, as pure functions from a history to the places where a promise was broken.

Each checker is one promise.

An append that failed or was never answered may be in the ledger or not: only what was acknowledged, or was
once read, binds. A ledger that anyone tried to delete binds nobody to keep its entries, but its fence stands.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from weir.model.ids import EntryId, LedgerId
from weir.testing.checking import AVAILABLE, Checker, Violation
from weir.testing.operations import grouped, of
from weir.testing.storage.history import LedgerOpKind, Op


def acknowledged_is_kept(ops: Sequence[Op]) -> list[Violation]:
    """An acknowledged entry is never lost: once all is healed, it can be read."""
    promise = "an acknowledged entry is never lost"
    final = {(op.ledger, op.entry): op for op in of(ops, LedgerOpKind.READ) if op.final and not op.ok}
    found = []
    for ack in _kept(ops, _acknowledged(ops)):
        lost = final.get((ack.ledger, ack.entry))
        if lost is not None:
            sentence = (
                f"entry {ack.entry} of ledger {ack.ledger} was acknowledged to {ack.client} and cannot be read"
            )
            found.append(Violation(promise, sentence, (ack, lost)))
    return found


def acknowledged_is_unchanged(ops: Sequence[Op]) -> list[Violation]:
    """An acknowledged entry is never changed: whoever reads its id, at any time, gets what was appended."""
    promise = "an acknowledged entry is never changed"
    acks = {(op.ledger, op.entry): op for op in _acknowledged(ops)}
    found = []
    for read in of(ops, LedgerOpKind.READ):
        ack = acks.get((read.ledger, read.entry))
        if read.ok and ack is not None and ack.payload != read.payload:
            sentence = (
                f"entry {read.entry} of ledger {read.ledger} was acknowledged as {ack.payload}, "
                f"and {read.client} read {read.payload}"
            )
            found.append(Violation(promise, sentence, (ack, read)))
    return found


def readable_stays_readable(ops: Sequence[Op]) -> list[Violation]:
    """An entry once readable stays readable, with the same content."""
    promise = "an entry once readable stays readable"
    first: dict[tuple[LedgerId, EntryId | None], Op] = {}
    found = []
    for read in sorted((op for op in of(ops, LedgerOpKind.READ) if op.ended is not None), key=_over):
        earlier = first.get((read.ledger, read.entry))
        if read.ok and earlier is None:
            first[(read.ledger, read.entry)] = read
        elif read.ok and earlier is not None and earlier.payload != read.payload:
            sentence = (
                f"entry {read.entry} of ledger {read.ledger} was read as {earlier.payload} by {earlier.client} "
                f"and later as {read.payload} by {read.client}"
            )
            found.append(Violation(promise, sentence, (earlier, read)))
        elif read.final and not read.ok and earlier is not None and _kept(ops, [earlier]):
            sentence = f"entry {read.entry} of ledger {read.ledger} was read by {earlier.client} and now cannot be"
            found.append(Violation(promise, sentence, (earlier, read)))
    return found


def recovery_keeps_acknowledged(ops: Sequence[Op]) -> list[Violation]:
    """Nobody closes a ledger below an entry that was acknowledged or once readable."""
    promise = "a ledger is never closed below an acknowledged or readable entry"
    highest = _highest_binding(ops)
    found = []
    for close in _closings(ops):
        kept = highest.get(close.ledger)
        if kept is not None and kept.entry is not None and close.end is not None and close.end < kept.entry:
            how = "acknowledged" if kept.kind is LedgerOpKind.APPEND else "readable"
            sentence = (
                f"ledger {close.ledger} was closed at {close.end} by {close.client}, "
                f"but its entry {kept.entry} was {how} for {kept.client}"
            )
            found.append(Violation(promise, sentence, (kept, close)))
    return found


def one_acknowledgement_per_entry(ops: Sequence[Op]) -> list[Violation]:
    """Two appends, of whatever writers, are never both acknowledged as the same entry."""
    promise = "two writers never both get an acknowledgement for the same entry"
    first: dict[tuple[LedgerId, EntryId | None], Op] = {}
    found = []
    for ack in _acknowledged(ops):
        earlier = first.setdefault((ack.ledger, ack.entry), ack)
        if earlier is not ack:
            sentence = (
                f"entry {ack.entry} of ledger {ack.ledger} was acknowledged to {earlier.client} "
                f"as {earlier.payload} and to {ack.client} as {ack.payload}"
            )
            found.append(Violation(promise, sentence, (earlier, ack)))
    return found


def acknowledgements_in_order(ops: Sequence[Op]) -> list[Violation]:
    """A writer's appends get entry ids in the order in which it appended, and are acknowledged in that order."""
    promise = "acknowledgements come in the order of the appends"
    found = []
    for acks in grouped(_acknowledged(ops), lambda op: (op.client, op.ledger)).values():
        told = sorted(acks, key=_over)
        for earlier, later in pairwise(told):
            if later.began < earlier.began or not _entry(earlier) < _entry(later):
                sentence = (
                    f"{later.client} was acknowledged {later.payload} as entry {later.entry} of ledger "
                    f"{later.ledger} after {earlier.payload} as entry {earlier.entry}"
                )
                found.append(Violation(promise, sentence, (earlier, later)))
    return found


def read_order_is_append_order(ops: Sequence[Op]) -> list[Violation]:
    """What one writer appended is found in the ledger in the order in which it appended it, once each."""
    promise = "entries are never reordered or doubled"
    appended = {op.payload: op for op in of(ops, LedgerOpKind.APPEND)}
    found = []
    for ledger, reads in _by_ledger(
        op for op in of(ops, LedgerOpKind.READ) if op.ok and op.payload in appended
    ).items():
        places = {(read.entry, read.payload): read for read in reads}
        by_place = sorted(places.values(), key=_entry)
        latest: dict[str, Op] = {}
        for read in by_place:
            append = appended[read.payload]
            before = latest.get(append.client)
            if before is not None and appended[before.payload].began >= append.began:
                sentence = (
                    f"in ledger {ledger}, {before.payload} stands at entry {before.entry}, "
                    f"before {read.payload} at entry {read.entry}"
                )
                found.append(Violation(promise, sentence, (appended[before.payload], append, before, read)))
            latest[append.client] = read
    return found


def reads_return_what_was_appended(ops: Sequence[Op]) -> list[Violation]:
    """A reader is handed only bytes that someone had begun to append to that ledger by then."""
    promise = "damaged or foreign bytes are never served"
    appended = {(op.ledger, op.payload): op for op in of(ops, LedgerOpKind.APPEND)}
    found = []
    for read in of(ops, LedgerOpKind.READ):
        if not read.ok:
            continue
        append = appended.get((read.ledger, read.payload))
        if append is None or append.began > read.over:
            sentence = (
                f"{read.client} read {read.payload} in ledger {read.ledger}, which nobody had appended to it"
            )
            found.append(Violation(promise, sentence, (read,)))
    return found


def confirmed_is_true(ops: Sequence[Op]) -> list[Violation]:
    """A last-add-confirmed that a reader saw never goes back for it, and the ledger never ends below it."""
    promise = "a last-add-confirmed once seen holds"
    closings = _by_ledger(_closings(ops))
    found = []
    seen: dict[tuple[str, LedgerId], Op] = {}
    for op in sorted((op for op in of(ops, LedgerOpKind.CONFIRMED) if op.ok), key=_over):
        for close in closings.get(op.ledger, []):
            if _end(close) < _end(op):
                sentence = (
                    f"{op.client} saw ledger {op.ledger} confirmed up to {op.end}, "
                    f"but {close.client} closed it at {close.end}"
                )
                found.append(Violation(promise, sentence, (op, close)))
        before = seen.get((op.client, op.ledger))
        if before is not None and before.over < op.began and _end(op) < _end(before):
            sentence = (
                f"{op.client} saw ledger {op.ledger} confirmed up to {before.end} and later only to {op.end}"
            )
            found.append(Violation(promise, sentence, (before, op)))
        seen[(op.client, op.ledger)] = op
    return found


def end_never_changes(ops: Sequence[Op]) -> list[Violation]:
    """Whoever closes or recovers a ledger is told the same end."""
    promise = "the end of a closed ledger never changes"
    found = []
    for closings in _by_ledger(_closings(ops)).values():
        first = closings[0]
        for other in closings[1:]:
            if other.end != first.end:
                sentence = (
                    f"ledger {first.ledger} ends at {first.end} for {first.client} "
                    f"and at {other.end} for {other.client}"
                )
                found.append(Violation(promise, sentence, (first, other)))
                break
    return found


def nothing_is_acknowledged_after_recovery(ops: Sequence[Op]) -> list[Violation]:
    """Once a recovery or a close has ended, no append that began later is acknowledged."""
    promise = "a recovered or closed ledger takes no more entries"
    found = []
    closings = _by_ledger(_closings(ops))
    for ack in _acknowledged(ops):
        for close in closings.get(ack.ledger, []):
            if close.over < ack.began:
                sentence = (
                    f"ledger {ack.ledger} was closed by {close.client} before {ack.client} began to append "
                    f"{ack.payload}, which was acknowledged as entry {ack.entry}"
                )
                found.append(Violation(promise, sentence, (close, ack)))
                break
    return found


def deleted_stays_deleted(ops: Sequence[Op]) -> list[Violation]:
    """A deleted ledger cannot be opened again."""
    promise = "a deleted ledger does not come back"
    deleted: dict[LedgerId, Op] = {}
    for op in of(ops, LedgerOpKind.DELETE):
        if op.ok:
            deleted.setdefault(op.ledger, op)
    found = []
    for op in of(ops, LedgerOpKind.RECOVER):
        delete = deleted.get(op.ledger)
        if op.ok and delete is not None and delete.over < op.began:
            sentence = f"ledger {op.ledger} was deleted by {delete.client} and then opened by {op.client}"
            found.append(Violation(promise, sentence, (delete, op)))
    return found


def acknowledged_is_replicated(ops: Sequence[Op]) -> list[Violation]:
    """Once all is healed and repaired, as many bookies as the ack quorum hold each entry of a closed ledger."""
    promise = "an acknowledged entry survives the loss of all but one bookie of its ack quorum"
    found = []
    rotted = _rotted(ops)  # one that was still read from a cache, too
    few = (op for op in of(ops, LedgerOpKind.COPIES) if not op.ok and (op.ledger, op.entry) not in rotted)
    for op in _kept(ops, few):
        sentence = f"entry {op.entry} of ledger {op.ledger} is held by too few bookies"
        found.append(Violation(promise, sentence, (op,)))
    return found


def only_damaged_is_left_out(ops: Sequence[Op]) -> list[Violation]:
    """Nothing is left out but what is damaged in its only copy, and the metadata name it."""
    promise = "what is left out was damaged, and is written down"
    rotted = _rotted(ops)
    found = []
    for op in of(ops, LedgerOpKind.LEFT_OUT):
        if not op.ok:
            sentence = f"entry {op.entry} of ledger {op.ledger} is left out, and no record says so"
            found.append(Violation(promise, sentence, (op,)))
        if (op.ledger, op.entry) not in rotted:
            sentence = f"entry {op.entry} of ledger {op.ledger} is left out, and nothing damaged it"
            found.append(Violation(promise, sentence, (op,)))
    return found


def all_is_available_after_healing(ops: Sequence[Op]) -> list[Violation]:
    """Once every fault is healed and every node restarted, every ledger can be recovered, read and closed."""
    promise = AVAILABLE
    found = []
    asked = (op for op in ops if op.final and not op.ok and op.kind is not LedgerOpKind.COPIES)
    for op in _kept(ops, asked):
        what = "" if op.entry is None else f" of entry {op.entry}"
        sentence = f"{op.kind.value}{what} of ledger {op.ledger} did not succeed"
        found.append(Violation(promise, sentence, (op,)))
    return found


#: In this order: the first violation of the first broken promise is the one that a report shows.
CHECKERS: tuple[Checker, ...] = (
    one_acknowledgement_per_entry,
    acknowledged_is_unchanged,
    recovery_keeps_acknowledged,
    acknowledged_is_kept,
    readable_stays_readable,
    acknowledgements_in_order,
    read_order_is_append_order,
    reads_return_what_was_appended,
    end_never_changes,
    confirmed_is_true,
    nothing_is_acknowledged_after_recovery,
    deleted_stays_deleted,
    acknowledged_is_replicated,
    only_damaged_is_left_out,
    all_is_available_after_healing,
)


# --- selections ---------------------------------------------------------------------------------------------


def _acknowledged(ops: Iterable[Op]) -> list[Op]:
    return [op for op in of(ops, LedgerOpKind.APPEND) if op.ok]


def _closings(ops: Iterable[Op]) -> list[Op]:
    return [op for op in ops if op.ok and op.kind in (LedgerOpKind.RECOVER, LedgerOpKind.CLOSE)]


def _kept(ops: Sequence[Op], among: Iterable[Op]) -> list[Op]:
    """Those whose ledger nobody tried to delete, and of which the only copy was not damaged."""
    deleted = {op.ledger for op in of(ops, LedgerOpKind.DELETE)}
    lost = _rotted(ops) & {(op.ledger, op.entry) for op in of(ops, LedgerOpKind.LEFT_OUT)}
    return [op for op in among if op.ledger not in deleted and (op.ledger, op.entry) not in lost]


def _rotted(ops: Iterable[Op]) -> set[tuple[LedgerId, EntryId | None]]:
    """Entries whose only copy may have been damaged."""
    return {(op.ledger, op.entry) for op in of(ops, LedgerOpKind.ROTTED)}


def _highest_binding(ops: Sequence[Op]) -> dict[LedgerId, Op]:
    """The highest entry of each ledger that was acknowledged or read, with its proof."""
    highest: dict[LedgerId, Op] = {}
    for op in [*_acknowledged(ops), *(read for read in of(ops, LedgerOpKind.READ) if read.ok)]:
        best = highest.get(op.ledger)
        if best is None or _entry(op) > _entry(best):
            highest[op.ledger] = op
    return highest


def _by_ledger(ops: Iterable[Op]) -> dict[LedgerId, list[Op]]:
    return grouped(ops, lambda op: op.ledger)


def _over(op: Op) -> int:
    return op.over


def _entry(op: Op) -> int:
    return -1 if op.entry is None else op.entry


def _end(op: Op) -> int:
    return -1 if op.end is None else op.end
