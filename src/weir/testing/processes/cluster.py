"""`weir cluster up` as a real process, for tests that talk to it, kill parts of it and stop it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from weir.testing.processes.up import environment

_START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 120.0


class ClusterProcess:
    """A folder and the supervisor that serves it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.data = folder / "cluster"
        self.ready_file = folder / "cluster.json"
        self.log_file = folder / "cluster.log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        #: What the ready file says.
        self.ready: dict[str, Any] = {}

    def start(self) -> "ClusterProcess":
        command = [sys.executable, "-m", "weir.cli.main", "cluster", "up", "--data", str(self.data)]
        command += ["--ready-file", str(self.ready_file), *self._options]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.ready_file.exists():
            if self._process.poll() is not None:
                raise AssertionError(f"weir cluster up ended with {self._process.returncode}:\n{self.log}")
            if time.monotonic() > deadline:
                raise AssertionError(f"weir cluster up is not ready:\n{self.log}")
            time.sleep(0.01)
        self.ready = json.loads(self.ready_file.read_text())
        return self

    @property
    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    @property
    def kafka(self) -> str:
        found: str = self.ready["kafka"]
        return found

    @property
    def amqp(self) -> str:
        """Every broker's address, with commas between them."""
        found: str = self.ready["amqp"]
        return found

    @property
    def pulsar_url(self) -> str:
        return f"pulsar://{self.ready['pulsar']}"

    def http_url(self, broker: int = 0) -> str:
        return f"http://{self.ready['http'].split(',')[broker]}"

    def pids(self, role: str) -> dict[str, int]:
        """As of when it became ready."""
        return {node["name"]: node["pid"] for node in self.ready["nodes"] if node["role"] == role}

    def kill(self, name: str) -> None:
        """One node, as a crash would."""
        os.kill(next(node["pid"] for node in self.ready["nodes"] if node["name"] == name), signal.SIGKILL)

    def stop(self) -> int:
        """End it in order; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(_STOP_TIMEOUT_S)
        self._process = None
        return code

    def close(self) -> None:
        """Whatever it does: not any more. Its nodes end with it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that ended and was not waited for yet is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
