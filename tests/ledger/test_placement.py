"""Ensembles are spread over racks as far as the bookies at hand allow."""

import itertools
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.ledger.quorum import choose_ensemble, choose_replacement, crowded_write_sets
from weir.model.errors import NotEnoughBookiesError
from weir.model.ids import BookieId
from weir.model.ledger import Quorum
from weir.testing.kinds import rounds


def racks_of(labels: str) -> dict[BookieId, str]:
    return {BookieId(f"b{i}"): label for i, label in enumerate(labels)}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[BookieId, str], Quorum]:
    labels = draw(st.text(alphabet="ABC", min_size=1, max_size=7))
    ensemble = draw(st.integers(1, min(5, len(labels))))
    write = draw(st.integers(1, ensemble))
    return racks_of(labels), Quorum(ensemble, write, draw(st.integers(1, write)))


@given(clusters(), st.integers(0, 2**32))
def test_an_ensemble_has_distinct_bookies_that_take_entries(
    cluster: tuple[dict[BookieId, str], Quorum], seed: int
) -> None:
    racks, quorum = cluster
    chosen = choose_ensemble(racks, quorum, Random(seed))
    assert len(chosen) == len(set(chosen)) == quorum.ensemble
    assert all(b in racks for b in chosen)


@settings(max_examples=rounds(150), deadline=None)
@given(clusters(), st.integers(0, 2**32))
def test_no_other_choice_would_spread_the_write_sets_better(
    cluster: tuple[dict[BookieId, str], Quorum], seed: int
) -> None:
    racks, quorum = cluster
    chosen = choose_ensemble(racks, quorum, Random(seed))
    labels = {f"{i}{label}": label for i, label in enumerate(sorted(racks.values()))}
    best = min(
        crowded_write_sets([BookieId(b) for b in order], {BookieId(b): r for b, r in labels.items()}, quorum.write)
        for order in {tuple(o) for o in itertools.permutations(labels, quorum.ensemble)}
    )
    assert crowded_write_sets(chosen, racks, quorum.write) == best


@given(clusters(), st.integers(0, 2**32))
def test_the_same_dice_give_the_same_ensemble(cluster: tuple[dict[BookieId, str], Quorum], seed: int) -> None:
    racks, quorum = cluster
    shuffled = dict(reversed(racks.items()))
    assert choose_ensemble(racks, quorum, Random(seed)) == choose_ensemble(shuffled, quorum, Random(seed))


def test_every_bookie_is_chosen_some_time() -> None:
    racks = racks_of("AABB")
    seen = {b for seed in range(50) for b in choose_ensemble(racks, Quorum(2, 2, 2), Random(seed))}
    assert seen == set(racks)


def test_bookies_to_avoid_are_taken_only_when_the_ensemble_needs_them() -> None:
    racks = racks_of("ABCD")
    avoid = [BookieId("b0"), BookieId("b1")]
    for seed in range(20):
        assert set(choose_ensemble(racks, Quorum(2, 2, 2), Random(seed), avoid=avoid)) == {"b2", "b3"}
        assert {"b2", "b3"} < set(choose_ensemble(racks, Quorum(3, 2, 2), Random(seed), avoid=avoid))


def test_too_few_bookies_are_named_in_the_error() -> None:
    with pytest.raises(NotEnoughBookiesError, match="b0"):
        choose_ensemble(racks_of("A"), Quorum(2, 2, 1), Random(1))


@given(clusters(), st.integers(0, 2**32))
def test_a_replacement_keeps_the_best_spread_that_any_candidate_allows(
    cluster: tuple[dict[BookieId, str], Quorum], seed: int
) -> None:
    racks, quorum = cluster
    ensemble = choose_ensemble(racks, quorum, Random(seed))
    slot = seed % quorum.ensemble
    chosen = choose_replacement(racks, list(racks), ensemble, slot, quorum, rng=Random(seed))
    others = [b for b in racks if b not in ensemble]
    if chosen is None:
        assert others == []
        return

    def crowded(candidate: BookieId) -> int:
        return crowded_write_sets([*ensemble[:slot], candidate, *ensemble[slot + 1 :]], racks, quorum.write)

    assert chosen in others
    assert crowded(chosen) == min(crowded(b) for b in others)
