"""When `weir lake run` exports a topic, and when it tries again: by a clock, without brokers or Spark."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from weir.model.errors import (
    LakeConflictError,
    LakeError,
    LakeUnfinishedError,
    NetworkError,
    NotAuthorisedError,
    NotOwnerError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.spark.lake import runner as module
from weir.spark.lake.catalog import Definition
from weir.spark.lake.export import Exported
from weir.spark.lake.runner import LakeRunner, Trigger
from weir.spark.lake.topics import LakeTopic, TopicEnds

ORDERS, OTHERS = TopicName.parse("orders"), TopicName.parse("others")


class Lakes:
    """Topics with so many messages that wait, exported at once, unless that fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.lag = {ORDERS: 0}
        self.failing: dict[TopicName, Exception] = {}
        self.tried: list[TopicName] = []
        self.away: Exception | None = None
        #: How many exports others come before.
        self.second = 0
        #: Away from the next export on.
        self.away_after: Exception | None = None
        self.partitions = 1
        #: Topics of which what is not exported stays.
        self.held: list[TopicName] = []
        #: Why there is no telling where one ends.
        self.unknown: dict[TopicName, WeirError] = {}
        #: Which topics they are, and of which ones the tables are; and whose tables were looked into.
        self.topic_id = "1"
        self.tables: dict[TopicName, tuple[str, int]] = {}
        self.opened: list[TopicName] = []
        #: What is wrong with one when all are told at once to keep what is not exported.
        self.refused: WeirError | None = None
        monkeypatch.setattr(module, "lake_topics", self._topics)
        monkeypatch.setattr(module, "look", self._look)
        monkeypatch.setattr(module, "connection", lambda options: options)
        monkeypatch.setattr(module, "Cluster", nullcontext)
        monkeypatch.setattr(module, "find_table", self._table)
        monkeypatch.setattr(module, "hold", lambda place, namespace, name: self.held.append(name))
        monkeypatch.setattr(module, "hold_all", self._hold_all)
        monkeypatch.setattr(module, "let_go_internal", lambda _: None)
        monkeypatch.setattr(module, "let_go", self._let_go)
        place: Any = SimpleNamespace(options={})
        exporter: Any = self
        self.runner = LakeRunner(place, exporter, Trigger(60.0, 10_000), now=lambda: self.now)

    def _topics(self, place: object) -> list[LakeTopic]:
        if self.away is not None:
            raise self.away
        return [LakeTopic(name, Definition("file:///x", "sqlite:///x")) for name in self.lag]

    def _let_go(self, place: object, namespace: object, name: TopicName) -> None:
        if self.away is not None:
            raise self.away
        self.held = [one for one in self.held if one != name]

    def _hold_all(self, cluster: object, names: list[TopicName]) -> None:
        if names and self.refused is not None:
            raise self.refused
        self.held += names

    def _look(self, cluster: object, names: list[TopicName]) -> dict[TopicName, TopicEnds | WeirError]:
        parts = range(self.partitions)
        ends = {name: {at: 0 if at else self.end(name) for at in parts} for name in names}
        return {name: self.unknown.get(name) or TopicEnds(self.topic_id, ends[name]) for name in names}

    def end(self, name: TopicName) -> int:
        return self.lag[name] + self.tables.get(name, ("", 0))[1]

    def _table(self, name: TopicName, definition: Definition) -> Any:
        self.opened.append(name)
        if name not in self.tables:
            return None
        of, end = self.tables[name]
        return SimpleNamespace(offsets=lambda: {0: end}, is_of=lambda topic_id: topic_id == of)

    def export(self, name: TopicName, definition: Definition, told: object = None) -> Exported | None:
        self.tried.append(name)
        self.away = self.away_after
        if self.second:
            self.second -= 1
            raise LakeConflictError("the table was changed by another process")
        if name in self.failing:
            raise self.failing[name]
        self.tables[name] = self.topic_id, self.end(name)
        rows, self.lag[name] = self.lag[name], 0
        return Exported(name, rows, 1, rows * 1000, 0, 1.0) if rows else None

    def step(self, after_s: float = 0.0) -> list[int]:
        self.now += after_s
        return [one.rows for one in self.runner.step()]


