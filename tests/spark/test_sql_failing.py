"""What a runner says of a stream that fails again and again, and how much waits; without Spark or a broker."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from weir.client.admin import Access
from weir.client.kafka.cluster import Partition
from weir.client.streams import Defined
from weir.model.definitions import SqlStream, StreamProgress
from weir.model.errors import SparkJvmError, SqlError, WireError
from weir.model.topics import TopicName
from weir.spark.sql import runner as module
from weir.spark.sql import stream_query
from weir.spark.sql.parsing import output_mode, parse, poison_mode
from weir.spark.sql.runner import Runner
from weir.spark.sql.statements import CreateStream
from weir.spark.sql.stream_query import behind
from weir.spark.tables.names import WeirCluster

A0, A1 = Partition("a", 0), Partition("a", 1)


class Query:
    """A query that dies when it is told to."""

    def __init__(self, ask_jvm: Callable[[], object] = lambda: None) -> None:
        self.active, self._ask_jvm = True, ask_jvm
        self.failure: Exception = WireError(
            "the value of a-0 at offset 7 is not as the topic's schema says", hint=""
        )
        self.recentProgress: list[Any] = []
        self.status = {"message": "Initializing sources"}

    @property
    def isActive(self) -> bool:
        self._ask_jvm()
        return self.active

    def exception(self) -> Exception:
        return self.failure

    def stop(self) -> None:
        self._ask_jvm()
        self.active = False


class World:
    """One stream, a clock, and what the runner was heard to say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        self.now, self.lag, self.denied = 100.0, 5, ""
        self.said: list[StreamProgress] = []
        self.queries: list[Query] = []
        self.jvm_has_ended = self.released = False
        stream = SqlStream(TopicName.parse("s"), "1", "SELECT value FROM a")
        rest = SimpleNamespace(
            take_runner=lambda *_: None,
            all_streams=lambda _: [Defined(stream, None, self.denied)],
            dropped=lambda _: [],
            release_runner=lambda *_: setattr(self, "released", True),
            report=lambda _access, _name, told: self.said.append(told),
        )
        monkeypatch.setattr(module, "rest", rest)
        monkeypatch.setattr(module, "start", self._start)
        monkeypatch.setattr(module, "waiting", lambda *_: self.lag)
        context = SimpleNamespace(isStopped=self._ask_jvm)
        session = SimpleNamespace(sparkContext=lambda: context)
        spark: Any = SimpleNamespace(createDataFrame=lambda *_: None, _jsparkSession=session)
        place = WeirCluster(Access("http://nowhere:1"), "nowhere:1")
        self.runner = Runner(
            spark, place, str(tmp_path), now=lambda: self.now, wall_ms=lambda: int(self.now * 1000)
        )

    def _ask_jvm(self) -> bool:
        if self.jvm_has_ended:
            raise Py4JNetworkError("Answer from Java side is empty")
        return False

    def _start(self, *_: object) -> Query:
        self.queries.append(Query(self._ask_jvm))
        return self.queries[-1]

    def step(self, seconds: float = 0.0) -> StreamProgress:
        self.now += seconds
        assert self.runner.step()
        return self.said[-1]

    def fail(self) -> StreamProgress:
        self.queries[-1].active = False
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


def test_a_stream_works_again_when_it_has_finished_a_batch_and_not_before(world: World) -> None:
    world.step()
    world.fail()
    world.lag = 0
    told = world.step(3)
    assert (told.state, told.failures) == ("failed", 1), "that nothing waits is no success"
    told = world.fail()
    assert (told.failures, told.next_try_ms - told.failed_ms) == (2, 2000), "it is tried less and less often"
    world.step(3)
    told = world.step(30)
    assert (told.state, told.failures) == ("running", 2), "it has nothing to do, and nothing that it did succeeded"
    assert told.error
    world.lag = 5
    assert world.step(3).state == "failed"
    done = {"batchId": 0, "numInputRows": 5, "durationMs": {"addBatch": 1, "triggerExecution": 2}}
    world.queries[-1].recentProgress.append(SimpleNamespace(json=json.dumps(done)))
    told = world.step(3)
    assert (told.state, told.failures, told.error) == ("running", 0, "")
    told = world.fail()
    assert (told.failures, told.next_try_ms - told.failed_ms) == (1, 1000)


