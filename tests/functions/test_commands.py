"""A function that a real runner runs, looked after by commands: listed, counted, heard, updated, stopped."""

import json
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weir.cli.main import main

from .conftest import Bench
from .running import Runner, lives, wait

pytestmark = pytest.mark.process

CODE = """
import os
def tell(message, context):
    if message.text == "bad":
        raise ValueError("bad one")
    print("got", message.text)
    return f"{message.text} {context.instance} {os.getpid()}"
"""


@pytest.fixture
def run(bench: Bench, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`weir ...` in this process; what it printed."""
    monkeypatch.setenv("WEIR_URL", bench.up.http_url)

    def call(*arguments: str) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        sys.stdout.flush()
        said = capfd.readouterr()
        assert ended.value.code == 0, said.err
        return said.out

    return call


def test_a_function_is_listed_counted_heard_stopped_and_goes_on_where_it_was(
    bench: Bench, tmp_path: Path, run: Callable[..., str]
) -> None:
    name, file, runner = bench.name(), tmp_path / "f.py", Runner(bench, tmp_path)
    file.write_text(CODE)
    topics = ("--in", f"{name}-in", "--out", f"{name}-out", "--name", name)
    run("functions", "deploy", f"{file}:tell", *topics, "--parallelism", "2", "--retries", "10ms")

    def stats() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run("functions", "stats", name, "--json"))
        return found

    def state() -> str:
        (row,) = [one for one in json.loads(run("functions", "list", "--json")) if name in one.values()]
        found: str = row["STATE"]
        return found

    assert state() == "waiting"
    for at in range(8):
        bench.produce(f"{name}-in", [f"m{at}"], key=f"k{at}")
    bench.produce(f"{name}-in", ["bad"], key="k0")
    runner.start()
    try:
        said = [one.value().decode().split() for one in bench.read(f"{name}-out", 8)]
        assert {text for text, _, _ in said} == {f"m{at}" for at in range(8)}
        assert {instance for _, instance, _ in said} == {"0", "1"}
        callers = {int(pid) for _, _, pid in said}
        assert len(callers) == 2
        wait(lambda: stats()["dead letters"] == 1, "what always fails is never given up")
        told = stats()
        assert (state(), told["sent"], told["failed"], told["tried again"]) == ("running", 8, 5, 4)
        assert (told["instances"], told["lag"], told["restarts"]) == (2, 0, 0)
        with urllib.request.urlopen(f"{bench.up.http_url}/metrics") as page:
            metrics = page.read().decode()
        of = f'{{function="persistent://public/default/{name}"}}'
        shown = {"sent_messages_total": 8, "failures_total": 5, "retries_total": 4, "instances": 2}
        for series, value in shown.items():
            assert f"weir_function_{series}{of} {value}\n" in metrics

        wait(lambda: "attempt 5 failed" in run("functions", "logs", name), "the last failure is not in the log")
        lines = run("functions", "logs", name)
        assert all(f"got m{at}" in lines for at in range(8))
        assert "attempt 1 failed: ValueError: bad one" in lines

        run("functions", "stop", name)
        wait(lambda: state() == "stopped", "it does not stop")
        wait(lambda: not any(map(lives, callers)), "processes are left")
        bench.produce(f"{name}-in", ["m8"], key="k8")
        file.write_text(CODE.replace("{message.text}", "new {message.text}"))
        assert "version 2" in run("functions", "update", name, str(file), "--parallelism", "1")
        assert state() == "stopped"
        run("functions", "start", name)
        last = bench.read(f"{name}-out", 9)[8].value().decode()
        assert last.startswith("new m8 0 ")
        wait(lambda: (stats()["received"], stats()["instances"]) == (1, 1), "it does not say what it did")
        run("functions", "delete", name)
        wait(lambda: not lives(int(last.split()[-1])), "a process is left of what was deleted")
    finally:
        runner.end()
