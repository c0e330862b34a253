"""Topics as streams: every message once, through restarts, growth, trimming, dead workers and dead brokers."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from weir.cli.subscriptions import subscriptions
from weir.client.kafka import groups
from weir.client.kafka.cluster import Partition
from weir.client.kafka.groups import committed
from weir.model.errors import DataLostError, NotAuthorisedError
from weir.spark.options import parse
from weir.spark.source.batch_reader import TopicReader, WeirSource
from weir.spark.source.streaming import TopicStreamReader
from weir.testing.processes.up import UpProcess

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


class Stream:
    """A query that collects rows by batch; it may be stopped and started again on its checkpoint."""

    def __init__(
        self, spark: SparkSession, servers: str, folder: Path, topic: str | None, **options: object
    ) -> None:
        self._spark = spark
        self._folder = folder
        defaults = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"}
        self._options = defaults | ({"subscribe": topic} if topic else {}) | options
        #: Rows of each batch by its number: a batch that is done again replaces itself.
        self.batches: dict[int, list[str]] = {}
        self.query: StreamingQuery | None = None
        self.name: str | None = None

    def start(self, *, available_now: bool = False, **more: object) -> "Stream":
        reader = self._spark.readStream.format("weir").options(**(self._options | more))
        writer = reader.load().writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        writer = writer.queryName(self.name) if self.name else writer
        self.query = (writer.trigger(availableNow=True) if available_now else writer).start()
        return self

    def drain(self, **more: object) -> list[str]:
        """Read what is there, and stop."""
        self.start(available_now=True, **more)
        assert self.query is not None
        assert self.query.awaitTermination(240)
        return self.values

    def caught_up(self) -> list[str]:
        assert self.query is not None
        self.query.processAllAvailable()
        return self.values

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()

    def _take(self, batch: DataFrame, number: int) -> None:
        self.batches[number] = [row.v for row in batch.selectExpr("cast(value as string) v").collect()]

    @property
    def values(self) -> list[str]:
        return sorted(value for number in sorted(self.batches) for value in self.batches[number])


@pytest.fixture
def stream(spark, topics, tmp_path) -> Iterator:
    made: list[Stream] = []

    def make(topic: str | None = None, **options: object) -> Stream:
        made.append(Stream(spark, topics.servers, tmp_path / uuid4().hex, topic, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{at:03}" for at in range(count)]


def stream_reader(topics, topic: str, **options: str) -> TopicStreamReader:
    given = {"kafka.bootstrap.servers": topics.servers, "subscribe": topic, "startingOffsets": "earliest"}
    return TopicStreamReader(parse(given | options, streaming=True))


def at(topics, topic: str, offset: int) -> dict[str, dict[str, Any]]:
    """This offset of the only partition of a topic, as a checkpoint has it."""
    with topics.cluster() as cluster:
        return {topic: {"0": offset, "id": cluster.topic_id(topic)}}


def shown_of(topics, topic: str) -> dict[str, Any]:
    """What `weir subscriptions` shows."""
    shown = CliRunner().invoke(subscriptions, ["list", topic, "--json", "--url", topics.up.http_url])
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def test_a_restarted_query_reads_every_message_once_and_keeps_its_position_as_a_subscription(
    topics, stream
) -> None:
    topic = topics.create(2)
    topics.fill(topic, numbered("a", 10), 0)
    query = stream(topic, subscription="report")
    assert query.drain() == numbered("a", 10)
    topics.fill(topic, numbered("b", 10), 1)
    topics.fill(topic, numbered("c", 10), 0)
    assert query.drain() == numbered("a", 10) + numbered("b", 10) + numbered("c", 10)
    with topics.cluster() as cluster:
        wanted = {Partition(topic, 0): 20, Partition(topic, 1): 10}
        assert committed(cluster, "report", wanted) == wanted
    topics.fill(topic, numbered("d", 7), 1)
    report = shown_of(topics, topic)["report"]
    assert report["msgBacklog"] == 7
    assert (report["query"]["batch"], report["query"]["rows"], report["query"]["lost"]) == (2, 20, 0)
    assert report["query"]["rowsPerSecond"] > 0
    assert report["subscriptionProperties"] == {"weir.retains": "true"}


def test_a_query_without_a_subscription_of_its_own_is_one_under_its_name_or_id(topics, stream) -> None:
    topic = topics.create(2)
    topics.fill(topic, numbered("a", 10), 0)
    query = stream(topic)
    query.name = "daily"
    query.drain()
    topics.fill(topic, numbered("b", 5), 1)
    query.drain()  # a restart goes on counting
    found = shown_of(topics, topic)["spark-daily"]
    assert (found["msgBacklog"], found["query"]["batch"], found["query"]["rows"]) == (0, 2, 5)
    assert found["subscriptionProperties"] == {"weir.retains": "true"}
    other = stream(topic, groupIdPrefix="jobs").start()
    other.caught_up()
    assert other.query is not None
    unnamed = f"jobs-{other.query.id}"  # which nobody would find again, so it holds nothing back
    assert set(shown_of(topics, topic)) == {"spark-daily", unnamed}
    assert shown_of(topics, topic)[unnamed]["subscriptionProperties"] == {"weir.retains": "false"}
    assert stream(topic, subscription="").drain() == numbered("a", 10) + numbered("b", 5)
    assert len(shown_of(topics, topic)) == 2


def test_what_a_task_finds_lost_is_counted_with_its_query(topics, stream) -> None:
    topic = topics.create(2)
    for at in range(4):
        for partition in range(2):
            topics.fill(topic, numbered(f"{partition}{at}", 10), partition)
    reader = stream_reader(topics, topic, subscription="tasks", failOnDataLoss="false")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    pieces = reader.partitions(reader.initialOffset(), end)
    for partition in range(2):
        topics.trim(topic, 10 + 10 * partition, partition)
    for piece in (*pieces, pieces[0]):  # the first is done again
        assert sum(batch.num_rows for batch in reader.read(piece)) == 30 - 10 * piece.value.partition.index
    assert shown_of(topics, topic)["tasks"]["query"]["lost"] == 20  # the larger one
    reader.commit(end)
    reader.stop()
    assert shown_of(topics, topic)["tasks"]["query"]["lost"] == 30


@pytest.mark.parametrize("said", [{}, {"retain": "true"}], ids=["by its name", "as asked"])
def test_a_query_that_retains_holds_the_topic_from_its_beginning_on(topics, said) -> None:
    topic = topics.create()
    topics.fill(topic, numbered("a", 5))
    reader = stream_reader(topics, topic, subscription="keeper", **said)
    assert reader.initialOffset() == at(topics, topic, 0)
    reader.stop()
    kept = shown_of(topics, topic)["keeper"]
    assert (kept["subscriptionProperties"], kept["msgBacklog"]) == ({"weir.retains": "true"}, 5)


def test_a_running_query_sees_new_messages_and_new_partitions(topics, stream) -> None:
    topic = topics.create()
    topics.fill(topic, numbered("a", 5))
    query = stream(topic).start()
    assert query.caught_up() == numbered("a", 5)
    topics.grow(topic, 3)
    topics.fill(topic, numbered("b", 5), 2)
    topics.fill(topic, numbered("c", 5), 0)
    assert query.caught_up() == numbered("a", 5) + numbered("b", 5) + numbered("c", 5)


def test_a_stream_by_pattern_sees_new_topics_and_begins_with_what_is_new(topics, stream) -> None:
    prefix = f"flow-{uuid4().hex}"
    topics.fill(topics.create(name=f"{prefix}-1"), numbered("old", 5))
    query = stream(subscribePattern=f"{prefix}-.*", startingOffsets="latest").start()
    assert query.caught_up() == []
    topics.fill(topics.create(name=f"{prefix}-2"), numbered("new", 5))
    assert query.caught_up() == numbered("new", 5)


def test_a_trigger_reads_no_more_than_it_may(topics, stream) -> None:
    topic = topics.create(2)
    topics.fill(topic, numbered("a", 40), 0)
    topics.fill(topic, numbered("b", 20), 1)
    query = stream(topic, maxOffsetsPerTrigger=20, minPartitions=3)
    assert query.drain() == numbered("a", 40) + numbered("b", 20)
    assert 3 <= len(query.batches) <= 5
    assert all(len(batch) <= 21 for batch in query.batches.values())


def test_a_trigger_waits_for_as_many_as_it_wants_but_not_for_ever(topics) -> None:
    topic = topics.create()
    topics.fill(topic, numbered("a", 5))
    patient = stream_reader(topics, topic, minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    limit = patient.getDefaultReadLimit()
    first = patient.latestOffset(patient.initialOffset(), limit)
    assert first == at(topics, topic, 5)  # the first is not held back, as in Spark's Kafka source
    topics.fill(topic, numbered("b", 5))
    assert patient.latestOffset(first, limit) == first
    topics.fill(topic, numbered("c", 5))
    assert patient.latestOffset(first, limit) == at(topics, topic, 15)
    hasty = stream_reader(topics, topic, minOffsetsPerTrigger="100", maxTriggerDelay="0ms")
    for _ in range(2):
        assert hasty.latestOffset(first, limit) == at(topics, topic, 15)
    for one in (patient, hasty):
        one.stop()


def test_a_position_is_told_while_the_next_batch_is_planned(topics, monkeypatch) -> None:
    topic = topics.create()
    topics.fill(topic, numbered("a", 5))
    began, allowed, tell = Event(), Event(), groups.commit

    def slowly(*args: object) -> None:
        began.set()
        assert allowed.wait(120), "the reader waits for it"
        tell(*args)

    monkeypatch.setattr(groups, "commit", slowly)
    reader = stream_reader(topics, topic, subscription="later")
    start, limit = {topic: {"0": 0}}, reader.getDefaultReadLimit()
    end = reader.latestOffset(start, limit)
    reader.commit(end)
    assert began.wait(120)
    topics.fill(topic, numbered("b", 2))
    assert reader.latestOffset(end, limit) == at(topics, topic, 7)
    (piece,) = reader.partitions(end, at(topics, topic, 7))
    assert (piece.value.start, piece.value.end) == (5, 7)
    allowed.set()
    reader.stop()
    assert shown_of(topics, topic)["later"]["msgBacklog"] == 2


def test_a_position_that_cannot_be_kept_is_a_warning_said_once(topics, caplog, monkeypatch) -> None:
    topic = topics.create()
    topics.fill(topic, numbered("a", 5))

    def refuse(*args: object) -> None:
        raise NotAuthorisedError("not you")

    monkeypatch.setattr(groups, "commit", refuse)
    reader = stream_reader(topics, topic, subscription="report")
    end = at(topics, topic, 5)
    for _ in range(3):
        assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    reader.stop()
    assert len([record for record in caplog.records if "was not kept" in record.getMessage()]) == 1


def test_what_was_trimmed_while_a_query_was_down_is_an_error_that_names_it_or_is_skipped(topics, stream) -> None:
    topic = topics.create()
    topics.fill(topic, numbered("a", 10))
    query = stream(topic, subscription="lossy")
    query.drain()
    for at in range(4):
        topics.fill(topic, numbered(f"b{at}", 10))
    topics.trim(topic, 30)
    with pytest.raises(PySparkException, match=f"offsets 10 to 29 of {topic}-0"):
        query.drain()
    assert query.drain(failOnDataLoss="false") == numbered("a", 10) + numbered("b2", 10) + numbered("b3", 10)
    assert shown_of(topics, topic)["lossy"]["query"]["lost"] == 20


def test_a_topic_that_was_made_anew_is_an_error_or_is_read_from_its_beginning(topics) -> None:
    topic = topics.create()
    topics.fill(topic, numbered("a", 10))
    position = {topic: {"0": 10}}
    topics.delete(topic)
    topics.create(name=topic)
    topics.fill(topic, numbered("b", 4))
    strict = stream_reader(topics, topic)
    with pytest.raises(Exception, match="made anew"):
        strict.latestOffset(position, strict.getDefaultReadLimit())
    lenient = stream_reader(topics, topic, failOnDataLoss="false")
    end = lenient.latestOffset(position, lenient.getDefaultReadLimit())
    (found,) = lenient.partitions(position, end)
    assert (found.value.start, found.value.end) == (0, 4)
    for one in (strict, lenient):
        one.stop()


def recreate(topics, topic: str, values: list[str], partitions: int = 1) -> None:
    topics.delete(topic)
    topics.create(partitions, name=topic)
    topics.fill(topic, values)


def test_a_topic_created_again_is_an_error_although_it_is_longer_than_the_position(topics, stream) -> None:
    topic = topics.create(2)
    topics.fill(topic, numbered("a", 50))
    query = stream(topic)
    assert query.drain() == numbered("a", 50)
    recreate(topics, topic, numbered("b", 80))
    with pytest.raises(
        PySparkException, match=f"topic {topic} was deleted and created again.*failOnDataLoss=false"
    ):
        query.drain()
    assert query.values == numbered("a", 50)
    # The way out that the error names: all of the new topic, once.
    assert query.drain(failOnDataLoss="false") == numbered("a", 50) + numbered("b", 80)
    topics.fill(topic, numbered("c", 5))
    assert query.drain() == numbered("a", 50) + numbered("b", 80) + numbered("c", 5)


def test_a_topic_created_again_while_its_query_runs_is_an_error_that_ends_it(topics, stream) -> None:
    topic = topics.create()
    topics.fill(topic, numbered("a", 10))
    query = stream(topic).start()
    assert query.caught_up() == numbered("a", 10)
    recreate(topics, topic, numbered("b", 20))
    with pytest.raises(PySparkException, match=r"deleted and created again|there is no such topic"):
        query.query.awaitTermination(240)
    assert query.values == numbered("a", 10)


def test_a_planned_batch_of_a_topic_created_again_reads_nothing_and_the_next_one_all(topics) -> None:
    """Spark plans a batch, dies, and repeats it after a restart."""
    topic = topics.create()
    topics.fill(topic, numbered("a", 10))
    before = stream_reader(topics, topic)
    start = before.initialOffset()
    end = before.latestOffset(start, before.getDefaultReadLimit())
    recreate(topics, topic, numbered("b", 30))
    strict = stream_reader(topics, topic)
    with pytest.raises(DataLostError, match="deleted and created again"):
        strict.partitions(start, end)
    lenient = stream_reader(topics, topic, failOnDataLoss="false", maxOffsetsPerTrigger="20")
    assert not lenient.partitions(start, end)
    following = lenient.latestOffset(end, lenient.getDefaultReadLimit())
    (found,) = lenient.partitions(end, following)
    assert (found.value.start, found.value.end) == (0, 20)
    for one in (before, strict, lenient):
        one.stop()


def test_a_task_does_not_read_a_topic_that_was_created_again_after_it_was_planned(topics) -> None:
    topic = topics.create()
    topics.fill(topic, numbered("a", 10))
    query = stream_reader(topics, topic)
    start = query.initialOffset()
    (piece,) = query.partitions(start, query.latestOffset(start, query.getDefaultReadLimit()))
    given = {"kafka.bootstrap.servers": topics.servers, "path": topic}
    table = TopicReader(parse(given, streaming=False))
    (part,) = table.partitions()
    assert sum(len(batch) for batch in query.read(piece)) == sum(len(batch) for batch in table.read(part)) == 10
    recreate(topics, topic, numbered("b", 30))
    for reader, one in ((query, piece), (table, part)):
        with pytest.raises(DataLostError, match="while it was read"):
            list(reader.read(one))
    query.stop()


def test_a_checkpoint_without_ids_goes_on_and_gets_them(topics) -> None:
    topic = topics.create()
    topics.fill(topic, numbered("a", 10))
    query = stream_reader(topics, topic)
    old = {topic: {"0": 4}}
    end = query.latestOffset(old, query.getDefaultReadLimit())
    (found,) = query.partitions(old, end)
    assert (found.value.start, found.value.end) == (4, 10)
    assert end[topic]["0"] == 10
    assert end[topic]["id"]
    idle = {topic: {"0": 10}}
    assert query.latestOffset(idle, query.getDefaultReadLimit()) == end
    query.stop()


class DyingSource(WeirSource):
    """Its first worker is killed after the first rows."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def __init__(self, options) -> None:
        super().__init__({name: value for name, value in options.items() if name != "marker"})
        self.marker = options["marker"]

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        found = super().streamReader(schema)
        marker = self.marker

        class Dying(TopicStreamReader):
            def read(self, partition: InputPartition):
                for batch in super().read(partition):
                    yield batch.slice(0, 1)
                    if not os.path.exists(marker):
                        Path(marker).touch()
                        os.kill(os.getpid(), signal.SIGKILL)
                    yield batch.slice(1)

        return Dying(found._options)


def test_a_killed_python_worker_loses_and_doubles_nothing(spark, topics, tmp_path) -> None:
    topic = topics.create()
    topics.fill(topic, numbered("a", 50))
    spark.dataSource.register(DyingSource)
    marker = tmp_path / "died"
    query = Stream(spark, topics.servers, tmp_path, topic, marker=str(marker))
    reader = spark.readStream.format("dying").options(**query._options)
    writer = reader.load().writeStream.foreachBatch(query._take).option("checkpointLocation", str(tmp_path / "c"))
    assert writer.trigger(availableNow=True).start().awaitTermination(240)
    assert marker.exists()
    assert query.values == numbered("a", 50)


def test_a_query_goes_on_when_the_broker_is_killed_and_comes_back(spark, topics, tmp_path) -> None:
    up = UpProcess(tmp_path).start()
    try:
        other = type(topics)(up)
        topic = other.create()
        other.fill(topic, numbered("a", 10))
        query = Stream(spark, up.kafka, tmp_path / "query", topic).start()
        assert query.caught_up() == numbered("a", 10)
        up.kill()
        up.start()
        other.fill(topic, numbered("b", 10))
        assert query.caught_up() == numbered("a", 10) + numbered("b", 10)
        query.stop()
    finally:
        up.close()
