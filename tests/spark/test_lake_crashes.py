"""Exports whose driver is killed at each step: every offset is in the table once, in folders and in S3."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from weir.spark.lake.definitions import Definition
from weir.spark.lake.jobs import LocalJobs
from weir.testing.processes.s3 import S3Server
from weir.testing.processes.up import environment

from .conftest import Topics
from .lake_kit import Lake

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

STEPS = ("planned", "written", "staged", "committed", "kept")


class Driver:
    def __init__(self, lake: Lake) -> None:
        place, definition = lake.place, lake.definition
        given = (
            place.access.url,
            place.kafka,
            definition.to,
            definition.catalog,
            json.dumps(dict(definition.options)),
        )
        command = [sys.executable, str(Path(__file__).with_name("lake_driver.py")), *given]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**environment(), **os.environ}
        )
        assert self._line() == "ready"

    def export(self, topic: str, step: str = "-") -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{topic} {step}\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server.start(tmp_path_factory.mktemp("s3"))
    if server is None:
        pytest.skip("there is no Go, or it cannot fetch the S3 server")
    yield server
    server.close()


def _count_every_offset(topics: Topics, lake: Lake) -> None:
    topic = topics.create(2)
    total = 0
    with closing(Driver(lake)) as driver:
        for step in STEPS:
            for partition in range(2):
                topics.fill(topic, [f"{step}{at}" for at in range(3)], partition)
            total += 3
            assert driver.export(topic, step) == "killed"
        assert driver.export(topic) == "ended 0"
    assert lake.places(topic) == [(partition, offset) for partition in range(2) for offset in range(total)]


def test_a_driver_that_is_killed_at_any_step_loses_no_offset_and_adds_none_twice(
    topics: Topics, tmp_path: Path
) -> None:
    _count_every_offset(topics, Lake(topics, tmp_path, LocalJobs()))


def test_the_same_holds_in_a_bucket_of_a_real_s3_server(
    topics: Topics, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    lake = Lake(topics, tmp_path, LocalJobs())
    lake.definition = Definition(
        f"s3://{s3.bucket}/weir", f"sqlite:///{tmp_path}/catalog.db", {"s3.endpoint": s3.url}
    )
    _count_every_offset(topics, lake)
