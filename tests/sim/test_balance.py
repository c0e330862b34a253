"""Balance in virtual time, in little: what it promises holds, and each mistake is found by its own checker."""

import pytest

from weir.broker.balance.balance_round import Reason
from weir.testing.balance.checkers import CHECKERS
from weir.testing.balance.mutations import MUTATIONS
from weir.testing.balance.plan import QUIET, SMALL
from weir.testing.balance.report import rows_of
from weir.testing.balance.run import run_balance

SEEDS = range(3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_with_skewed_and_moving_load_losses_joins_and_a_drain_every_promise_is_kept(seed: int) -> None:
    history = run_balance(SMALL, seed)
    assert [str(violation) for checker in CHECKERS for violation in checker(history)] == []
    assert history.moves
    assert history.splits
    table = dict(rows_of(history))
    assert table["loss absorbed (spread as before) after"].endswith(" s")


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_brokers_without_load_serve_as_many_topics_each_after_losses_and_joins(seed: int) -> None:
    history = run_balance(QUIET, seed)
    assert [str(violation) for checker in CHECKERS for violation in checker(history)] == []
    assert {move.reason for move in history.moves} <= {Reason.COUNT, Reason.DRAIN}


@pytest.mark.slow
def test_a_seed_repeats_itself() -> None:
    assert run_balance(SMALL, 7) == run_balance(SMALL, 7)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_mistake_is_found_by_its_checker(name: str) -> None:
    mutation = MUTATIONS[name]
    with mutation.applied():
        assert any(mutation.found_by(run_balance(mutation.plan, seed)) for seed in range(1, 5))


def test_each_checker_finds_a_mistake() -> None:
    assert {mutation.found_by for mutation in MUTATIONS.values()} == set(CHECKERS)
