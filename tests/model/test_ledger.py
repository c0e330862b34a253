"""Ledger metadata as a value: placement of entries and change of ensembles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import InvariantError, WeirError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, Quorum

quorums = st.integers(1, 7).flatmap(
    lambda e: st.integers(1, e).flatmap(lambda w: st.integers(1, w).map(lambda a: Quorum(e, w, a)))
)


def bookies(count: int, prefix: str = "b") -> tuple[BookieId, ...]:
    return tuple(BookieId(f"{prefix}{i}") for i in range(count))


def ledger(quorum: Quorum) -> LedgerMetadata:
    return LedgerMetadata(LedgerId(1), quorum, (Fragment(EntryId(0), bookies(quorum.ensemble)),))


@pytest.mark.parametrize("sizes", [(0, 0, 0), (2, 3, 1), (3, 2, 3), (3, 3, 0)])
def test_a_quorum_that_cannot_be_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvariantError):
        Quorum(*sizes)


@given(quorums, st.integers(0, 2**40))
def test_a_write_set_is_qw_different_bookies_of_the_ensemble(quorum: Quorum, entry: int) -> None:
    metadata = ledger(quorum)
    chosen = metadata.write_set(EntryId(entry))
    assert len(set(chosen)) == quorum.write
    assert set(chosen) <= set(metadata.fragments[0].bookies)


@given(quorums)
def test_striping_gives_every_bookie_the_same_share(quorum: Quorum) -> None:
    metadata = ledger(quorum)
    share = dict.fromkeys(metadata.fragments[0].bookies, 0)
    for entry in range(quorum.ensemble * 4):
        for bookie in metadata.write_set(EntryId(entry)):
            share[bookie] += 1
    assert set(share.values()) == {quorum.write * 4}


@given(quorums)
def test_coverage_denials_and_an_ack_quorum_always_share_a_bookie(quorum: Quorum) -> None:
    assert quorum.coverage + quorum.ack == quorum.write + 1


def test_an_entry_lives_where_the_last_fragment_at_or_before_it_says() -> None:
    metadata = ledger(Quorum(2, 2, 1)).with_fragment(Fragment(EntryId(10), bookies(2, "c")))
    assert metadata.write_set(EntryId(9)) == ("b1", "b0")
    assert metadata.write_set(EntryId(10)) == ("c0", "c1")
    assert metadata.bookies() == ("b0", "b1", "c0", "c1")


def test_a_fragment_from_the_same_entry_replaces_the_one_before() -> None:
    once = ledger(Quorum(1, 1, 1)).with_fragment(Fragment(EntryId(5), bookies(1, "c")))
    twice = once.with_fragment(Fragment(EntryId(5), bookies(1, "d")))
    assert [f.bookies for f in twice.fragments] == [("b0",), ("d0",)]


def test_every_error_says_what_happened_and_what_to_do() -> None:
    def tree(kind: type[WeirError]) -> list[type[WeirError]]:
        below = [k for k in kind.__subclasses__() if k.__module__ == WeirError.__module__]
        return [kind, *(found for each in below for found in tree(each))]

    for kind in tree(WeirError):
        assert kind.__doc__
        assert str(kind("it broke", hint="mend it")) == "it broke (mend it)"
