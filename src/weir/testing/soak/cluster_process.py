"""`weir cluster up` as a real process, and the processes under it: which there are, killed, stopped, continued."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from weir.testing.processes.up import environment

_START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 120.0


class Node(NamedTuple):
    name: str
    role: str
    pid: int


class ClusterProcess:
    """One folder, one supervisor. `nodes` is as the ready file has it, which the supervisor keeps up to date."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.ready_file = folder / "ready.json"
        self.log_file = folder / "cluster.log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped: dict[int, None] = {}

    def start(self) -> "ClusterProcess":
        """Start it, and wait until all of it serves."""
        command = [sys.executable, "-m", "weir.cli.main", "cluster", "up", "--data", str(self.folder / "data")]
        command += ["--ready-file", str(self.ready_file), *self._options]
        self.ready_file.unlink(missing_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.ready_file.exists():
            assert self._process.poll() is None, f"weir cluster up ended:\n{self.log[-4000:]}"
            assert time.monotonic() < deadline, f"weir cluster up is not ready:\n{self.log[-4000:]}"
            time.sleep(0.02)
        return self

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def _ready(self) -> dict[str, object]:
        return dict(json.loads(self.ready_file.read_text()))

    @property
    def kafka(self) -> str:
        return str(self._ready["kafka"])

    @property
    def pulsar_url(self) -> str:
        return f"pulsar://{self._ready['pulsar']}"

    @property
    def http(self) -> str:
        return str(self._ready["http"])

    def nodes(self, *roles: str) -> list[Node]:
        """Of these roles, or all."""
        listed = json.loads(self.ready_file.read_text())["nodes"]
        found = [Node(each["name"], each["role"], each["pid"]) for each in listed]
        return [node for node in found if not roles or node.role in roles]

    def kill(self, node: Node) -> None:
        """As a crash would; the supervisor starts it again."""
        os.kill(node.pid, signal.SIGKILL)

    def restart(self, node: Node) -> Node:
        """End it in order, and wait until it is back."""
        os.kill(node.pid, signal.SIGTERM)
        return self.wait_replaced(node)

    def suspend(self, node: Node) -> None:
        self._stopped[node.pid] = None
        os.kill(node.pid, signal.SIGSTOP)

    def resume(self, node: Node) -> None:
        self._stopped.pop(node.pid, None)
        os.kill(node.pid, signal.SIGCONT)

    def wait_replaced(self, node: Node, timeout_s: float = _START_TIMEOUT_S) -> Node:
        """Until the supervisor tells of another process under the name, which serves."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = next(each for each in self.nodes() if each.name == node.name)
            if found.pid != node.pid:
                return found
            assert time.monotonic() < deadline, f"{node.name} was not started again:\n{self.log[-4000:]}"
            time.sleep(0.05)

    def stop(self) -> int:
        """End all of it in order; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(_STOP_TIMEOUT_S)
        self._process = None
        return code

    def close(self) -> None:
        """Whatever it does: not any more."""
        for pid in self._stopped:
            os.kill(pid, signal.SIGCONT)
        if self._process is not None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                for node in self.nodes():
                    os.kill(node.pid, signal.SIGKILL)
                if self._process is not None:
                    self._process.kill()
                    self._process.wait()
