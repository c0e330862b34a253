"""Every change of a ledger's metadata: a predicate and a pure transform, applied by compare-and-set.

A transform gets the metadata as it is and returns it as it shall be, or raises a LedgerError because its
predicate does not hold. Each is idempotent: applied to its own result it returns that very object, so that a
change whose outcome was unknown can simply be tried again (`weir.meta.update`).

| transform        | who             | predicate                                  | afterwards             |
| ---------------- | --------------- | ------------------------------------------ | ---------------------- |
| replace_bookies  | the writer      | OPEN, and the last fragment is the writer's | OPEN, a new fragment   |
| close_at         | the writer      | OPEN                                       | CLOSED                 |
| begin_recovery   | any recoverer   | not CLOSED                                 | IN_RECOVERY            |
| close_recovered  | any recoverer   | IN_RECOVERY                                | CLOSED                 |
| replace_replica  | a repair worker | the fragment is closed and names the bookie | the same state         |

Recovery decides with the tables below whether an entry belongs to the ledger. The answer of each bookie of the
entry's write set:

| answer  | meaning                                                                                             |
| ------- | --------------------------------------------------------------------------------------------------- |
| HELD    | it gave the entry whole                                                                             |
| DENIED  | fenced first, it then said that it does not hold the entry: it never will acknowledge it            |
| DAMAGED | it holds the entry, and its copy is damaged: it may have acknowledged it                            |
| UNKNOWN | no answer, or denied before it was fenced: it may have acknowledged the entry, or yet may           |

| any HELD | DENIED         | verdict   | because                                                               |
| -------- | -------------- | --------- | --------------------------------------------------------------------- |
| yes      | any            | EXISTS    | it may have been acknowledged; keeping it is always right             |
| no       | >= Qw - Qa + 1 | ABSENT    | at most Qa - 1 can ever hold it, so the writer never acknowledges it  |
| no       | fewer, all     | LOST      | it may have been acknowledged, and nobody has it whole: it keeps its  |
|          | others DAMAGED |           | place in the ledger, as a gap                                         |
| no       | fewer          | UNDECIDED | an ack quorum may lie among the silent ones: ask again, never guess   |
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum

from weir.model.check import check
from weir.model.errors import LedgerClosedError, LedgerError, WriterFencedError
from weir.model.ids import NO_ENTRY, BookieId, EntryId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState, Quorum


def replace_bookies(
    ledger: LedgerMetadata, *, fragment: Fragment, instead_of: tuple[BookieId, ...]
) -> LedgerMetadata:
    """The writer's ensemble change: from `fragment.first_entry` on, entries live on other bookies."""
    _writer_only(ledger)
    last = ledger.fragments[-1]
    if last == fragment:
        return ledger
    check(
        last.bookies == instead_of and last.first_entry <= fragment.first_entry,
        f"only its writer changes the last ensemble of ledger {ledger.ledger_id}",
    )
    return ledger.with_fragment(fragment)


def close_at(ledger: LedgerMetadata, *, last_entry: EntryId, length: int) -> LedgerMetadata:
    """The writer's close: nothing after `last_entry` was acknowledged, and nothing will be."""
    if ledger.state is LedgerState.CLOSED and (ledger.last_entry, ledger.length) == (last_entry, length):
        return ledger
    _writer_only(ledger)
    return _closed(ledger, last_entry, length)


def begin_recovery(ledger: LedgerMetadata) -> LedgerMetadata:
    """From here on the writer can neither change the ensemble nor close. A crashed recoverer's ledger may be taken
    over; what it had found is found again."""
    if ledger.state is LedgerState.CLOSED:
        raise LedgerClosedError(f"ledger {ledger.ledger_id} is closed already, at entry {ledger.last_entry}")
    if ledger.state is LedgerState.IN_RECOVERY:
        return ledger
    return replace(ledger, state=LedgerState.IN_RECOVERY)


def close_recovered(
    ledger: LedgerMetadata,
    *,
    base: Fragment,
    rewritten: Sequence[Fragment],
    last_entry: EntryId,
    length: int,
) -> LedgerMetadata:
    """The recoverer's close: the tail, read from `base`, was written back as the `rewritten` fragments say.

    Whoever closes first decides; a ledger that is closed already is the answer for everyone else.
    """
    if ledger.state is LedgerState.CLOSED:
        return ledger
    check(ledger.state is LedgerState.IN_RECOVERY, f"a ledger in recovery never opens again: {ledger}")
    check(ledger.fragments[-1] == base, f"nobody changes the last ensemble during recovery: {ledger}")
    for fragment in rewritten:
        check(
            base.first_entry <= fragment.first_entry, f"recovery rewrites the last fragment only, not {fragment}"
        )
        ledger = ledger.with_fragment(fragment)
    return _closed(ledger, last_entry, length)


def replace_replica(ledger: LedgerMetadata, *, fragment: Fragment, lost: BookieId, by: BookieId) -> LedgerMetadata:
    """The repair's change: `by` now holds everything that `lost` should hold of a closed fragment."""
    wanted = Fragment(fragment.first_entry, tuple(by if b == lost else b for b in fragment.bookies))
    if wanted in ledger.fragments:
        return ledger
    if fragment not in ledger.fragments:
        raise LedgerError(
            f"ledger {ledger.ledger_id} no longer has the fragment at {fragment.first_entry} as copied"
        )
    if by in fragment.bookies:
        raise LedgerError(f"{by} already holds its own part of the fragment at {fragment.first_entry}")
    if ledger.state is not LedgerState.CLOSED and fragment == ledger.fragments[-1]:
        raise LedgerError(f"the last fragment of ledger {ledger.ledger_id} is still being written")
    return replace(ledger, fragments=tuple(wanted if f == fragment else f for f in ledger.fragments))


def _writer_only(ledger: LedgerMetadata) -> None:
    if ledger.state is not LedgerState.OPEN:
        raise WriterFencedError(f"ledger {ledger.ledger_id} is {ledger.state.value}: someone else recovered it")


def _closed(ledger: LedgerMetadata, last_entry: EntryId, length: int) -> LedgerMetadata:
    # A fragment that starts after the end holds nothing; only the first stays, for an empty ledger.
    check(
        last_entry >= ledger.fragments[-1].first_entry - 1, f"{ledger} may not be closed below its last fragment"
    )
    check(length >= 0 and last_entry >= NO_ENTRY, f"a ledger ends at {NO_ENTRY} or later, not {last_entry}")
    kept = tuple(f for f in ledger.fragments[1:] if f.first_entry <= last_entry)
    return replace(
        ledger,
        fragments=(ledger.fragments[0], *kept),
        state=LedgerState.CLOSED,
        last_entry=last_entry,
        length=length,
    )


class Answer(Enum):
    """What one bookie said about an entry."""

    HELD = "held"
    DENIED = "denied"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"


class Verdict(Enum):
    """What follows for the entry."""

    EXISTS = "exists"
    ABSENT = "absent"
    LOST = "lost"
    UNDECIDED = "undecided"


def decide(answers: Iterable[Answer], quorum: Quorum) -> Verdict:
    """The verdict on an entry by what the bookies of its write set said."""
    denied = unknown = 0
    for answer in answers:
        if answer is Answer.HELD:
            return Verdict.EXISTS
        denied += answer is Answer.DENIED
        unknown += answer is Answer.UNKNOWN
    if denied >= quorum.coverage:
        return Verdict.ABSENT
    return Verdict.UNDECIDED if unknown else Verdict.LOST
