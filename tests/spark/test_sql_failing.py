"""What a runner says of a stream that fails again and again, and how much waits; without Spark or a broker."""

from types import SimpleNamespace
from typing import Any

import pytest

from weir.client.blocking import Access
from weir.client.kafka.cluster import Partition
from weir.client.streams import Defined
from weir.model.errors import SqlError, WireError
from weir.model.sql_streams import SqlStream, StreamProgress
from weir.model.topics import TopicName
from weir.spark.sql import pipelines
from weir.spark.sql import runner as module
from weir.spark.sql.cluster import WeirCluster
from weir.spark.sql.parsing import parse
from weir.spark.sql.runner import Runner
from weir.spark.sql.statements import CreateStream
from weir.spark.sql.stream_options import output_mode, poison_mode
from weir.spark.sql.waiting import behind

A0, A1 = Partition("a", 0), Partition("a", 1)


class Query:
    """A query that dies when it is told to."""

    def __init__(self) -> None:
        self.isActive = True
        self.recentProgress: list[Any] = []
        self.status = {"message": "Initializing sources"}

    def exception(self) -> Exception:
        return WireError("the value of a-0 at offset 7 is not as the topic's schema says", hint="")

    def stop(self) -> None:
        self.isActive = False


class World:
    """One stream, a clock, and what the runner was heard to say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        self.now, self.lag = 100.0, 5
        self.said: list[StreamProgress] = []
        self.queries: list[Query] = []
        stream = SqlStream(TopicName.parse("s"), "1", "SELECT value FROM a")
        rest = SimpleNamespace(
            take_runner=lambda *_: None,
            all_streams=lambda _: [Defined(stream, None)],
            dropped=lambda _: [],
            report=lambda _access, _name, told: self.said.append(told),
        )
        monkeypatch.setattr(module, "rest", rest)
        monkeypatch.setattr(module, "start", self._start)
        monkeypatch.setattr(module, "waiting", lambda *_: self.lag)
        spark: Any = SimpleNamespace(createDataFrame=lambda *_: None)
        place = WeirCluster(Access("http://nowhere:1"), "nowhere:1")
        self.runner = Runner(
            spark, place, str(tmp_path), now=lambda: self.now, wall_ms=lambda: int(self.now * 1000)
        )

    def _start(self, *_: object) -> Query:
        self.queries.append(Query())
        return self.queries[-1]

    def step(self, seconds: float = 0.0) -> StreamProgress:
        self.now += seconds
        assert self.runner.step()
        return self.said[-1]

    def fail(self) -> StreamProgress:
        self.queries[-1].isActive = False
        return self.step()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> World:
    return World(monkeypatch, tmp_path)


def test_a_stream_that_fails_again_and_again_says_how_often_why_and_when_it_is_tried_again(world: World) -> None:
    world.step()
    assert world.step(3).state == "running"
    told = world.fail()
    assert (told.state, told.failures, told.failed_ms, told.next_try_ms) == ("failed", 1, 103_000, 104_000)
    assert told.error == "the value of a-0 at offset 7 is not as the topic's schema says"
    told = world.step(3)  # it is tried, and has done nothing yet
    assert (told.state, told.failures, told.next_try_ms) == ("failed", 1, 0)
    for failures, pause_s in ((2, 2), (3, 4), (4, 8)):
        told = world.fail()
        assert (told.failures, told.next_try_ms - told.failed_ms) == (failures, 1000 * pause_s)
        world.step(pause_s)
    assert len(world.queries) == 5
    assert told.lag == 5


def test_a_stream_that_has_nothing_to_do_or_runs_for_long_after_a_failure_works_again(world: World) -> None:
    world.step()
    world.fail()
    assert world.step(3).state == "failed"
    told = world.step(30)
    assert (told.state, told.failures, told.error) == ("running", 0, "")
    world.fail()
    world.lag = 0
    assert world.step(3).state == "running"


def test_what_waits_is_what_was_not_processed_also_in_partitions_that_were_never_read() -> None:
    latest, oldest = {A0: 10, A1: 20}, {A0: 0, A1: 15}
    assert behind([{A0: 4}], oldest, latest) == 6 + 5
    assert behind([], oldest, latest) == 10 + 5
    assert behind([{A0: 10, A1: 20}, {A0: 8, A1: 20}], oldest, latest) == 2
    assert behind([{A0: 10, A1: 3}], oldest, latest) == 5
    assert behind([{A0: 10, A1: 20}], oldest, latest) == 0


class Plan:
    """Queries that were started, by the folders of their checkpoints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: dict[str, Query] = {}
        monkeypatch.setattr(pipelines, "_start", lambda _t, _p, _s, folder: self._begin(folder))
        monkeypatch.setattr(
            pipelines, "start_dead_letters", lambda _t, _p, _s, folder: self._begin(f"{folder}/dead")
        )
        monkeypatch.setattr(pipelines, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=self._pass_time))

    def _begin(self, folder: str) -> Query:
        for before in self.started.values():
            assert not before.status["message"].startswith("Initializing"), "two at once hinder each other"
        return self.started.setdefault(folder, Query())

    def _pass_time(self, _seconds: float) -> None:
        for query in self.started.values():
            query.status = {"message": "Getting offsets from WeirSource"}

    def run(self, **options: str) -> pipelines.RunningStream:
        tables: Any = None
        place = WeirCluster(Access("http://nowhere:1"), "nowhere:1")
        stream = SqlStream(TopicName.parse("s"), "1", "SELECT value FROM a", options=options)
        return pipelines.start(tables, place, stream, "c")


