"""`weir lake run --once` on a standalone Spark cluster, with SIGKILL of those who write while they write.

Every task stands still at a step the first time that it is tried, so each kill comes at exactly that moment: a
file begun, or files that are whole and that nobody knows of. What it leaves is an orphan, which is no row.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from weir.spark.lake.catalog import turn_off
from weir.spark.lake.export import LocalJobs
from weir.spark.lake.upkeep import Limits, Upkeep
from weir.testing.processes.states import processes_below, stands_still
from weir.testing.processes.up import environment

from .conftest import Topics
from .lake_kit import Lake
from .standalone import DEADLINE_S, SparkCluster, kill_all

pytestmark = [
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("spark"),
]

PARTITIONS, BEFORE, THEN = 2, 50, 500
STEPS = ("writing", "closed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    found = SparkCluster(tmp_path_factory.mktemp("standalone"))
    try:
        yield found.start()
    finally:
        found.close()


class Export:
    """`weir lake run --once` on the cluster, and those of its tasks' processes that stand still."""

    def __init__(self, topics: Topics, cluster: SparkCluster, folder: Path, step: str) -> None:
        self.cluster = cluster
        self.topics = topics
        self._log = folder / "export.log"
        self._seen: set[int] = set()
        words = ("lake", "run", "--once", "--json", "--master", cluster.url, "--url", topics.up.http_url)
        variables = {"XDG_STATE_HOME": str(folder), "WEIR_LAKE_STOP_AT": f"pause:{step}"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "weir.cli.main", *words],
                env={**environment(), **cluster.variables, **variables},
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def paused(self, worker: str) -> list[int]:
        """Of this worker's tasks, those that stand still."""
        below = processes_below(self.cluster.workers[worker].process.pid)
        found = [pid for pid in below if stands_still(pid)]
        self._seen.update(found)
        return found

    def wait_paused(self) -> None:
        """Until every worker's task does."""
        deadline = time.monotonic() + DEADLINE_S
        while not all(map(self.paused, self.cluster.workers)):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def go_on(self) -> None:
        """All that stand still, also those whose executor is gone."""
        for worker in self.cluster.workers:
            self.paused(worker)
        kill_all(self._seen, signal.SIGCONT)

    def end(self) -> None:
        """As somebody who looks at it: it has to end well, and to say so."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.said
            self.go_on()  # a task that had not begun at the kill stands still later
            time.sleep(0.05)
        assert self.process.returncode == 0, self.said
        assert json.loads(self.said)["failed"] == {}

    def close(self) -> None:
        if self.process.poll() is None:
            kill_all([*processes_below(self.process.pid), self.process.pid])
        self.process.wait(60)
        kill_all(pid for pid in self._seen if stands_still(pid))
        deadline = time.monotonic() + DEADLINE_S
        while any(Path(f"/proc/{pid}").exists() for pid in self._seen):  # and writes no more
            assert time.monotonic() < deadline, self._seen
            time.sleep(0.02)


@contextmanager
def back_again(cluster: SparkCluster, *workers: str) -> Iterator[None]:
    """Workers that were killed are there for whoever comes next."""
    try:
        yield
    finally:
        for worker in workers:
            start(cluster, worker)


def start(cluster: SparkCluster, worker: str) -> None:
    if cluster.workers[worker].process.poll() is not None:
        cluster.add(worker)
        cluster.workers[worker].said(r"(Successfully registered with master)")


def kill_one_worker(export: Export) -> None:
    """The other one does it all."""
    with back_again(export.cluster, "left"):
        export.cluster.workers["left"].kill()
        export.end()


def kill_both_workers(export: Export) -> None:
    """One is started again, and does it all."""
    with back_again(export.cluster, "left", "right"):
        for worker in ("left", "right"):
            export.cluster.workers[worker].kill()
        start(export.cluster, "right")
        export.end()


def kill_executor(export: Export) -> None:
    """The JVM that the worker has started; its Python may go on for a while, for nobody."""
    executor = int(export.cluster.workers["right"].process.pid)
    java = [pid for pid in processes_below(executor) if is_java(pid)]
    assert java
    kill_all(java)
    export.end()


def is_java(pid: int) -> bool:
    """Not if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    return False


def kill_python(export: Export) -> None:
    """The process in which a task runs."""
    kill_all(export.paused("left"))
    export.end()


def kill_driver(export: Export) -> None:
    """The command, and its JVM; another one has to come."""
    kill_all([*processes_below(export.process.pid), export.process.pid])
    export.process.wait(60)
    export.go_on()


def kill_command(export: Export) -> None:
    """Only the command: its JVM notices by itself."""
    export.process.kill()
    export.process.wait(60)
    export.go_on()


DRIVERS = (kill_driver, kill_command)
VICTIMS = (kill_one_worker, kill_both_workers, kill_executor, kill_python, *DRIVERS)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", VICTIMS, ids=lambda victim: victim.__name__)
def test_whoever_is_killed_while_tasks_write_every_offset_is_in_the_table_once(
    topics: Topics, cluster: SparkCluster, tmp_path: Path, victim: Callable[[Export], None], step: str
) -> None:
    lake = Lake(topics, tmp_path, LocalJobs())
    topic = topics.create(PARTITIONS, name=f"{victim.__name__}-{step}-{os.getpid()}")
    name = lake.on_for_others(topic)
    try:
        for partition in range(PARTITIONS):
            topics.fill(topic, [f"{partition} before {at}" for at in range(BEFORE)], partition)
        assert lake.export(topic) is not None
        for partition in range(PARTITIONS):
            topics.fill(topic, [f"{partition} then {at}" for at in range(THEN)], partition)
        export = Export(topics, cluster, tmp_path, step)
        try:
            export.wait_paused()
            begun = files(tmp_path)
            victim(export)
        finally:
            export.close()
        if victim in DRIVERS:
            again = Export(topics, cluster, tmp_path, "never")
            try:
                again.end()
            finally:
                again.close()
        assert lake.export(topic) is None, "all is there"
        check_rows(lake, topic)
        added = {Path(task.file.file_path.removeprefix("file://")) for task in scan(lake, topic)}
        assert begun - added, "what the dead have left was there"
        later = Upkeep(
            lake.table(topic), lake.definition, LocalJobs(), Limits(orphans_s=0.0), wall_s=lambda: time.time() + 60
        )
        assert later.remove_orphans() >= len(begun - added)
        assert files(tmp_path) == added
        check_rows(lake, topic)
    finally:
        turn_off(lake.place.access, name.namespace, name.local)


def check_rows(lake: Lake, topic: str) -> None:
    """Every offset is there once, with its own value."""
    whole = range(PARTITIONS)
    assert lake.places(topic) == [(partition, at) for partition in whole for at in range(BEFORE + THEN)]
    sent = [f"before {at}" for at in range(BEFORE)] + [f"then {at}" for at in range(THEN)]
    values = [row["value"].decode() for row in lake.rows(topic)]
    assert values == [f"{partition} {value}" for partition in whole for value in sent]


def scan(lake: Lake, topic: str) -> list[Any]:
    return list(lake.table(topic).table.scan().plan_files())


def files(folder: Path) -> set[Path]:
    return set((folder / "lake").rglob("*.parquet"))
