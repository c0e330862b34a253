"""Replays out of a table in a bucket, whose store is killed while Spark picks: each message comes once.

It comes back at once, which nobody notices; or it stays away, which is one sentence, and `resume` goes on.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from weir.model.definitions import Replay, ReplayState
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.spark.lake import catalog as stores
from weir.spark.lake import webhdfs
from weir.spark.lake.catalog import Definition, namespace_lake, turn_off
from weir.spark.lake.export import LocalJobs
from weir.spark.replay.delivery import Delivery, go_on
from weir.spark.replay.requests import Request, begin, resolve
from weir.spark.replay.selection import is_kept
from weir.spark.sql import statements as s
from weir.spark.sql.console import Console
from weir.spark.tables.names import WeirCluster
from weir.testing.processes.s3 import S3Server

from .conftest import Topics
from .lake_kit import Lake
from .replay_kit import Command, new_name, place_of, the_replay, wait_picking
from .sql_session import stored
from .standalone import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]

PARTITIONS, EACH = 2, 400
WHERE = "CAST(value AS string) LIKE '%0 %'"


def values(partition: int) -> list[str]:
    """Which nothing compresses: a file of them is read in several pieces."""
    chance = random.Random(partition)
    return [f"{partition}-{at:04d} {chance.randbytes(2000).hex()}" for at in range(EACH)]


def picked() -> list[str]:
    return [value for partition in range(PARTITIONS) for value in values(partition)[::10]]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server.start(tmp_path_factory.mktemp("s3"))
    if server is None:
        pytest.skip("SeaweedFS is not installed")
    with closing(server), pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def source(topics: Topics, s3: S3Server, tmp_path: Path) -> Iterator[str]:
    """A topic whose messages are only in the table."""
    if s3.is_away:
        s3.again()
    found = topics.create(PARTITIONS, name=new_name("from"))
    for partition in range(PARTITIONS):
        topics.fill(found, values(partition), partition)
    lake = Lake(topics, tmp_path, LocalJobs())
    lake.definition = Definition(
        f"s3://{s3.bucket}/{found}", f"sqlite:///{tmp_path}/catalog.db", {"s3.endpoint": s3.url}
    )
    name = lake.on(found)
    definition = namespace_lake(lake.place.access, name.namespace).of(name)
    assert definition is not None
    lake.definition = definition
    try:
        lake.export(found)
        for partition in range(PARTITIONS):
            topics.trim(found, EACH, partition)
        yield found
    finally:
        turn_off(lake.place.access, name.namespace, name.local)


class Strike:
    """Ends the store, once, where Spark has come to this step of its reads."""

    def __init__(self, patch: pytest.MonkeyPatch, step: str, strike: Callable[[], None]) -> None:
        self.done = False
        reads: dict[int, int] = {}
        size, read = webhdfs._Reader.size, webhdfs._Reader.read

        def reached(what: str) -> None:
            if what == step and not self.done:
                self.done = True
                strike()

        def sized(reader: webhdfs._Reader) -> int:
            reached("listed")
            return size(reader)

        def piece(reader: webhdfs._Reader, first: int, length: int) -> bytes:
            reads[id(reader)] = reads.get(id(reader), 0) + 1
            reached("opened" if reads[id(reader)] == 1 else "middle")
            return read(reader, first, length)

        patch.setattr(webhdfs._Reader, "size", sized)
        patch.setattr(webhdfs._Reader, "read", piece)


def check(topics: Topics, source: str, target: str) -> None:
    done = the_replay(place_of(topics), source)
    assert done is not None
    each = EACH // 10
    assert (done.state, done.selected, done.delivered) == (ReplayState.DONE, (each, each), (each, each))
    assert [value for _, value in stored(topics.servers, target)] == picked()
    assert not is_kept(place_of(topics), done)


STEPS = ("listed", "opened", "middle")


@pytest.mark.parametrize("step", STEPS)
def test_a_store_that_is_killed_and_comes_back_costs_no_message(
    topics: Topics, source: str, s3: S3Server, spark: "SparkSession", step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, target = place_of(topics), topics.create(PARTITIONS, name=new_name("to"))
    strike = Strike(monkeypatch, step, s3.kill_and_restart)
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target, WHERE)))
    go_on(place, replay, lambda one: _select(place, spark, one), Delivery(place))
    assert strike.done
    check(topics, source, target)


@pytest.mark.parametrize("step", STEPS)
def test_a_store_that_stays_away_is_one_sentence_and_the_replay_goes_on_when_it_is_back(
    topics: Topics, source: str, s3: S3Server, spark: "SparkSession", step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "STORE_PATIENCE_S", 1.0)
    place, target = place_of(topics), topics.create(PARTITIONS, name=new_name("to"))
    strike = Strike(monkeypatch, step, s3.kill)
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target, WHERE)))
    with pytest.raises(WeirError, match=r"^the store of the lake, s3://\S+, does not answer"):
        go_on(place, replay, lambda one: _select(place, spark, one), Delivery(place))
    assert strike.done
    with pytest.raises(WeirError, match=r"^the store of the lake, s3://\S+, does not answer"):
        go_on(place, replay, lambda one: _select(place, spark, one), Delivery(place))
    s3.again()
    go_on(place, replay, lambda one: _select(place, spark, one), Delivery(place))
    check(topics, source, target)


def test_a_store_that_is_gone_once_the_messages_are_picked_is_not_missed(
    topics: Topics, source: str, s3: S3Server, spark: "SparkSession"
) -> None:
    place, target = place_of(topics), topics.create(PARTITIONS, name=new_name("to"))
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target, WHERE)))

    def select(one: Replay) -> None:
        _select(place, spark, one)
        s3.kill()

    go_on(place, replay, select, Delivery(place))
    check(topics, source, target)


def _select(place: WeirCluster, spark: "SparkSession", replay: Replay) -> None:
    Console(lambda: spark, place).do(s.SelectReplay(replay.id))


def test_the_command_says_that_the_store_is_away_and_resume_goes_on(
    topics: Topics, source: str, s3: S3Server, tmp_path: Path
) -> None:
    target = topics.create(PARTITIONS, name=new_name("to"))
    command = Command(topics.up.http_url, tmp_path)
    process = command.start("--topic", source, "--where", WHERE, "--into", target)
    try:
        wait_picking(place_of(topics), source)
        s3.kill()
        assert process.wait(DEADLINE_S) == 1, command.log
    finally:
        process.kill()
        process.wait()
    left = the_replay(place_of(topics), source)
    assert left is not None
    assert left.state is ReplayState.SELECTING
    assert "does not answer" in command.log
    assert f"`weir replay resume {left.id}`" in command.log
    assert "Traceback" not in command.log
    s3.again()
    assert command.start("resume", left.id).wait(DEADLINE_S) == 0, command.log
    check(topics, source, target)
