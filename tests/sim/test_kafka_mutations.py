"""Each promise to Kafka's clients, broken on purpose: its checkers must find it, and only then."""

from collections.abc import Sequence

import pytest

from weir.testing.errors import LivelockError
from weir.testing.kafka_checkers import CHECKERS
from weir.testing.kafka_history import KafkaOp
from weir.testing.kafka_mutations import KAFKA_MUTATIONS
from weir.testing.kafka_scenario import run_kafka_seed

#: Where to begin to look; seeds that caught each mutation when it was written. They shift whenever timing does, so
#: the search goes on from there.
FIRST_SEED = {
    "aborted-delivered": 1,
    "aborted-forgotten": 2,
    "aborted-from-the-start": 0,
    "aborted-not-told": 0,
    "answered-before-decision": 5,
    "batch-left-out": 0,
    "committed-not-delivered": 0,
    "duplicate-answered-wrongly": 0,
    "duplicate-stored": 0,
    "epoch-not-checked": 0,
    "fetch-beyond-stable": 0,
    "first-batch-missed": 10,
    "gap-accepted": 4,
    "generation-not-checked": 1,
    "group-not-persisted": 0,
    "growth-not-told": 1,
    "marker-before-decision": 1,
    "marker-in-one-partition": 0,
    "never-timed-out": 0,
    "new-group-at-the-end": 1,
    "offsets-shifted": 0,
    "only-the-last-batch-known": 0,
    "open-forgotten": 1,
    "position-before-flush": 2,
    "position-moved-at-once": 0,
    "position-moved-by-aborted": 0,
    "position-not-pending": 5,
    "producers-forgotten": 0,
    "receipt-before-stored": 2,
    "seen-before-stored": 2,
    "stable-offset-ignores-open": 0,
    "tail-not-read": 0,
}
_MOST_SEEDS = 150


@pytest.mark.parametrize("mutation", sorted(KAFKA_MUTATIONS))
def test_a_broken_promise_is_found_by_its_checkers_and_only_then(mutation: str) -> None:
    first, wanted = FIRST_SEED[mutation], KAFKA_MUTATIONS[mutation].found_by
    for seed in range(first, first + _MOST_SEEDS):
        ops = ops_of(seed, mutation)
        if all(checker(ops) for checker in wanted):
            break
    else:
        names = ", ".join(checker.__name__ for checker in wanted)
        pytest.fail(f"in {_MOST_SEEDS} seeds from {first} on, {names} missed: {KAFKA_MUTATIONS[mutation].sin}")
    innocent = run_kafka_seed(seed, mutation=mutation, innocent=True)
    assert innocent.violations == (), f"seed {seed} fails without the mutation, too"


def ops_of(seed: int, mutation: str) -> Sequence[KafkaOp]:
    try:
        return run_kafka_seed(seed, mutation=mutation).ops
    except LivelockError:  # a broken promise may also turn a loop into one without end
        return ()


def test_every_checker_has_a_mutation_that_it_must_find() -> None:
    found_by = [checker.__name__ for mutation in KAFKA_MUTATIONS.values() for checker in mutation.found_by]
    assert sorted(set(found_by)) == sorted(checker.__name__ for checker in CHECKERS)


def test_every_mutation_says_what_is_done_wrong_and_who_finds_it() -> None:
    assert all(mutation.sin.endswith(".") and mutation.found_by for mutation in KAFKA_MUTATIONS.values())
    assert sorted(FIRST_SEED) == sorted(KAFKA_MUTATIONS)