@pytest.fixture
def lakes(monkeypatch: pytest.MonkeyPatch) -> Lakes:
    return Lakes(monkeypatch)


def test_a_topic_is_exported_when_its_oldest_message_has_waited_for_so_long(lakes: Lakes) -> None:
    assert lakes.step() == []
    lakes.lag[ORDERS] = 3
    assert lakes.step(500) == [], "nobody knew of them before"
    lakes.lag[ORDERS] = 4
    assert lakes.step(59) == []
    assert lakes.step(1) == [4]
    lakes.lag[ORDERS] = 1
    assert lakes.step(59) == [], "the next one waits for as long"


def test_a_topic_is_exported_when_enough_waits_by_what_its_rows_took_the_last_time(lakes: Lakes) -> None:
    lakes.lag[ORDERS] = 49
    assert lakes.step() == [], "200 bytes a row are guessed"
    lakes.lag[ORDERS] = 50
    assert lakes.step() == [50]
    lakes.lag[ORDERS] = 9
    assert lakes.step() == [], "they took 1000 bytes each"
    lakes.lag[ORDERS] = 10
    assert lakes.step() == [10]


def test_topics_and_partitions_that_come_later_keep_what_is_not_exported_from_when_they_are_seen(
    lakes: Lakes,
) -> None:
    lakes.step()
    lakes.step()
    assert lakes.held == [ORDERS]
    lakes.lag[OTHERS] = 1
    lakes.step()
    assert lakes.held == [ORDERS, OTHERS]
    lakes.partitions = 2
    lakes.step()
    assert lakes.held == 2 * [ORDERS, OTHERS]


def test_topics_where_nothing_comes_are_asked_for_their_ends_and_nothing_else(lakes: Lakes) -> None:
    lakes.lag = {ORDERS: 0, OTHERS: 0}
    for _ in range(5):
        lakes.step()
    assert (lakes.opened, lakes.held) == ([ORDERS, OTHERS], [ORDERS, OTHERS])
    lakes.lag[OTHERS] = 1000
    assert lakes.step() == [1000]
    lakes.step()
    lakes.step()
    assert lakes.opened == [ORDERS, OTHERS, OTHERS], "the table is looked into after an export"


def test_a_topic_that_is_deleted_and_made_again_is_exported_though_its_table_is_further(lakes: Lakes) -> None:
    lakes.lag[ORDERS] = 1000
    assert lakes.step() == [1000]
    lakes.topic_id, lakes.tables[ORDERS] = "2", ("1", 0)  # the new one has 3 messages
    lakes.lag[ORDERS] = 3
    assert lakes.step() == [3]
    assert lakes.held == [ORDERS, ORDERS], "it keeps what is not exported, as the first one did"
    lakes.lag[ORDERS] = 3
    assert lakes.step() == [], "it waits for --age or --size, as others do"


def test_a_topic_whose_leader_is_not_known_holds_up_no_other(lakes: Lakes) -> None:
    lakes.lag = {ORDERS: 1000, OTHERS: 1000}
    lakes.unknown[ORDERS] = NotOwnerError("the partition has no leader for now")
    lakes.refused = NotAuthorisedError("this role may not use the topic")
    assert lakes.step() == [1000]
    assert lakes.held == [OTHERS]
    lakes.unknown.clear()
    assert lakes.step(5) == [1000]
    assert lakes.held == [OTHERS, ORDERS]


def test_a_topic_that_is_no_longer_in_the_lake_keeps_nothing_for_it_whatever_an_export_has_told_meanwhile(
    lakes: Lakes,
) -> None:
    lakes.lag = {ORDERS: 0, OTHERS: 0}
    lakes.step()
    del lakes.lag[OTHERS]
    lakes.away = NetworkError("nobody answers")
    lakes.step()
    assert lakes.held == [ORDERS, OTHERS]
    lakes.away = None
    lakes.step()
    assert lakes.held == [ORDERS]


