"""Who starts a runner of streams in the background, and again."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from weir.cli.main import main
from weir.client.admin import Access
from weir.model.errors import SparkJvmError, SparkSetupError
from weir.spark.serving import session
from weir.spark.serving.session import RunnerStarter

pytestmark = pytest.mark.process


def test_a_runner_whose_jvm_failed_is_replaced_and_one_that_failed_otherwise_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    codes = [SparkJvmError.exit_code, 1]

    def start(self: RunnerStarter) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({codes.pop(0)})"])
        process.wait()
        return process

    nobody = SimpleNamespace(runner=lambda _access: SimpleNamespace(where=None, allowed=True))
    monkeypatch.setattr(session, "rest", nobody)
    monkeypatch.setattr(RunnerStarter, "_start", start)
    starter = RunnerStarter("http://nowhere:1", None, None, None, Access("http://nowhere:1"), str(tmp_path))
    assert starter.see()
    assert starter.see()
    assert codes == []
    with pytest.raises(SparkSetupError, match="has ended"):
        starter.see()


def test_the_exit_code_tells_that_a_new_process_will_do_better(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SparkJvmError("Spark's JVM has ended")

    monkeypatch.setattr("weir.cli.main.cli.main", fail)
    with pytest.raises(SystemExit) as ended:
        main(["streams", "run"])
    assert ended.value.code == SparkJvmError.exit_code
