"""Pipelines as processes, with real Spark Connect: each message once, lineage told, stopped from elsewhere."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.functions.running import descendants

from weir.spark.pipelines import run as state

from .conftest import Topics
from .sql_session import make_orders, patiently, stored

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]


_PATIENCE_S = 600.0


def _java(pid: int) -> int:
    """Spark's own process, of a pipeline that runs."""
    (found,) = (below for below, command in descendants(pid) if "SparkSubmit" in command)
    return found


class Shop:
    """A pipeline in a folder of its own, and the commands as a user gives them."""

    def __init__(self, folder: Path, topics: Topics) -> None:
        self.folder = folder / "shop"
        self.topics = topics
        self.source, self.orders = "", 0

    def more(self, count: int = 20) -> None:
        make_orders(self.topics, self.source, first=self.orders, count=count)
        self.orders += count

    def _words(self, *words: str) -> list[str]:
        command = [sys.executable, "-m", "weir.cli.main", "pipeline", *words]
        if words[0] != "init":
            command += ["-f", "shop"]
        if words[0] == "run":
            command += ["--url", self.topics.up.http_url]
        return command

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self._words(*words), cwd=self.folder.parent, capture_output=True, text=True, timeout=800, check=False
        )

    def kill_once(self, count: Callable[[], int], *, spark: bool = False, before: int | None = None) -> int:
        """`run --once` with more to do, of which the process (or its Spark's) is killed when there is more than
        `before`, or than when it had a Spark of its own; what it ended with. On busy machines an update may fail
        before, and is begun again."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            self.more()
            most = before
            with (self.folder / "once.log").open("ab") as log:
                process = subprocess.Popen(
                    self._words("run", "--once"), cwd=self.folder.parent, stdout=log, stderr=log
                )
            with process:
                while process.poll() is None:
                    if most is None and (found := state.read(self.storage)).pid == process.pid and found.spark:
                        most = count()
                    if most is not None and count() > most:
                        os.kill(_java(process.pid) if spark else process.pid, signal.SIGKILL)
                        return process.wait()
                    time.sleep(0.005)
            assert time.monotonic() < deadline, (self.folder / "once.log").read_text()

    def planned(self) -> int:
        """How many micro-batches the checkpoints tell of, done or not."""
        return len(list(self.storage.rglob("offsets/[0-9]*")))

    def do(self, *words: str) -> str:
        done = self.command(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def init(self, source: str, sink: str, *, lineage: str | None = None) -> None:
        self.source = source
        self.more(6)
        self.do("init", "shop", "--source", source, "--sink", sink)
        if lineage is not None:
            file = self.folder / "weir-pipeline.toml"
            file.write_text(file.read_text().replace("lineage.jsonl", lineage))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.do("status", "--json"))
        return found

    def ids(self, topic: str) -> list[int]:
        return sorted(json.loads(value)["id"] for _, value in stored(self.topics.servers, topic))

    @property
    def storage(self) -> Path:
        return self.folder / "storage"

    def close(self) -> None:
        """A detached one leads a process group of its own."""
        if state.is_running(self.storage):
            with suppress(ProcessLookupError):
                os.killpg(state.read(self.storage).pid, signal.SIGKILL)


@pytest.fixture
def shop(tmp_path: Path, topics: Topics) -> Iterator[Shop]:
    found = Shop(tmp_path, topics)
    yield found
    found.close()


def test_a_pipeline_takes_each_message_into_its_sink_once(shop: Shop) -> None:
    shop.init("pipe_orders", "pipe_clean")
    shop.do("run", "--once")
    make_orders(shop.topics, "pipe_orders", first=6, count=4)
    shop.do("run", "--once")
    assert shop.ids("pipe_clean") == list(range(10))
    shown = shop.status()
    assert (shown["state"], shown["updates"]) == ("done", 1)
    told = [json.loads(line) for line in (shop.storage / "lineage.jsonl").read_text().splitlines()]
    kinds = [one["eventType"] for one in told if one["job"]["name"] == "shop"]
    assert kinds == ["START", "COMPLETE", "START", "COMPLETE"]


def test_ctrl_c_ends_a_pipeline_after_the_update_that_it_is_at(shop: Shop) -> None:
    shop.init("pipe_ended_orders", "pipe_ended_clean")
    with (shop.folder / "run.log").open("ab") as log:
        process = subprocess.Popen(
            shop._words("run"), cwd=shop.folder.parent, stdout=log, stderr=log, start_new_session=True
        )
    with process:
        patiently(lambda: state.read(shop.storage).state == "running")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.returncode == 0, (shop.folder / "run.log").read_text()
    assert shop.status()["state"] == "stopped"
    told = [json.loads(line) for line in (shop.storage / "lineage.jsonl").read_text().splitlines()]
    kinds = [one["eventType"] for one in told if one["job"]["name"] == "shop"]
    assert kinds[0] == "START"
    assert kinds[1] in ("COMPLETE", "FAIL"), "and it was not broken off"


def test_a_detached_pipeline_is_seen_fed_and_stopped_from_elsewhere_and_tells_a_topic_of_its_runs(
    shop: Shop,
) -> None:
    shop.init("away_orders", "away_clean", lineage="topic:away_lineage")
    said = shop.do("run", "--detach", "--every", "1")
    patiently(lambda: shop.status()["updates"], within_s=600)
    shown = shop.status()
    assert shown["state"] in ("running", "waiting")
    assert f"process {shown['process']};" in said
    again = shop.command("run", "--once")
    assert again.returncode != 0
    assert "runs already" in again.stderr
    make_orders(shop.topics, "away_orders", first=6, count=4)
    patiently(lambda: len(shop.ids("away_clean")) >= 10, within_s=600)
    patiently(lambda: shop.command("stop").returncode == 0, within_s=600)
    assert shop.status()["state"] == "stopped"
    assert "does not run" in shop.do("stop")
    assert shop.ids("away_clean") == list(range(10))
    told = [(key, json.loads(value)) for key, value in stored(shop.topics.servers, "away_lineage")]
    assert all(key == one["job"]["name"] for key, one in told)
    kinds = [one["eventType"] for key, one in told if key == "shop"]
    assert kinds == ["START", "COMPLETE"] * (len(kinds) // 2)
    assert len(kinds) >= 4
    flow = next(one for key, one in told if key == "shop.to_away_clean")
    assert [one["name"] for one in flow["inputs"]] == ["away_orders"]
    assert [one["name"] for one in flow["outputs"]] == ["away_clean"]


def test_a_pipeline_whose_process_or_whose_spark_is_killed_goes_on_and_takes_each_message_once(shop: Shop) -> None:
    shop.init("dead_orders", "dead_clean")
    shop.do("run", "--detach", "--every", "1")
    patiently(lambda: len(shop.ids("dead_clean")) >= 6, within_s=600)
    make_orders(shop.topics, "dead_orders", first=6, count=50)
    first = state.read(shop.storage).pid
    os.kill(_java(first), signal.SIGKILL)  # while it is at these
    patiently(lambda: len(shop.ids("dead_clean")) >= 56, within_s=600)
    assert state.read(shop.storage).pid == first
    make_orders(shop.topics, "dead_orders", first=56, count=50)
    os.kill(first, signal.SIGKILL)
    patiently(lambda: shop.status()["state"] == "stopped", within_s=60)
    assert shop.status()["error"] == "it ended without a word"
    make_orders(shop.topics, "dead_orders", first=106, count=4)
    shop.do("run", "--detach", "--every", "1")  # on busy machines an update may fail, and the next one does it
    patiently(lambda: len(shop.ids("dead_clean")) >= 110, within_s=600)
    patiently(lambda: shop.command("stop").returncode == 0, within_s=600)
    assert shop.ids("dead_clean") == list(range(110))


def test_a_pipeline_that_is_run_once_and_killed_takes_each_message_once_when_it_is_run_once_more(
    shop: Shop,
) -> None:
    """Killed while its catalog is made, while micro-batches are planned and not done, and when rows are there."""
    shop.init("kill_orders", "kill_clean")
    shop.topics.create(name="kill_clean")
    assert shop.kill_once((shop.storage / "catalog").exists, before=False) == -signal.SIGKILL
    for spark, ended in ((False, -signal.SIGKILL), (True, 1)):
        assert shop.kill_once(shop.planned, spark=spark) == ended
    assert shop.status()["error"] == "Spark's process has ended"
    assert shop.kill_once(lambda: len(shop.ids("kill_clean"))) == -signal.SIGKILL
    assert shop.status()["error"] == "it ended without a word"
    shop.more()
    patiently(lambda: shop.command("run", "--once").returncode == 0, within_s=600)
    assert shop.ids("kill_clean") == list(range(shop.orders))
