"""Exports by `weir lake run` into a bucket, with `kill -9` of everybody at each step.

Who is killed dies while the export stands still at the step; then it goes on, or another one has to. What is
said is an error in words, and in the end every offset is in the table once. The process
that exports writes the files itself here (`--master none`).
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from weir.spark.lake.catalog import Definition, turn_off
from weir.spark.lake.export import LocalJobs
from weir.testing.processes.s3 import S3Server
from weir.testing.processes.states import stands_still
from weir.testing.processes.up import UpProcess, environment

from .conftest import Topics
from .lake_kit import Lake

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(1200)]

STEPS = ("planned", "written", "staged", "committed", "kept")
_PATIENCE_S = 300.0


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


class Place:
    """A broker and a store of one's own, and exports from one to the other."""

    def __init__(self, folder: Path, s3: S3Server) -> None:
        self.folder, self.s3 = folder, s3
        self.up = UpProcess(folder).start()
        self.topics = Topics(self.up)
        self.lake = Lake(self.topics, folder, LocalJobs())
        self.lake.definition = Definition(
            f"s3://{s3.bucket}/{folder.name}", f"sqlite:///{folder}/catalog.db", {"s3.endpoint": s3.url}
        )

    @contextmanager
    def export_to(self, step: str) -> Iterator["subprocess.Popen[str]"]:
        """An export that stands still there; it is waited for in the end."""
        self.step = step
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "weir.cli.main", "lake", "run", "--once", "--json"),
                *("--master", "none", "--url", self.up.http_url),
            ],
            env={
                **environment(),
                **self.s3.environment,
                "XDG_STATE_HOME": str(self.folder / "state"),
                "WEIR_LAKE_STOP_AT": f"pause:{step}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until(lambda: process.poll() is not None or stands_still(process.pid))
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def go_on(self, export: "subprocess.Popen[str]") -> str:
        """To its end, which may be an error in words, and is no stack; what it said."""
        os.kill(export.pid, signal.SIGCONT)
        said, failed = export.communicate(timeout=_PATIENCE_S)
        assert export.returncode in (0, 1), failed
        assert "Traceback" not in failed, failed
        if export.returncode == 0:
            assert json.loads(said)["failed"] == {}
        return failed

    def close(self) -> None:
        self.up.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("kills")
    (folder / "s3").mkdir()
    s3 = S3Server.start(folder / "s3")
    if s3 is None:
        pytest.skip("SeaweedFS is not installed")
    with pytest.MonkeyPatch.context() as patch, closing(s3):
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        with closing(Place(folder, s3)) as found:
            yield found


def kill_driver(place: Place, export: "subprocess.Popen[str]") -> None:
    export.kill()


def kill_broker(place: Place, export: "subprocess.Popen[str]") -> None:
    place.up.kill()
    place.up.start()
    place.go_on(export)


def kill_broker_for_longer(place: Place, export: "subprocess.Popen[str]") -> None:
    place.up.kill()
    waiting, failed = place.go_on(export).splitlines()
    assert "it is tried again for" in waiting, "it says what it waits for, while it does"
    assert re.fullmatch(r"weir: 1 topic was not fully exported; \S+: .*cannot connect to \S+: .*", failed)
    added = place.step != "planned"
    assert ("6 rows were added; then: " in failed) == added, "it says what it has done"
    place.up.start()


def kill_store(place: Place, export: "subprocess.Popen[str]") -> None:
    place.s3.kill_and_restart()
    place.go_on(export)


def kill_store_for_longer(place: Place, export: "subprocess.Popen[str]") -> None:
    place.s3.kill()
    place.go_on(export)
    place.s3.again()


Killer = Callable[[Place, "subprocess.Popen[str]"], None]
#: Who dies, and at which step.
TABLE: list[tuple[Killer, str]] = [
    *((kill_driver, step) for step in STEPS),
    *((kill_broker, step) for step in STEPS),
    *((kill_broker_for_longer, step) for step in STEPS),
    *((kill_store, step) for step in STEPS),
    *((kill_store_for_longer, step) for step in STEPS),
]


@pytest.mark.parametrize(("killer", "step"), TABLE, ids=[f"{killer.__name__}-{step}" for killer, step in TABLE])
def test_whoever_is_killed_at_any_step_every_offset_is_in_the_table_once(
    place: Place, killer: Killer, step: str
) -> None:
    count_every_offset(place, killer, step)


def count_every_offset(place: Place, killer: Killer, step: str) -> None:
    topic = place.topics.create(2)
    name = place.lake.on_for_others(topic)
    try:
        for partition in range(2):
            place.topics.fill(topic, [f"before {at}" for at in range(3)], partition)
        place.lake.export(topic)
        for partition in range(2):
            place.topics.fill(topic, [f"then {at}" for at in range(3)], partition)
        with place.export_to(step) as export:
            killer(place, export)
            assert export.wait(_PATIENCE_S) is not None
        place.lake.export(topic)
        assert place.lake.places(topic) == [(partition, at) for partition in range(2) for at in range(6)]
        values = [row["value"].decode() for row in place.lake.rows(topic)]
        assert values == 2 * [f"{when} {at}" for when in ("before", "then") for at in range(3)]
    finally:
        turn_off(place.lake.place.access, name.namespace, name.local)
