"""A function on Spark, with state by key: its driver, its Python workers, runner and broker are killed, and every
offset is counted once."""

import signal
from pathlib import Path

import pytest

from weir.client import functions as rest

from .conftest import Bench
from .running import Runner, descendants, kill, wait, worker_of

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

COUNT = """
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    return f"{message.text} {context.state['n']}"
"""
EACH = 300
KEYS = ("a", "b", "c")
#: Whom the turns kill: the process that deploys the query, the JVM that drives it, the Python processes that call
#: the function, the broker under it all, and the runner that would replace them.
VICTIMS = ("worker", "java", "pyspark.daemon", "broker", "runner")


def test_whoever_is_killed_every_offset_is_counted_once(bench: Bench, tmp_path: Path) -> None:
    variables = {"TMPDIR": str(tmp_path), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={tmp_path} -XX:-UsePerfData"}
    runner = Runner(bench, tmp_path, "--checkpoints", str(tmp_path / "checkpoints"), variables=variables)
    function = bench.deploy(COUNT, on="spark", stateful="true", master="local[2]", batch_messages="1000")
    (topic,) = function.inputs
    output = f"{function.name.local}-out"
    runner.start()
    sent, worker = 0, 0
    try:
        for victim in VICTIMS:
            worker = worker_of(bench, function, unlike=worker)
            for part in range(2):
                if part:
                    bench.read(output, 1 + (sent - EACH) * len(KEYS))  # it is at work, and these come meanwhile
                for key in KEYS:
                    bench.produce(topic, [f"{key} {at}" for at in range(sent, sent + EACH)], key=key)
                sent += EACH
            if victim == "worker":
                kill(worker)
            elif victim == "runner":
                runner.end(signal.SIGKILL)
                runner.start()
            elif victim == "broker":
                bench.up.kill()
                bench.up.start()
                worker = 0
            else:
                found = [pid for pid, command in descendants(worker) if victim in command]
                assert found, f"there is no {victim} below {worker}"
                for pid in found:
                    kill(pid)
                if victim == "pyspark.daemon":
                    worker = 0  # tasks may be tried again by the same worker
        values = [one.value().decode() for one in bench.read(output, sent * len(KEYS))]
        for key in KEYS:
            mine = [value for value in values if value.startswith(f"{key} ")]
            assert mine == [f"{key} {at} {at + 1}" for at in range(sent)]
        wait(lambda: _is_idle(bench, function), "it does not say that it has read all")
        assert len(bench.read(output, sent * len(KEYS), more=True)) == sent * len(KEYS)
        bench.delete(function)
        wait(lambda: not list((tmp_path / "checkpoints").iterdir()), "something is left of it")
    finally:
        runner.end()


def _is_idle(bench: Bench, function: rest.Function) -> bool:
    told = rest.get_function(bench.access, function.name).stats
    return told is not None and told.state == "running" and told.lag == 0
