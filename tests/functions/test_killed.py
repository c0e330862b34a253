"""`weir functions run` and its workers as processes: killed again and again, and every offset counted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from weir.client import functions as rest
from weir.model.functions import Function, FunctionWanted
from weir.testing.processes.up import environment

from .conftest import Bench

pytestmark = pytest.mark.process

COUNT = """
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    return f"{message.text} {context.state['n']}"
"""
_PATIENCE_S = 60.0


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Runner:
    """`weir functions run` of one Weir."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self._bench = bench
        self._log = folder / "runner.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "weir.cli.main", "functions", "run", "--standby"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--url", self._bench.up.http_url], stdout=log, stderr=log, env=environment()
            )

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_PATIENCE_S)
            self._process = None

    @property
    def log(self) -> str:
        return self._log.read_text()


def worker_of(bench: Bench, function: Function, *, unlike: int = 0, version: int = 1) -> int:
    """The process of its worker, once it runs and is another one."""
    found = 0

    def runs() -> bool:
        nonlocal found
        told = rest.get_function(bench.access, function.name).stats
        if told is None or told.state != "running" or told.version != version:
            return False
        found = int(told.where.rpartition(" ")[2])
        return found != unlike

    wait(runs, "no worker runs")
    return found


def test_workers_are_kept_alive_updated_and_stopped_and_each_message_counts_once(
    bench: Bench, tmp_path: Path
) -> None:
    runner = Runner(bench, tmp_path)
    function = bench.deploy(COUNT, stateful="true", batch_messages="7")
    (topic,) = function.inputs
    runner.start()
    try:
        first = worker_of(bench, function)
        bench.produce(topic, [str(at) for at in range(300)], key="k")
        os.kill(first, signal.SIGKILL)
        second = worker_of(bench, function, unlike=first)
        bench.produce(topic, [str(at) for at in range(300, 400)], key="k")
        bench.update(function, COUNT.replace("{message.text}", "{message.text}"), stateful="true", linger_ms="1")
        worker_of(bench, function, unlike=second, version=2)
        bench.produce(topic, [str(at) for at in range(400, 500)], key="k")
        found = [one.value().decode() for one in bench.read(f"{function.name.local}-out", 500)]
        assert found == [f"{at} {at + 1}" for at in range(500)]
        rest.want(bench.access, function.name, FunctionWanted.STOPPED)
        wait(lambda: _state(bench, function) == "stopped", "it does not stop")
    finally:
        runner.end()
    assert rest.runner(bench.access).where is None
    assert "tried again" in runner.log


def _state(bench: Bench, function: Function) -> str:
    told = rest.get_function(bench.access, function.name).stats
    return "" if told is None else told.state


@pytest.mark.soak
def test_whoever_is_killed_whenever_every_offset_is_counted_once(bench: Bench, tmp_path: Path) -> None:
    """Worker, runner and broker, each several times, while messages come."""
    runner = Runner(bench, tmp_path)
    function = bench.deploy(COUNT, stateful="true", parallelism="2", batch_messages="50")
    (topic,) = function.inputs
    runner.start()
    sent, worker = 0, 0
    try:
        for turn in range(9):
            worker = worker_of(bench, function, unlike=worker)
            bench.produce(topic, [str(at) for at in range(sent, sent + 2000)], key="k")
            sent += 2000
            if turn % 3 == 0:
                with suppress(ProcessLookupError):  # it went with the broker
                    os.kill(worker, signal.SIGKILL)
            elif turn % 3 == 1:
                runner.end(signal.SIGKILL)
                runner.start()
            else:
                bench.up.kill()
                bench.up.start()
                worker = 0
        found = [one.value().decode() for one in bench.read(f"{function.name.local}-out", sent)]
        assert found == [f"{at} {at + 1}" for at in range(sent)]
    finally:
        runner.end()
