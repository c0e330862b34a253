"""`weir streams run` as a real process: killed, started again, and every row is counted once."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.client import streams as rest
from weir.client.admin import Access
from weir.model.definitions import StreamProgress, Wanted
from weir.model.topics import TopicName
from weir.testing.processes.up import environment

from .conftest import Topics
from .sql_session import stored

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


@pytest.mark.longest
def test_streams_go_on_after_kills_of_their_runner_and_of_the_broker_and_count_everything_once(
    run: Callable[[], RunnerProcess], topics: Topics
) -> None:
    story = Story(topics)
    try:
        story.fill("a", 0)
        story.fill("b", 1)
        first = run()
        first.until(lambda: story.progress(story.paused).rows > 0)
        story.put(story.paused, Wanted.PAUSED)
        first.until(lambda: story.progress(story.paused).state == "paused")
        first.until(lambda: min(story.progress(name).rows for name in (story.copy, story.sums)) > 0)
        first.end(signal.SIGKILL)
        story.fill("c", 1)
        second = run()
        second.until(lambda: story.done("abc", story.copy, story.sums))
        assert story.progress(story.paused).state == "paused"
        assert not story.done("abc", story.paused)
        story.put(story.paused, Wanted.RUNNING)
        second.until(lambda: story.done("abc", story.paused))
        topics.up.kill()
        topics.up.start()
        story.fill("d", 0)
        second.until(lambda: story.done("abcd", *story.names))
        assert second.end(signal.SIGTERM) == 0
        assert rest.runner(story.access).where is None
        assert story.done("abcd", *story.names)
    finally:
        for name in story.names:
            rest.drop_stream(story.access, name)


class Story:
    """A topic; a stream that copies it; and two that sum it up in mode update."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.access = Access(topics.up.http_url)
        self._source = topics.create(2)
        self.names = [TopicName.parse(f"runner-{what}") for what in ("copy", "sums", "paused")]
        self.copy, self.sums, self.paused = self.names
        for name in self.names:
            self.put(name, Wanted.RUNNING)

    def put(self, name: TopicName, wanted: Wanted) -> None:
        copied = f"SELECT __key, value FROM `{self._source}`"
        summed = (
            "SELECT substr(value, 1, 1) AS key, count(*) AS n, sum(CAST(substr(value, 2) AS int)) AS total "
            f"FROM `{self._source}` GROUP BY 1"
        )
        rest.put_stream(
            self.access,
            name,
            sql=copied if name == self.copy else summed,
            sources=[TopicName.parse(self._source)],
            options={"maxOffsetsPerTrigger": "15"},
            wanted=wanted,
        )

    def fill(self, letter: str, partition: int) -> None:
        self._topics.fill(self._source, [f"{letter}{n}" for n in range(20)], partition)

    def progress(self, name: TopicName) -> StreamProgress:
        return rest.get_stream(self.access, name).progress or StreamProgress("", "")

    def done(self, letters: str, *names: TopicName) -> bool:
        """Whether these streams have written all of these letters' messages; and nothing twice so far."""
        return all(self._copied(letters) if name == self.copy else self._summed(name, letters) for name in names)

    def _copied(self, letters: str) -> bool:
        found = sorted(value for _, value in stored(self._topics.servers, self.copy.local))
        expected = sorted(f"{letter}{n}" for letter in letters for n in range(20))
        assert len(found) == len(set(found)), found
        return found == expected

    def _summed(self, name: TopicName, letters: str) -> bool:
        last: dict[str | None, tuple[int, int]] = {}
        for key, value in stored(self._topics.servers, name.local):
            told = json.loads(value)
            assert told["n"] > last.get(key, (0, 0))[0], (key, told, last)  # else an epoch was written twice
            last[key] = (told["n"], told["total"])
        return last == dict.fromkeys(letters, (20, 190))


def test_sql_from_a_script_starts_a_warm_server_and_a_runner_that_keeps_the_stream_running(
    topics: Topics, tmp_path: Path
) -> None:
    source = topics.create()
    topics.fill(source, ["1", "2", "3"])
    command = [sys.executable, "-m", "weir.cli.main", "sql", "--url", topics.up.http_url, "--json"]
    script = (
        f"SELECT sum(CAST(value AS int)) AS s FROM `{source}`;"
        f"CREATE STREAM by_script AS SELECT value FROM `{source}`;"
        "SHOW STREAMS; DROP STREAM by_script"
    )
    sockets = tempfile.mkdtemp(prefix="weir-", dir="/tmp")  # the path of a socket is short
    variables = environment() | {
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": sockets,
        "WEIR_SQL_SERVER": "on",
    }

    def weir(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        asked = [*command[:4], *arguments]
        return subprocess.run(
            asked, input=given, capture_output=True, text=True, env=variables, timeout=_PATIENCE_S, check=False
        )

    done = weir(
        *command[4:],
        "--checkpoints",
        str(tmp_path / "checkpoints"),
        "--master",
        "local[1]",
        "-f",
        "-",
        given=script,
    )
    # The same server does the next command, which knows nothing of the session before.
    wrong = weir(*command[4:], "--master", "local[1]", "--debug", "-e", f"SELECT no FROM `{source}`")
    told = json.loads(weir("server", "status", "--json").stdout)
    stopped = weir("server", "stop")
    log = tmp_path / "checkpoints" / "runner.log"
    try:
        assert done.returncode == 0, done.stderr
        found = documents(done.stdout)
        assert found[0] == [{"s": 6}]
        assert found[1]["stream"] == "by_script"
        assert [line["stream"] for line in found[2]] == ["by_script"]
        assert [(one["statements"], one["spark"]) for one in told] == [(2, True)]
        assert wrong.returncode == 1
        assert "cannot be resolved" in wrong.stderr.splitlines()[-1]
        assert "org.apache.spark" in wrong.stderr  # behind --debug
        assert stopped.stdout == "1 stopped\n"
    finally:
        where = rest.runner(Access(topics.up.http_url)).where
        if where is not None:
            os.kill(int(where.split()[1]), signal.SIGTERM)
        shutil.rmtree(sockets)
    assert "running streams as process" in log.read_text()


def documents(text: str) -> list[Any]:
    """JSON values, one after the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found
