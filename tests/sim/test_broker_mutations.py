"""Each promise of brokers, broken on purpose: the checkers must find it, and not when nothing is broken."""

import pytest

from weir.testing.broker_mutations import BROKER_MUTATIONS
from weir.testing.broker_scenario import run_broker_seed

#: Where to begin to look; seeds that caught each mutation when it was written. They shift whenever timing does, so
#: the search goes on from there.
FIRST_SEED = {
    "ack-not-persisted": 0,
    "answered-before-applied": 0,
    "cursor-without-holes": 0,
    "done-before-appended": 0,
    "ids-go-back": 3,
    "key-taken-over": 0,
    "no-fencing": 3,
    "one-too-many": 0,
    "receipt-before-stored": 2,
    "released-early": 0,
    "seek-not-persisted": 0,
    "seen-before-stored": 2,
    "snapshot-without-tail": 1,
    "two-ways-at-once": 3,
    "whole-batch": 0,
}
_MOST_SEEDS = 60


@pytest.mark.parametrize("mutation", sorted(BROKER_MUTATIONS))
def test_a_broken_promise_is_found_and_only_then(mutation: str) -> None:
    first = FIRST_SEED[mutation]
    for seed in range(first, first + _MOST_SEEDS):
        caught = run_broker_seed(seed, mutation=mutation)
        if caught.violations:
            break
    else:
        pytest.fail(f"{_MOST_SEEDS} seeds from {first} on do not find: {BROKER_MUTATIONS[mutation].sin}")
    innocent = run_broker_seed(seed, mutation=mutation, innocent=True)
    assert innocent.violations == (), f"seed {seed} fails without the mutation, too"


def test_every_mutation_says_what_is_done_wrong() -> None:
    assert all(mutation.sin.endswith(".") for mutation in BROKER_MUTATIONS.values())
    assert sorted(FIRST_SEED) == sorted(BROKER_MUTATIONS)
