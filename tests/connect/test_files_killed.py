"""Sinks of files whose runner is killed with SIGKILL at each step: a file is whole or not there, each record once.

The runner is a process of its own, and dies at exact steps (`stopping_runner`). Records fill two partitions before
each kill; after the last one a runner goes on to the end, and every offset is counted.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.groups import committed
from weir.testing.processes.s3 import S3Server

from .conftest import Weir
from .runner_kit import Cli, RunnerProcess, until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("connect")]

_NAME = re.compile(r"partition=(\d+)/(\d+)-(\d+)\.jsonl$")
_EACH = 3
#: Of 1 MB, two parts of an upload and more; a part has ten.
_MANY = 24


class Archive:
    """A sink into a folder or a bucket, and what is in it."""

    def __init__(self, weir: Weir, topic: str, files: Any, root: str, partitions: int = 2) -> None:
        self._weir, self._topic, self._partitions = weir, topic, partitions
        self._files, self._root = files, root
        self._filled = 0
        weir.create(topic, partitions)

    def add(self, weir_connect: Cli, file: Path, path: str, more: str = 'max_age = "0ms"') -> None:
        file.write_text(
            f'name = "{self._topic}"\ntopic = "{self._topic}"\n[sink]\ntype = "files"\npath = "{path}"\n'
            f'columns = "all"\n{more}\n'
        )
        weir_connect("add", str(file))

    def fill(self, count: int = _EACH) -> None:
        for partition in range(self._partitions):
            self._weir.fill(self._topic, [(b"k", b'{"a": 1}')] * count, partition)
        self._filled += count

    def fill_large(self, count: int) -> None:
        """Messages that make a file of several parts: 1 MB each, and each a batch."""
        value = json.dumps({"a": "x" * 1_000_000}).encode()
        for partition in range(self._partitions):
            for _ in range(count):
                self._weir.fill(self._topic, [(b"k", value)], partition)
        self._filled += count

    def offsets(self) -> list[tuple[int, int]]:
        """Of all records there are, by the files that readers see; each has just what its name says."""
        found: list[tuple[int, int]] = []
        listed = self._files.get_file_info(fs.FileSelector(self._root, recursive=True, allow_not_found=True))
        for one in listed:
            within = one.path.removeprefix(self._root).split("/")
            if one.type != fs.FileType.File or any(part.startswith((".", "_")) for part in within):
                continue
            name = _NAME.search(one.path)
            assert name is not None, one.path
            with self._files.open_input_stream(one.path) as file:
                rows = [json.loads(line) for line in file.read().splitlines()]
            mine = [(row["__partition"], row["__offset"]) for row in rows]
            index, first, last = map(int, name.groups())
            assert mine == [(index, at) for at in range(first, last + 1)], one.path
            found += mine
        return sorted(found)

    def hidden(self) -> list[str]:
        """Files that a writer has left: their names begin with a dot."""
        listed = self._files.get_file_info(fs.FileSelector(self._root, recursive=True, allow_not_found=True))
        return [one.path for one in listed if one.base_name.startswith(".") and not one.base_name.endswith(".crc")]

    def carried(self) -> int:
        """How many records are before the positions that the group has."""
        partitions = [Partition(self._topic, at) for at in range(self._partitions)]
        with Cluster(self._weir.place.kafka) as cluster:
            return sum(max(0, at) for at in committed(cluster, f"connect-{self._topic}", partitions).values())

    def all_there(self) -> bool:
        return len(self.offsets()) >= self._partitions * self._filled

    def count(self) -> None:
        wanted = [(partition, at) for partition in range(self._partitions) for at in range(self._filled)]
        assert Counter(self.offsets()) == Counter(wanted)


def kill_at(step: str, archive: Archive, runner: RunnerProcess) -> None:
    """One runner lives until it is there; what it leaves is what the step says."""
    before = archive.offsets()
    runner.start(stop_at=step)
    runner.wait_killed()
    after = archive.offsets()
    assert (len(after) > len(before)) == (step in ("renamed", "written", "committed")), step
    assert archive.carried() == len(after if step == "committed" else before), step


def kill_at_each(steps: tuple[str, ...], archive: Archive, runner: RunnerProcess) -> None:
    for step in steps:
        archive.fill()
        kill_at(step, archive, runner)
    runner.start()
    until(archive.all_there)
    # What comes last is written behind all that might have been written twice.
    archive.fill()
    until(archive.all_there)
    archive.count()


FOLDER_STEPS = ("planned", "half", "whole", "renamed", "written", "committed")
BUCKET_STEPS = ("planned", "half", "whole", "written", "committed")
SPARK_FOLDER_STEPS = ("planned", "spark", "whole", "renamed", "written", "committed")


def test_each_record_is_in_a_folder_once_at_whatever_step_the_runner_is_killed(
    weir: Weir, weir_connect: Cli, runner: RunnerProcess, folder: Path, tmp_path: Path, unique: str
) -> None:
    archive = Archive(weir, unique, fs.LocalFileSystem(), str(folder))
    archive.add(weir_connect, tmp_path / "sink.toml", str(folder))
    kill_at_each(FOLDER_STEPS, archive, runner)
    assert archive.hidden() == [], "what killed ones left is taken away"


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Options of a definition that the runner comes in by."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KEY", s3.environment["AWS_ACCESS_KEY_ID"])
    monkeypatch.setenv("SECRET", s3.environment["AWS_SECRET_ACCESS_KEY"])
    return f'endpoint = "{s3.url}"\naccess_key = {{ env = "KEY" }}\nsecret_key = {{ env = "SECRET" }}'


def test_each_record_is_in_a_bucket_once_at_whatever_step_the_runner_is_killed(
    weir: Weir, weir_connect: Cli, runner: RunnerProcess, s3: S3Server, bucket: str, tmp_path: Path, unique: str
) -> None:
    archive = Archive(weir, unique, s3.files, f"{s3.bucket}/{unique}")
    more = f'max_age = "0ms"\n{bucket}'
    archive.add(weir_connect, tmp_path / "sink.toml", f"s3://{s3.bucket}/{unique}", more)
    kill_at_each(BUCKET_STEPS, archive, runner)


@pytest.mark.parametrize("step", ["half", "whole"])
def test_an_upload_in_parts_that_is_cut_off_is_no_file_and_comes_again(
    weir: Weir,
    weir_connect: Cli,
    runner: RunnerProcess,
    s3: S3Server,
    bucket: str,
    tmp_path: Path,
    unique: str,
    step: str,
) -> None:
    archive = Archive(weir, unique, s3.files, f"{s3.bucket}/{unique}", partitions=1)
    more = f'max_age = "1h"\nmax_records = {_MANY}\n{bucket}'
    archive.add(weir_connect, tmp_path / "sink.toml", f"s3://{s3.bucket}/{unique}", more)
    archive.fill_large(_MANY)
    kill_at(step, archive, runner)
    runner.start()
    until(archive.all_there)
    archive.fill(_MANY)
    until(archive.all_there)
    archive.count()


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_record_is_in_a_folder_once_at_whatever_step_a_runner_with_spark_is_killed(
    weir: Weir, weir_connect: Cli, runner: RunnerProcess, folder: Path, tmp_path: Path, unique: str
) -> None:
    archive = Archive(weir, unique, fs.LocalFileSystem(), str(folder))
    more = 'max_age = "0ms"\nengine = "spark"'
    archive.add(weir_connect, tmp_path / "sink.toml", str(folder), more)
    kill_at_each(SPARK_FOLDER_STEPS, archive, runner)
