"""The runner of connectors as a process and as a thread, and `weir connect` as its users type it."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from weir.cli.main import cli
from weir.client.weir_cluster import Place
from weir.connect.runner import Runner, run
from weir.model.errors import RunnerBusyError
from weir.testing.processes.up import environment

_PATIENCE_S = 600.0
_STOPPING = Path(__file__).with_name("stopping_runner.py")


def until(reached: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := reached()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return found


class Cli:
    def __init__(self, place: Place) -> None:
        self._url = place.access.url

    def __call__(self, *words: str) -> str:
        result = self.run(*words)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(cli, ["connect", *words, "--url", self._url])

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", name, "--json"))
        return found


class RunnerProcess:
    def __init__(self, place: Place, log: Path) -> None:
        self._words = ["-v", "connect", "run", "--url", place.access.url, "--standby", "--lease", "1s"]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, stop_at: str | None = None) -> None:
        """With `stop_at` it kills itself at that step of its first file; see `stopping_runner`."""
        program = ["-m", "weir.cli.main"] if stop_at is None else [str(_STOPPING), stop_at]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *program, *self._words],
                stdout=log,
                stderr=log,
                env={**environment(), "SHOP_PASSWORD": "hunter2"},
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait_killed(self) -> None:
        assert self._process is not None
        ended = self._process.wait(_PATIENCE_S)
        assert ended == -signal.SIGKILL, (ended, self._log.read_text())
        self._process = None

    def end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None


class RunnerThread:
    """The same without a process of its own."""

    def __init__(self, place: Place) -> None:
        self._runner = Runner(place, lease_ms=1_000)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: run(self._runner, self._stop.is_set))

    def start(self) -> None:
        def first() -> bool:
            try:
                self._runner.take()
            except RunnerBusyError:  # one that was killed a moment ago
                return False
            return True

        until(first)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._runner.close()
