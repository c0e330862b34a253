"""Seeds of the Kafka scenario that found something, each with what it found. Timing shifts with the code: each bug
has a test of its own beside the part that had it."""

import pytest

from weir.testing.kafka_scenario import run_kafka_seed

_NOT_THE_FIRST = (
    "the second batch of an idempotent producer passed for its first, when that could not be stored because the "
    "topic was moving"
)
_NOT_WATCHED = (
    "a fetch session was not told that a topic had ended which could not be closed cleanly, and waited for it to "
    "grow while another was in its place"
)
FOUND = {
    2: "the end of a ledger, not awaited any more by a broker in a hurry, complained of the metadata to nobody",
    85: _NOT_WATCHED,
    113: _NOT_WATCHED,
    221: _NOT_THE_FIRST,
    222: _NOT_THE_FIRST,
    422: _NOT_THE_FIRST,
    2500: (
        "a broker that had just taken over believed for a moment that the coordinator was elsewhere, and took a "
        "late batch of a producer that had been fenced: a transaction that nobody ended"
    ),
    250: "Weir's own Pulsar client lost credit with every message of a batch that had been acknowledged before",
}


@pytest.mark.parametrize("seed", sorted(FOUND))
def test_a_seed_that_once_found_something_keeps_every_promise(seed: int) -> None:
    assert run_kafka_seed(seed).violations == (), FOUND[seed]
