"""`weir replay`, killed while Spark picks its messages, and when it has: each message comes once."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weir.client.replays import all_replays
from weir.model.replays import Replay, ReplayState
from weir.model.topics import TopicName
from weir.spark.replay.selecting import is_kept
from weir.spark.sql.cluster import WeirCluster
from weir.testing.processes.up import environment

from .conftest import Topics
from .replay_kit import new_name, place_of
from .sql_session import patiently, stored
from .standalone import DEADLINE_S

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]

PARTITIONS, EACH = 2, 150


class Command:
    """`weir replay` as a process of its own, with a Spark of its own."""

    def __init__(self, topics: Topics, folder: Path) -> None:
        self._url = topics.up.http_url
        self._log = folder / "replay.log"
        self._variables = {**environment(), "XDG_STATE_HOME": str(folder)}

    def start(self, *words: str, stop_at: str = "") -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "weir.cli.main", "replay", *words, "--no-server", "--url", self._url]
        variables = {**self._variables, "WEIR_REPLAY_STOP_AT": stop_at}
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=variables)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def the_replay(place: WeirCluster, topic: str) -> Replay | None:
    return next(iter(all_replays(place.access, TopicName.parse(topic))), None)


def wait_picking(place: WeirCluster, topic: str) -> None:
    """Until something of a selection may be there."""

    def is_picking() -> bool:
        found = the_replay(place, topic)
        return found is not None and is_kept(place, found)

    patiently(is_picking)


def test_a_command_that_is_killed_while_spark_picks_goes_on_where_it_was(topics: Topics, tmp_path: Path) -> None:
    place = place_of(topics)
    source, target = (topics.create(PARTITIONS, name=new_name(what)) for what in ("from", "to"))
    for partition in range(PARTITIONS):
        topics.fill(source, [f"{partition}-{at:04d}" for at in range(EACH)], partition)
    command = Command(topics, tmp_path)
    process = command.start("--topic", source, "--where", "CAST(value AS string) LIKE '%5'", "--into", target)
    try:
        wait_picking(place, source)
    finally:
        process.kill()
        process.wait()
    left = the_replay(place, source)
    assert left is not None
    assert (left.state, stored(topics.servers, target)) == (ReplayState.SELECTING, [])
    killed = command.start("resume", left.id, stop_at="selected").wait(DEADLINE_S)
    assert killed == -signal.SIGKILL, command.log
    assert command.start("resume", left.id).wait(DEADLINE_S) == 0, command.log
    done = the_replay(place, source)
    assert done is not None
    assert (done.state, done.selected, done.delivered) == (ReplayState.DONE, (15, 15), (15, 15))
    picked = [f"{partition}-{at:04d}" for partition in range(PARTITIONS) for at in range(5, EACH, 10)]
    assert [value for _, value in stored(topics.servers, target)] == picked
    assert not is_kept(place, done)
