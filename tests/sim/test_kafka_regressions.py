"""Seeds of the Kafka scenario that found something, each with what it found. Timing shifts with the code: each bug
has a test of its own beside the part that had it."""

import pytest

from weir.testing.kafka_scenario import run_kafka_seed

FOUND = {
    2: "the end of a ledger, not awaited any more by a broker in a hurry, complained of the metadata to nobody",
}


@pytest.mark.parametrize("seed", sorted(FOUND))
def test_a_seed_that_once_found_something_keeps_every_promise(seed: int) -> None:
    assert run_kafka_seed(seed).violations == (), FOUND[seed]
