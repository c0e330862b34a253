"""`weir functions run` and its workers as processes: killed again and again, and every offset counted."""

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from weir.client import functions as rest
from weir.model.definitions import FunctionWanted

from .conftest import Bench
from .running import Runner, kill, state_of, wait, worker_of

pytestmark = pytest.mark.process

COUNT = """
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    return f"{message.text} {context.state['n']}"
"""


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
        kill(first)
        second = worker_of(bench, function, unlike=first)
        told = rest.get_function(bench.access, function.name).stats
        assert told is not None
        assert told.restarts == 1
        bench.produce(topic, [str(at) for at in range(300, 400)], key="k")
        bench.update(function, COUNT.replace("{message.text}", "{message.text}"), stateful="true", linger_ms="1")
        worker_of(bench, function, unlike=second, version=2)
        bench.produce(topic, [str(at) for at in range(400, 500)], key="k")
        found = [one.value().decode() for one in bench.read(f"{function.name.local}-out", 500)]
        assert found == [f"{at} {at + 1}" for at in range(500)]
        rest.want(bench.access, function.name, FunctionWanted.STOPPED)
        wait(lambda: state_of(bench, function) == "stopped", "it does not stop")
    finally:
        runner.end()
    assert rest.runner(bench.access).where is None
    assert "tried again in 1 s: its process ended by signal 9" in runner.log


def test_a_worker_and_its_broker_are_killed_and_every_offset_is_counted_once(bench: Bench, tmp_path: Path) -> None:
    count_while_killing(bench, tmp_path, ("worker", "broker"), 600)


@pytest.mark.soak
def test_whoever_is_killed_whenever_every_offset_is_counted_once(bench: Bench, tmp_path: Path) -> None:
    count_while_killing(bench, tmp_path, ("runner", "worker", "broker"), 600)


def count_while_killing(bench: Bench, folder: Path, victims: Sequence[str], each: int) -> None:
    """One after the other, while messages come: so many between two of them."""
    runner = Runner(bench, folder)
    function = bench.deploy(COUNT, stateful="true", parallelism="2", batch_messages="50")
    (topic,) = function.inputs
    runner.start()
    sent, worker = 0, 0
    try:
        for victim in victims:
            worker = worker_of(bench, function, unlike=worker)
            bench.produce(topic, [str(at) for at in range(sent, sent + each)], key="k")
            sent += each
            if victim == "worker":
                kill(worker)
            elif victim == "runner":
                runner.end(signal.SIGKILL)
                runner.start()
            else:
                bench.up.kill()
                bench.up.start()
                worker = 0
        found = [one.value().decode() for one in bench.read(f"{function.name.local}-out", sent, more=True)]
        assert found == [f"{at} {at + 1}" for at in range(sent)]
    finally:
        runner.end()


def test_a_function_that_is_deleted_while_it_is_stopped_leaves_no_checkpoints(
    bench: Bench, tmp_path: Path
) -> None:
    """As `weir functions delete` does it."""
    runner = Runner(bench, tmp_path, "--checkpoints", str(tmp_path / "checkpoints"))
    function = bench.deploy(COUNT, on="spark", stateful="true")
    rest.want(bench.access, function.name, FunctionWanted.STOPPED)
    mine, other = tmp_path / "checkpoints" / function.id, tmp_path / "checkpoints" / "of-another-weir"
    for folder in (mine, other):
        folder.mkdir(parents=True)
    runner.start()
    try:
        wait(lambda: state_of(bench, function) == "stopped", "its runner does not say so")
        bench.delete(function)
        wait(lambda: not mine.exists(), "its checkpoints stay")
        assert other.exists()
    finally:
        runner.end()
