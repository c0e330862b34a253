"""Each change of metadata happens only under its predicate, and applying it twice changes nothing more."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from weir.ledger import transitions
from weir.model.errors import InvariantError, LedgerClosedError, LedgerError, WriterFencedError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState, Quorum


def fragment(first: int, *bookies: str) -> Fragment:
    return Fragment(EntryId(first), tuple(BookieId(b) for b in bookies))


OPEN = LedgerMetadata(LedgerId(1), Quorum(2, 2, 2), (fragment(0, "a", "b"), fragment(5, "a", "c")))
RECOVERING = replace(OPEN, state=LedgerState.IN_RECOVERY)
CLOSED = replace(OPEN, state=LedgerState.CLOSED, last_entry=EntryId(9), length=90)

change = partial(
    transitions.replace_bookies, fragment=fragment(7, "d", "c"), instead_of=OPEN.fragments[-1].bookies
)
close = partial(transitions.close_at, last_entry=EntryId(9), length=90)
recovered = partial(
    transitions.close_recovered,
    base=OPEN.fragments[-1],
    rewritten=(fragment(8, "d", "c"),),
    last_entry=EntryId(9),
    length=90,
)
repair = partial(transitions.replace_replica, fragment=OPEN.fragments[0], lost=BookieId("b"), by=BookieId("d"))


@pytest.mark.parametrize(
    ("transform", "before"),
    [
        pytest.param(change, OPEN, id="ensemble change"),
        pytest.param(close, OPEN, id="close"),
        pytest.param(transitions.begin_recovery, OPEN, id="begin recovery"),
        pytest.param(recovered, RECOVERING, id="close after recovery"),
        pytest.param(repair, OPEN, id="replace a replica of a closed fragment"),
        pytest.param(repair, CLOSED, id="replace a replica of a closed ledger"),
    ],
)
def test_applied_to_its_own_result_a_transform_returns_that_very_object(
    transform: Callable[[LedgerMetadata], LedgerMetadata], before: LedgerMetadata
) -> None:
    once = transform(before)
    assert once != before
    assert transform(once) is once


@pytest.mark.parametrize(
    "fenced", [RECOVERING, replace(CLOSED, last_entry=EntryId(12))], ids=lambda m: m.state.value
)
@pytest.mark.parametrize("transform", [change, close])
def test_a_writer_changes_nothing_once_the_ledger_is_not_open(
    transform: Callable[[LedgerMetadata], LedgerMetadata], fenced: LedgerMetadata
) -> None:
    with pytest.raises(WriterFencedError):
        transform(fenced)


def test_an_ensemble_change_keeps_earlier_fragments_as_repair_left_them() -> None:
    repaired = repair(OPEN)
    assert change(repaired).fragments == (fragment(0, "a", "d"), fragment(5, "a", "c"), fragment(7, "d", "c"))


def test_a_second_ensemble_change_at_the_same_entry_takes_the_place_of_the_first() -> None:
    again = partial(
        transitions.replace_bookies, fragment=fragment(7, "e", "c"), instead_of=(BookieId("d"), BookieId("c"))
    )
    assert again(change(OPEN)).fragments == (*OPEN.fragments, fragment(7, "e", "c"))


def test_an_ensemble_that_is_not_the_writers_own_is_never_overwritten() -> None:
    with pytest.raises(InvariantError):
        transitions.replace_bookies(
            OPEN, fragment=fragment(7, "d", "c"), instead_of=(BookieId("x"), BookieId("c"))
        )


def test_a_close_drops_fragments_that_start_after_the_end() -> None:
    changed = transitions.replace_bookies(
        OPEN, fragment=fragment(10, "d", "c"), instead_of=OPEN.fragments[-1].bookies
    )
    assert close(changed).fragments == OPEN.fragments


def test_a_close_below_the_last_fragment_is_refused() -> None:
    with pytest.raises(InvariantError):
        transitions.close_at(OPEN, last_entry=EntryId(3), length=1)


def test_recovery_of_a_closed_ledger_does_not_begin() -> None:
    with pytest.raises(LedgerClosedError):
        transitions.begin_recovery(CLOSED)


def test_whoever_closes_first_decides_the_end() -> None:
    assert recovered(CLOSED) is CLOSED
    other = replace(CLOSED, last_entry=EntryId(7))
    assert recovered(other) is other


def test_a_recovered_tail_lives_where_it_was_written_back() -> None:
    closed = recovered(RECOVERING)
    assert closed.fragments == (*OPEN.fragments, fragment(8, "d", "c"))
    assert (closed.state, closed.last_entry, closed.length) == (LedgerState.CLOSED, 9, 90)


@pytest.mark.parametrize("ledger", [OPEN, RECOVERING], ids=lambda m: m.state.value)
def test_the_fragment_that_is_being_written_is_never_repaired(ledger: LedgerMetadata) -> None:
    with pytest.raises(LedgerError, match="still being written"):
        transitions.replace_replica(ledger, fragment=OPEN.fragments[-1], lost=BookieId("c"), by=BookieId("d"))


def test_a_fragment_that_changed_meanwhile_is_not_repaired_over() -> None:
    with pytest.raises(LedgerError, match="no longer"):
        transitions.replace_replica(OPEN, fragment=fragment(0, "a", "x"), lost=BookieId("x"), by=BookieId("d"))


def test_a_bookie_never_stands_twice_in_an_ensemble() -> None:
    with pytest.raises(LedgerError, match="already holds"):
        transitions.replace_replica(CLOSED, fragment=CLOSED.fragments[0], lost=BookieId("b"), by=BookieId("a"))