def test_so_it_is_if_the_lake_is_turned_off_while_once_exports(
    lakes: Lakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned_off(name: TopicName, definition: Definition, told: object = None) -> Exported | None:
        del lakes.lag[name]
        lakes.held.append(name)
        return None

    monkeypatch.setattr(lakes, "export", turned_off)
    lakes.runner.once()
    assert lakes.held == []


def test_one_that_fails_is_tried_again_after_5_10_and_at_most_300_seconds_and_the_others_go_on(
    lakes: Lakes,
) -> None:
    lakes.lag = {ORDERS: 1000, OTHERS: 1000}
    lakes.failing[ORDERS] = LakeError("the store is full")
    assert lakes.step() == [1000]
    waits = []
    for _ in range(8):
        tried, waited = len(lakes.tried), 0
        while len(lakes.tried) == tried:
            lakes.step(5)
            waited += 5
        waits.append(waited)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    del lakes.failing[ORDERS]
    assert lakes.step(300) == [1000]
    lakes.lag[ORDERS], lakes.failing[ORDERS] = 1000, LakeError("again")
    lakes.step()
    del lakes.failing[ORDERS]
    assert lakes.step(5) == [1000], "what went well once begins with the shortest wait"


def test_brokers_that_are_away_and_topics_that_are_gone_end_nothing(lakes: Lakes) -> None:
    lakes.lag[ORDERS] = 1000
    lakes.away = NetworkError("nobody answers")
    assert lakes.step() == []
    lakes.away = None
    lakes.failing[ORDERS] = TopicNotFoundError("gone")
    assert lakes.step() == []
    del lakes.failing[ORDERS]
    assert lakes.step() == [1000], "it was made again"


def test_a_broker_that_goes_away_is_waited_for_once_and_not_once_for_each_topic(lakes: Lakes) -> None:
    lakes.lag = {OTHERS: 1000, ORDERS: 1000}
    lakes.failing[OTHERS] = LakeUnfinishedError("6 rows were added; then: nobody answers")
    lakes.failing[OTHERS].__cause__ = NetworkError("nobody answers")
    lakes.away_after = NetworkError("nobody answers now")
    found, failed = lakes.runner.once()
    assert (found, lakes.tried) == ([], [OTHERS])
    assert failed == {OTHERS: "6 rows were added; then: nobody answers", ORDERS: "nobody answers now"}
    lakes.away = None
    assert (lakes.step(), lakes.tried) == ([], [OTHERS, OTHERS])


def test_a_leader_that_is_away_holds_up_its_topic_alone(lakes: Lakes) -> None:
    lakes.lag = {OTHERS: 1000, ORDERS: 1000}
    lakes.failing[OTHERS] = NetworkError("nobody answers")
    found, failed = lakes.runner.once()
    assert ([one.topic for one in found], failed) == ([ORDERS], {OTHERS: "nobody answers"})
    lakes.lag[ORDERS] = 1000
    assert lakes.step() == [1000]


def test_once_begins_again_where_another_export_came_before_but_not_for_ever(lakes: Lakes) -> None:
    lakes.lag = {ORDERS: 1000}
    lakes.second = 2
    found, failed = lakes.runner.once()
    assert ([one.rows for one in found], failed, lakes.tried) == ([1000], {}, 3 * [ORDERS])
    lakes.lag, lakes.second, lakes.tried = {ORDERS: 1000}, 100, []
    found, failed = lakes.runner.once()
    assert (found, list(failed), lakes.tried) == ([], [ORDERS], 5 * [ORDERS])


_OF_SPARK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times
Traceback (most recent call last):
  File "writing.py", line 73, in write_range
OSError: the bucket is gone

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "writing.py", line 73, in write_range
OSError: the bucket is gone

\t... 1 more
"""


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (LakeError("the store is full"), "the store is full"),
        (OSError("nobody answers"), "nobody answers"),
        (RuntimeError(_OF_SPARK), "OSError: the bucket is gone"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_once_exports_everything_and_tells_in_a_line_what_failed(
    lakes: Lakes, failure: Exception, said: str
) -> None:
    lakes.lag = {OTHERS: 1, ORDERS: 1}
    lakes.failing[OTHERS] = failure
    found, failed = lakes.runner.once()
    assert [one.topic for one in found] == [ORDERS]
    assert failed == {OTHERS: said}