def test_a_runner_whose_jvm_can_run_no_query_reports_the_failure_and_ends(world: World) -> None:
    world.step()
    world.queries[-1].failure = ValueError(
        "Task not serializable\n"
        "Caused by: java.lang.IllegalStateException: Illegal size 5 of collection, expected 6"
    )
    with pytest.raises(SparkJvmError, match="environment map of Spark's JVM is damaged"):
        world.fail()
    assert (world.said[-1].state, world.said[-1].failures) == ("failed", 1)
    assert "caused by java.lang.IllegalStateException: Illegal size 5" in world.said[-1].error
    world.runner.close()
    assert world.released, "the next process need not wait for the lease to run out"


def test_a_runner_whose_jvm_has_ended_reports_the_failure_and_ends(world: World) -> None:
    world.step()
    world.jvm_has_ended = True
    with pytest.raises(SparkJvmError, match="Spark's JVM has ended"):
        world.step(3)
    assert world.said[-1].state == "failed"
    assert "Spark's JVM has ended" in world.said[-1].error
    world.runner.close()
    assert world.released


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
        monkeypatch.setattr(stream_query, "_start", lambda _t, _p, _s, folder: self._begin(folder))
        monkeypatch.setattr(
            stream_query, "start_dead_letters", lambda _t, _p, _s, folder: self._begin(f"{folder}/dead")
        )
        monkeypatch.setattr(stream_query, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=self._pass_time))

    def _begin(self, folder: str) -> Query:
        for before in self.started.values():
            assert not before.status["message"].startswith("Initializing"), "two at once hinder each other"
        return self.started.setdefault(folder, Query())

    def _pass_time(self, _seconds: float) -> None:
        for query in self.started.values():
            query.status = {"message": "Getting offsets from WeirSource"}

    def run(self, **options: str) -> stream_query.RunningStream:
        tables: Any = None
        place = WeirCluster(Access("http://nowhere:1"), "nowhere:1")
        stream = SqlStream(TopicName.parse("s"), "1", "SELECT value FROM a", options=options)
        return stream_query.start(tables, place, stream, "c")


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
    assert stream_query.dead_letter_topic(TopicName.parse(stream), options) == TopicName.parse(topic)


@pytest.mark.parametrize("given", ["other/n/bad", "t/other/bad", "t/n/bad-partition-0", ""])
def test_dead_letters_go_nowhere_else(given: str) -> None:
    with pytest.raises(SqlError, match="dead_letter_topic is"):
        stream_query.dead_letter_topic(TopicName.parse("t/n/s"), {"dead_letter_topic": given})


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


def test_a_stream_whose_role_has_lost_its_rights_is_stopped_and_goes_on_when_it_has_them_again(
    world: World,
) -> None:
    world.step(5.0)
    assert world.queries[-1].isActive
    world.denied = "role 'owner', which defined the stream, may not consume a any more"
    told = world.step(5.0)
    assert told.state == "failed"
    assert "may not consume a any more" in told.error
    assert not world.queries[-1].isActive
    assert world.step(60.0).state == "failed"
    assert len(world.queries) == 1, "it is not even tried"
    world.denied = ""
    world.step(120.0)
    assert len(world.queries) == 2


def test_a_failure_of_a_kind_that_nobody_expects_is_one_streams_and_not_the_runners(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(module, "start", start)
    told = world.step(5.0)
    assert (told.state, told.failures) == ("failed", 1)
    assert "recursion" in told.error
