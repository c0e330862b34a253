"""Seeds of the Kafka scenario: every promise holds, whatever strikes; and a seed is the same run each time."""

import os
import subprocess
import sys

import pytest

from weir.testing.kafka_scenario import run_kafka_seed
from weir.testing.sim import KAFKA, report_seed

SEEDS = 200
_CHUNK = 5


@pytest.mark.parametrize("first", range(0, SEEDS, _CHUNK))
def test_every_promise_to_kafkas_clients_holds_in_seeds_from(first: int) -> None:
    for seed in range(first, first + _CHUNK):
        report = report_seed(seed, scenario=KAFKA)
        assert not report.failure, "\n".join((f"seed {seed}: {report.failure}", report.summary, *report.shortest))


def test_a_seed_gives_the_same_run_to_the_byte_of_its_trace() -> None:
    first, second = run_kafka_seed(3), run_kafka_seed(3)
    assert first.digest == second.digest
    assert first.ops == second.ops


def test_a_seed_does_not_depend_on_the_hash_seed_of_its_process() -> None:
    program = "from weir.testing.kafka_scenario import run_kafka_seed; print(run_kafka_seed(2).digest)"
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]
    assert digests == [run_kafka_seed(2).digest] * 2
