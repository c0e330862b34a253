"""`weir functions run` as a process, and who runs what: for tests that look at real workers, and kill them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from weir.client import functions as rest
from weir.model.definitions import Function
from weir.model.errors import NetworkError
from weir.testing.processes.up import environment

from .conftest import Bench

PATIENCE_S = 180.0


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Runner:
    """`weir functions run` of one Weir."""

    def __init__(
        self, bench: Bench, folder: Path, *options: str, variables: Mapping[str, str] | None = None
    ) -> None:
        self._url = bench.up.http_url
        self._options = options
        self._variables = dict(variables or {})
        self._log = folder / "runner.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "weir.cli.main", "functions", "run", "--standby", "--url", self._url]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._options], stdout=log, stderr=log, env=environment() | self._variables
            )

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE_S)
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()


def worker_of(bench: Bench, function: Function, *, unlike: int = 0, version: int = 1) -> int:
    """The process of its worker, once it runs and is another one."""
    found = 0

    def runs() -> bool:
        nonlocal found
        try:
            told = rest.get_function(bench.access, function.name).stats
        except NetworkError:  # the broker has just been killed
            return False
        if told is None or told.state != "running" or told.version != version:
            return False
        found = int(told.where.rpartition(" ")[2])
        return found != unlike

    wait(runs, "no worker runs")
    return found


def state_of(bench: Bench, function: Function) -> str:
    told = rest.get_function(bench.access, function.name).stats
    return "" if told is None else told.state


def lives(pid: int) -> bool:
    """Whether there is such a process that is more than a number to be asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """The processes that it started, and those that these did: their numbers and commands."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
            except OSError:  # it has just ended
                continue
            children.setdefault(parent, []).append(int(entry.name))
    left = [pid]
    while left:
        for child in children.get(left.pop(), ()):
            try:
                command = (Path("/proc") / str(child) / "cmdline").read_bytes()
            except OSError:
                continue
            yield child, command.replace(b"\0", b" ").decode(errors="replace")
            left.append(child)


def kill(pid: int) -> None:
    """kill -9; fine if it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
