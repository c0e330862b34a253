"""`weir replay`, killed while Spark picks its messages, and when it has: each message comes once."""

import signal
from pathlib import Path

import pytest

from weir.model.definitions import ReplayState
from weir.spark.replay.selection import is_kept

from .conftest import Topics
from .replay_kit import Command, new_name, place_of, the_replay, wait_picking
from .sql_session import stored
from .standalone import DEADLINE_S

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]

PARTITIONS, EACH = 2, 150


def test_a_command_that_is_killed_while_spark_picks_goes_on_where_it_was(topics: Topics, tmp_path: Path) -> None:
    place = place_of(topics)
    source, target = (topics.create(PARTITIONS, name=new_name(what)) for what in ("from", "to"))
    for partition in range(PARTITIONS):
        topics.fill(source, [f"{partition}-{at:04d}" for at in range(EACH)], partition)
    command = Command(topics.up.http_url, tmp_path)
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
