"""Seeds of every scenario: every promise holds, whatever strikes; and a seed is the same run each time."""

import os
import subprocess
import sys

import pytest

from weir.testing.scenario_table import SCENARIOS
from weir.testing.sim import report_seed

SEEDS = 200
#: Of scenarios of which so many are enough each time; `make sim` has more.
#: `broker` has one broker of what `multibroker` has several of.
FEWER = {"broker": 100, "multibroker": 100, "half": 5, "queues": 5, "retries": 5, "rocketmq": 5}
_CHUNK = 5
_REPEATED = 3
_IN_OTHER_PROCESSES = 2
_EACH = pytest.mark.parametrize("scenario", sorted(SCENARIOS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "scenario"),
    [(first, name) for name in sorted(SCENARIOS) for first in range(0, FEWER.get(name, SEEDS), _CHUNK)],
)
def test_every_promise_holds_in_seeds_from(first: int, scenario: str) -> None:
    for seed in range(first, first + _CHUNK):
        report = report_seed(seed, scenario=SCENARIOS[scenario])
        assert not report.failure, "\n".join((f"seed {seed}: {report.failure}", report.summary, *report.shortest))


@pytest.mark.slow
@_EACH
def test_a_seed_gives_the_same_run_to_the_byte_of_its_trace(scenario: str) -> None:
    first, second = SCENARIOS[scenario].run(_REPEATED), SCENARIOS[scenario].run(_REPEATED)
    assert first.digest == second.digest
    assert first.ops == second.ops
    assert first.violations == ()


@pytest.mark.parametrize("scenario", [name for name in sorted(SCENARIOS) if FEWER.get(name, SEEDS) > _CHUNK])
@pytest.mark.process
@pytest.mark.slow
def test_a_seed_does_not_depend_on_the_hash_seed_of_its_process(scenario: str) -> None:
    program = (
        "from weir.testing.scenario_table import SCENARIOS; "
        f"print(SCENARIOS[{scenario!r}].run({_IN_OTHER_PROCESSES}).digest)"
    )
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
    assert digests == [SCENARIOS[scenario].run(_IN_OTHER_PROCESSES).digest] * 2
