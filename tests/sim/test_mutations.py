"""Each promise, broken on purpose: the checkers must find it, and must not find it when nothing is broken."""

import pytest

from weir.testing.checkers import CHECKERS
from weir.testing.mutations import MUTATIONS
from weir.testing.scenario import run_seed

#: Where to begin to look; seeds that caught each mutation when it was written. They shift whenever timing does, so
#: the search goes on from there.
FIRST_SEED = {
    "ack-before-sync": 2,
    "ack-below-quorum": 0,
    "acks-out-of-order": 0,
    "bookie-confirms-too-much": 8,
    "bookie-ignores-fence": 0,
    "close-forgets-last-entry": 0,
    "compaction-drops-entries": 0,
    "compare-and-set-without-compare": 0,
    "fence-forgotten-at-restart": 3,
    "fence-forgotten-with-ledger": 18,
    "no-checksums": 2,
    "no-replay": 2,
    "recovery-believes-one-denial": 30,
    "recovery-trusts-last-confirmed": 1,
    "recovery-without-fencing": 0,
    "repair-without-copying": 2,
    "unrecorded-ensemble-change": 0,
}
_MOST_SEEDS = 150


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_a_broken_promise_is_found_and_only_then(mutation: str) -> None:
    first = FIRST_SEED[mutation]
    for seed in range(first, first + _MOST_SEEDS):
        caught = run_seed(seed, mutation=mutation)
        if caught.violations:
            break
    else:
        pytest.fail(f"{_MOST_SEEDS} seeds from {first} on do not find: {MUTATIONS[mutation].sin}")
    innocent = run_seed(seed, mutation=mutation, innocent=True)
    assert innocent.violations == (), f"seed {seed} fails without the mutation, too"


def test_every_mutation_says_what_is_done_wrong() -> None:
    assert all(mutation.sin.endswith(".") for mutation in MUTATIONS.values())
    assert sorted(FIRST_SEED) == sorted(MUTATIONS)
    assert len(CHECKERS) <= len(MUTATIONS)
