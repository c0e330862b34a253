"""Each promise, broken on purpose: its own checker must find it, and none when nothing is broken."""

import pytest

from weir.testing.checkers import CHECKERS, rejecting
from weir.testing.mutations import MUTATIONS
from weir.testing.scenario import run_seed

#: Where to begin to look; seeds that caught each mutation when it was written. They shift whenever timing does, so
#: the search goes on from there.
FIRST_SEED = {
    "ack-before-sync": 2,
    "ack-below-quorum": 0,
    "acks-out-of-order": 0,
    "append-doubled": 0,
    "bookie-confirms-too-much": 8,
    "bookie-ignores-fence": 0,
    "close-forgets-last-entry": 0,
    "compaction-drops-entries": 0,
    "compare-and-set-without-compare": 0,
    "delete-keeps-record": 0,
    "fence-forgotten-at-restart": 3,
    "fence-forgotten-with-ledger": 4,
    "no-checksums": 2,
    "no-replay": 3,
    "recovery-believes-one-denial": 4,
    "recovery-never-taken-over": 0,
    "recovery-of-the-closed": 2,
    "recovery-trusts-last-confirmed": 0,
    "recovery-without-fencing": 0,
    "repair-without-copying": 2,
    "unrecorded-ensemble-change": 0,
}
_MOST_SEEDS = 150


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_a_broken_promise_is_found_by_its_checkers_and_only_then(mutation: str) -> None:
    first, wanted = FIRST_SEED[mutation], MUTATIONS[mutation].found_by
    for seed in range(first, first + _MOST_SEEDS):
        if rejecting(run_seed(seed, mutation=mutation).ops, wanted) == list(wanted):
            break
    else:
        names = ", ".join(checker.__name__ for checker in wanted)
        pytest.fail(f"in {_MOST_SEEDS} seeds from {first} on, {names} missed: {MUTATIONS[mutation].sin}")
    innocent = run_seed(seed, mutation=mutation, innocent=True)
    assert innocent.violations == (), f"seed {seed} fails without the mutation, too"


def test_every_checker_has_a_mutation_that_it_must_find() -> None:
    found_by = [checker.__name__ for mutation in MUTATIONS.values() for checker in mutation.found_by]
    assert sorted(set(found_by)) == sorted(checker.__name__ for checker in CHECKERS)


def test_every_mutation_says_what_is_done_wrong_and_who_finds_it() -> None:
    assert all(mutation.sin.endswith(".") and mutation.found_by for mutation in MUTATIONS.values())
    assert sorted(FIRST_SEED) == sorted(MUTATIONS)
