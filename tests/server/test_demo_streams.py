"""The demo ends with the cause as soon as one of its streams fails, and keeps the logs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from weir.model.errors import SparkJvmError, WeirError
from weir.server.demo.sql import Worker, _until
from weir.testing.processes.up import environment


class Runner:
    """A runner of streams that does a few steps, and then something else."""

    def __init__(self, failures: dict[str, str], raised: Exception | None = None) -> None:
        self._then, self._raised = failures, raised
        self.failures: dict[str, str] = {}
        self.steps, self.closed = 0, False

    def step(self) -> bool:
        self.steps += 1
        if self.steps > 1:
            self.failures = self._then
            if self._raised is not None:
                raise self._raised
        return True

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("runner", "cause"),
    [
        (Runner({"sales": "division by zero"}), "stream sales failed: division by zero"),
        (Runner({"sales": "map damaged"}, SparkJvmError("damaged")), "stream sales failed: map damaged"),
        (Runner({}, ValueError("no such thing")), "the streams do not run: no such thing"),
    ],
)
def test_totals_that_can_never_be_right_are_not_waited_for(runner: Runner, cause: str) -> None:
    worker = Worker(runner, lambda: None)
    worker.start()
    with pytest.raises(WeirError, match=cause):
        _until({"hats": (1, 1)}, dict, worker.check)
    worker.stop()
    assert runner.closed


def test_a_broker_that_has_ended_ends_the_wait() -> None:
    def check() -> None:
        raise WeirError("weir up has ended")

    with pytest.raises(WeirError, match="weir up has ended"):
        _until({"hats": (1, 1)}, dict, Worker(Runner({}), check).check)


_FAILING = """
from weir.cli import main
from weir.server.demo import sql, tour

async def no_storage(*_): pass

tour._Tour._storage, tour.has_client = no_storage, lambda: False
sql._PATIENCE_S = 100_000  # the failure ends the wait, and nothing else
sql.SUM = sql.SUM.replace("sum(cents)", "sum(IF(id >= 300, raise_error('the till is broken'), cents))")
main.main(["demo"])
"""


@pytest.mark.process
@pytest.mark.longest
@pytest.mark.timeout(900)
def test_the_demo_prints_the_cause_of_a_streams_failure_and_keeps_the_logs(tmp_path: Path) -> None:
    here, temporary = tmp_path / "here", tmp_path / "tmp"
    here.mkdir()
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _FAILING],
        capture_output=True,
        text=True,
        timeout=880,
        cwd=here,
        env=environment() | {"HOME": str(tmp_path), "XDG_STATE_HOME": "", "TMPDIR": str(temporary)},
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    *_, kept, cause = done.stderr.strip().splitlines()
    assert cause.startswith("weir: stream revenue failed: ")
    assert "the till is broken" in cause
    folder = Path(kept.rpartition(" ")[2])
    try:
        assert "the till is broken" in (folder / "spark.log").read_text()
        assert "the till is broken" in (folder / "demo.log").read_text()
        assert sorted(os.listdir(folder)) == ["demo.log", "spark.log", "weir.log"]
    finally:
        shutil.rmtree(folder)
