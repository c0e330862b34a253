"""`weir streams run` as a real process: killed, started again, and every row is written once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.client import streams as rest
from weir.client.blocking import Access
from weir.model.sql_streams import StreamProgress, Wanted
from weir.model.topics import TopicName
from weir.testing.up import environment

from .conftest import Reads, Topics

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

_PATIENCE_S = 400.0
_MASTER = ("--master", "local[1]", "--memory", "512m")


class RunnerProcess:
    def __init__(self, url: str, folder: Path) -> None:
        self._log = folder / "runner.log"
        checkpoints = str(folder / "checkpoints")
        command = [sys.executable, "-m", "weir.cli.main", "streams", "run", "--url", url, *_MASTER]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--checkpoints", checkpoints], stdout=log, stderr=log, env=environment()
            )

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not done():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.5)

    def end(self, number: signal.Signals) -> int:
        os.kill(self._process.pid, number)
        return self._process.wait(120)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def run(topics: Topics, tmp_path: Path) -> Iterator[Callable[[], RunnerProcess]]:
    started: list[RunnerProcess] = []

    def start() -> RunnerProcess:
        started.append(RunnerProcess(topics.up.http_url, tmp_path))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_runner_that_is_killed_goes_on_from_the_checkpoints(
    run: Callable[[], RunnerProcess], topics: Topics, read: Reads
) -> None:
    source, target = topics.create(2), TopicName.parse("runner-copy")
    access = Access(topics.up.http_url)
    rest.put_stream(
        access,
        target,
        sql=f"SELECT __key, value FROM `{source}`",
        sources=[TopicName.parse(source)],
        options={"maxOffsetsPerTrigger": "7"},
        wanted=Wanted.RUNNING,
    )
    try:
        topics.fill(source, [f"a{n}" for n in range(20)], 0)
        topics.fill(source, [f"b{n}" for n in range(20)], 1)
        first = run()
        first.until(lambda: progress(access, target).rows > 0)
        first.end(signal.SIGKILL)
        topics.fill(source, [f"c{n}" for n in range(20)], 1)
        expected = sorted(f"{part}{n}" for part in "abc" for n in range(20))
        second = run()
        second.until(lambda: len(values(read, target)) >= len(expected))
        assert values(read, target) == expected
        assert second.end(signal.SIGTERM) == 0
        assert rest.runner(access) is None
        assert values(read, target) == expected
    finally:
        rest.drop_stream(access, target)


def progress(access: Access, name: TopicName) -> StreamProgress:
    return rest.get_stream(access, name).progress or StreamProgress("", "")


def values(read: Reads, topic: TopicName) -> list[str]:
    return sorted(read.values(topic.local))


def test_sql_from_a_script_starts_a_runner_that_keeps_the_stream_running(topics: Topics, tmp_path: Path) -> None:
    source = topics.create()
    topics.fill(source, ["1", "2", "3"])
    command = [sys.executable, "-m", "weir.cli.main", "sql", "--url", topics.up.http_url, "--json"]
    script = (
        f"SELECT sum(CAST(value AS int)) AS s FROM `{source}`;"
        f"CREATE STREAM by_script AS SELECT value FROM `{source}`;"
        "SHOW STREAMS; DROP STREAM by_script"
    )
    variables = environment() | {"XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "--checkpoints", str(tmp_path / "checkpoints"), "--master", "local[1]", "-f", "-"],
        input=script,
        capture_output=True,
        text=True,
        env=variables,
        timeout=_PATIENCE_S,
        check=False,
    )
    log = tmp_path / "checkpoints" / "runner.log"
    try:
        assert done.returncode == 0, done.stderr
        found = documents(done.stdout)
        assert found[0] == [{"s": 6}]
        assert found[1]["stream"] == "by_script"
        assert [line["stream"] for line in found[2]] == ["by_script"]
    finally:
        where = rest.runner(Access(topics.up.http_url))
        if where is not None:
            os.kill(int(where.split()[1]), signal.SIGTERM)
    assert "running streams as process" in log.read_text()


def documents(text: str) -> list[Any]:
    """JSON values, one after the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found