def test_a_stream_with_dead_letters_is_two_queries_which_run_together_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Plan(monkeypatch)
    assert alone.run(mode="PERMISSIVE").isActive
    assert list(alone.started) == ["c"]
    plan = Plan(monkeypatch)
    running = plan.run(mode="DEADLETTER")
    assert running.isActive
    plan.started["c/dead"].stop()
    assert not running.isActive
    assert isinstance(running.exception(), WireError)
    running.stop()
    assert not plan.started["c"].isActive


@pytest.mark.parametrize(
    ("stream", "given", "topic"),
    [
        ("s", None, "public/default/s-DLQ"),
        ("t/n/s", None, "t/n/s-DLQ"),
        ("t/n/s", "bad", "t/n/bad"),
        ("t/n/s", "t/n/bad", "t/n/bad"),
    ],
)
def test_dead_letters_go_to_a_topic_of_the_streams_namespace(stream: str, given: str | None, topic: str) -> None:
    options = {} if given is None else {"dead_letter_topic": given}
    assert pipelines.dead_letter_topic(TopicName.parse(stream), options) == TopicName.parse(topic)


@pytest.mark.parametrize("given", ["other/n/bad", "t/other/bad", "t/n/bad-partition-0", ""])
def test_dead_letters_go_nowhere_else(given: str) -> None:
    with pytest.raises(SqlError, match="dead_letter_topic is"):
        pipelines.dead_letter_topic(TopicName.parse("t/n/s"), {"dead_letter_topic": given})


def test_mode_says_what_becomes_of_poison_or_how_rows_are_written() -> None:
    def options(text: str) -> dict[str, str]:
        (found,) = parse(f"CREATE STREAM x WITH ({text}) AS SELECT 1 FROM t")
        assert isinstance(found, CreateStream)
        return dict(found.options)

    def both(text: str) -> tuple[str, str | None]:
        return poison_mode(options(text)), output_mode(options(text))

    assert both("start = latest") == ("FAILFAST", None)
    assert both("mode = Update") == ("FAILFAST", "update")
    assert both("mode = 'permissive', outputMode = update") == ("PERMISSIVE", "update")
    assert both("dead_letter_topic = 'bad'") == ("DEADLETTER", None)
    for wrong in (
        "mode = update, outputMode = append",
        "mode = 'PERMISSIVE', dead_letter_topic = 'x'",
        "mode = often",
    ):
        with pytest.raises(SqlError):
            options(wrong)
