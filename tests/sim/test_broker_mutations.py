"""Each promise of brokers, broken on purpose: the own checkers must find it, and none when nothing is broken."""

from collections.abc import Sequence

import pytest

from weir.testing.broker_checkers import CHECKERS
from weir.testing.broker_history import BrokerOp
from weir.testing.broker_mutations import BROKER_MUTATIONS
from weir.testing.broker_scenario import run_broker_seed
from weir.testing.errors import LivelockError

#: Where to begin to look; seeds that caught each mutation when it was written. They shift whenever timing does, so
#: the search goes on from there.
FIRST_SEED = {
    "cancel-forgotten": 0,
    "receipt-elsewhere": 0,
    "ack-not-persisted": 0,
    "answered-before-applied": 1,
    "cursor-without-holes": 0,
    "done-before-appended": 9,
    "ids-go-back": 3,
    "key-taken-over": 3,
    "no-fencing": 6,
    "one-too-many": 0,
    "receipt-before-stored": 2,
    "released-early": 0,
    "seek-not-persisted": 6,
    "seen-before-stored": 2,
    "snapshot-without-tail": 1,
    "two-ways-at-once": 5,
    "whole-batch": 0,
}
_MOST_SEEDS = 120


@pytest.mark.parametrize("mutation", sorted(BROKER_MUTATIONS))
def test_a_broken_promise_is_found_by_its_checkers_and_only_then(mutation: str) -> None:
    first, wanted = FIRST_SEED[mutation], BROKER_MUTATIONS[mutation].found_by
    for seed in range(first, first + _MOST_SEEDS):
        if all(checker(ops_of(seed, mutation)) for checker in wanted):
            break
    else:
        names = ", ".join(checker.__name__ for checker in wanted)
        pytest.fail(f"in {_MOST_SEEDS} seeds from {first} on, {names} missed: {BROKER_MUTATIONS[mutation].sin}")
    innocent = run_broker_seed(seed, mutation=mutation, innocent=True)
    assert innocent.violations == (), f"seed {seed} fails without the mutation, too"


def ops_of(seed: int, mutation: str) -> Sequence[BrokerOp]:
    try:
        return run_broker_seed(seed, mutation=mutation).ops
    except LivelockError:  # a broken promise may also turn a loop into one without end
        return ()


def test_every_checker_has_a_mutation_that_it_must_find() -> None:
    found_by = [checker.__name__ for mutation in BROKER_MUTATIONS.values() for checker in mutation.found_by]
    assert sorted(set(found_by)) == sorted(checker.__name__ for checker in CHECKERS)


def test_every_mutation_says_what_is_done_wrong_and_who_finds_it() -> None:
    assert all(mutation.sin.endswith(".") and mutation.found_by for mutation in BROKER_MUTATIONS.values())
    assert sorted(FIRST_SEED) == sorted(BROKER_MUTATIONS)
