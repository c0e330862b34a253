"""Which topics are in the lake: of every name, made again after they were deleted, with times of every kind."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
import pytest

from weir.client.admin import ask_v2
from weir.client.kafka.cluster import Cluster
from weir.client.schemas import kafka_name, topic_of
from weir.model.errors import ConfigError, TopicNotFoundError
from weir.model.topics import TopicName
from weir.spark.lake.catalog import NamespaceLake, namespace_lake, open_catalog, turn_off, turn_on, where
from weir.spark.lake.export import Exporter, LocalJobs
from weir.spark.lake.runner import LakeRunner, Trigger, standings
from weir.spark.lake.table import find_table, tables_in
from weir.spark.lake.topics import TopicEnds, look
from weir.spark.lake.upkeep import Limits, drop_deleted
from weir.spark.tables.topic_tables import Tables

from .conftest import Topics
from .lake_kit import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
#: As queues, RocketMQ's dead letters and Pulsar's clients name them. `a#1` and `a#2` would be one place of a URL.
ODD = ("a#1", "a#2", "a?b", "%DLQ%group", "two words", "br{a,b}[x]*", "Grüße", "a..b..c", "x" * 300)


@pytest.fixture
def lake(topics: Topics, tmp_path: Path) -> Lake:
    return Lake(topics, tmp_path, LocalJobs())


def _filled(topics: Topics, namespace: str, names: tuple[str, ...]) -> None:
    """With a message in each, which is the topic's name."""
    with closing(pulsar.Client(topics.up.pulsar_url, logger=QUIET)) as client:
        for name in names:
            producer = client.create_producer(f"persistent://{namespace}/{name}")
            producer.send(name.encode())
            producer.close()


def test_a_namespace_in_the_lake_has_all_of_its_topics_there_whatever_they_are_called(
    topics: Topics, lake: Lake, spark: "SparkSession"
) -> None:
    namespace = TopicName.parse("public/odd.names/x").namespace
    ask_v2(lake.place.access, "PUT", "namespaces/public/odd.names")
    _filled(topics, str(namespace), ODD)
    turn_on(lake.place.access, namespace, None, lake.definition)
    definition = namespace_lake(lake.place.access, namespace).every
    assert definition is not None
    runner = LakeRunner(lake.place, Exporter(lake.place, LocalJobs()), Trigger(age_s=0.0))
    assert sorted(one.topic.local for one in runner.step()) == sorted(ODD)
    assert runner.once() == ([], {})
    shown = {
        one.name.local: [(part.exported, part.lag) for part in parts] for one, _, parts in standings(lake.place)
    }
    assert shown == {name: [(1, 0)] for name in ODD}
    for name in ODD:
        found = find_table(TopicName(namespace, name), definition)
        assert found is not None
        assert found.table.scan().to_arrow()["value"].to_pylist() == [name.encode()]
    assert {one.local for one in tables_in(namespace, definition)} == set(ODD)
    query = Tables(lambda: spark, lake.place).table(TopicName(namespace, "a#1"))
    assert [row.value for row in query.select("value").collect()] == ["a#1"]

    gone = TopicName(namespace, "a#2")
    ask_v2(lake.place.access, "DELETE", "persistent/public/odd.names/a%232?force=true")
    assert [topic for topic, _ in runner.look_after(LocalJobs(), Limits()) if topic == gone] == [gone]
    assert {one.local for one in tables_in(namespace, definition)} == {*ODD} - {"a#2"}
    turn_off(lake.place.access, namespace, None)


@pytest.mark.parametrize("name", [*ODD, "plain", "with.dots"])
def test_every_topic_has_a_name_in_kafkas_protocol_and_no_two_the_same(name: str) -> None:
    for namespace in ("public/default", "a/b"):
        topic = TopicName.parse(f"persistent://{namespace}/{name}")
        assert topic_of(kafka_name(topic)) == topic


def test_a_place_that_no_url_can_name_is_refused(tmp_path: Path) -> None:
    for odd in ("a#b", "a?b"):
        with pytest.raises(ConfigError, match="ends a URL's path"):
            where(f"{tmp_path}/{odd}", "")


def test_a_topic_that_is_made_again_has_nothing_of_the_one_that_was_deleted(
    topics: Topics, lake: Lake, spark: "SparkSession"
) -> None:
    topic = topics.create()
    topics.fill(topic, ["old 0", "old 1", "old 2"])
    name = lake.on_for_others(topic)
    lake.export(topic)
    topics.delete(topic)
    topics.create(name=topic)
    topics.fill(topic, ["new"])
    options = {"kafka.bootstrap.servers": topics.servers, "adminUrl": topics.up.http_url}
    frame = spark.read.format("weir").options(**options).load(topic)
    assert [bytes(row.value) for row in frame.select("value").collect()] == [b"new"]
    query = Tables(lambda: spark, lake.place).table(name)
    assert [row.value for row in query.select("value").collect()] == ["new"]
    (standing,) = [parts for one, _, parts in standings(lake.place) if one.name == name]
    assert [(part.exported, part.lag) for part in standing] == [(None, 1)]

    runner = LakeRunner(lake.place, lake.exporter, Trigger(age_s=600.0))
    assert [one.rows for one in runner.step() if one.topic == name] == [1]
    assert [row["value"] for row in lake.rows(topic)] == [b"new"]
    topics.delete(topic)
    topics.create(name=topic)
    said = dict(runner.look_after(LocalJobs(), Limits()))
    assert said[name] == "the topic was deleted and made again, and the table of the old one is gone"
    assert find_table(name, lake.definition) is None
    turn_off(lake.place.access, name.namespace, name.local)


def test_times_that_no_calendar_has_are_the_first_and_the_last_that_one_has(topics: Topics, lake: Lake) -> None:
    """As of a client that gives microseconds: one such message must not stop the export of its topic."""
    topic = topics.create()
    with closing(pulsar.Client(topics.up.pulsar_url, logger=QUIET)) as client:
        producer = client.create_producer(topic)
        for moment in (1_763_456_000_000_000, 2**63 - 1, 253_402_300_800_000, 1_763_456_000_000):
            producer.send(b"x", event_timestamp=moment)
    assert lake.export(topic).rows == 4  # type: ignore[union-attr]
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    times = [row["timestamp"] for row in lake.rows(topic)]
    assert times == [last, last, last, datetime(2025, 11, 18, 8, 53, 20, tzinfo=UTC)]


def test_of_many_topics_each_is_told_by_itself_where_it_ends_and_that_it_is_gone(topics: Topics) -> None:
    there, gone = topic_of(topics.create(2)), TopicName.parse("nobody-made-it")
    topics.fill(kafka_name(there), ["a", "b"], 1)
    with Cluster(topics.cluster().settings) as cluster:
        found = look(cluster, [gone, there])
    ends = found[there]
    assert isinstance(ends, TopicEnds)
    assert ends.ends == {0: 0, 1: 2}
    assert isinstance(found[gone], TopicNotFoundError)


def test_a_catalog_may_have_tables_of_others_in_the_same_namespace(topics: Topics, lake: Lake) -> None:
    topic = topics.create()
    topics.fill(topic, ["a"])
    lake.export(topic)
    name = lake.table(topic).topic
    open_catalog(lake.definition).create_table(("public__default", "not a/topic"), lake.table(topic).arrow_schema)
    assert tables_in(name.namespace, lake.definition) == [name]
    with Cluster(topics.cluster().settings) as cluster:
        assert drop_deleted(cluster, [NamespaceLake(name.namespace, lake.definition, {})]) == []
    assert tables_in(TopicName.parse("public/other/x").namespace, lake.definition) == []
