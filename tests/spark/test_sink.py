"""Rows written to topics: all or nothing in batch, each epoch once in streams."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from weir.client.kafka.cluster import open_transactions
from weir.wire.kafka.record_batch import Compression

from .conftest import Reads, Topics

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


def test_rows_are_written_with_all_that_their_columns_say(
    spark: SparkSession, topics: Topics, read: Reads
) -> None:
    first, second = topics.create(2), topics.create(1)
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    rows = [
        (b"k", b"v", first, 1, moment, [Row(key="a", value=b"1"), Row(key="b", value=None)]),
        (None, None, second, None, None, None),
        (b"", b"", second, 0, moment, []),
    ]
    schema = (
        "key binary, value binary, topic string, partition int, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>"
    )
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    frame.write.format("weir").option("kafka.bootstrap.servers", topics.servers).mode("append").save()

    (found,) = read(first, includeHeaders="true").collect()
    assert (bytes(found.key), bytes(found.value), found.partition) == (b"k", b"v", 1)
    assert found.timestamp.astimezone(UTC) == moment.replace(tzinfo=UTC)
    assert [(header.key, header.value) for header in found.headers] == [("a", b"1"), ("b", None)]
    others = read(second).orderBy("offset").collect()
    assert [(row.key, row.value) for row in others] == [(None, None), (b"", b"")]


def test_rows_that_are_to_be_seen_later_are_seen_then_and_once(
    spark: SparkSession, topics: Topics, read: Reads
) -> None:
    topic = topics.create(1)
    moment = datetime.now(UTC) + timedelta(seconds=10)
    rows = [("now", None), ("late", moment), ("long ago", datetime(1960, 1, 1, tzinfo=UTC)), ("now, too", None)]
    frame = spark.createDataFrame(rows, "value string, deliverAt timestamp").coalesce(1)
    frame.write.format("weir").options(**{"kafka.bootstrap.servers": topics.servers, "topic": topic}).mode(
        "append"
    ).save()
    deadline = monotonic() + 240
    while len(found := read.values(topic)) < 4:
        assert monotonic() < deadline, found
    assert datetime.now(UTC) >= moment
    assert found[:2] == ["now", "now, too"]
    assert sorted(found[2:]) == ["late", "long ago"]


@pytest.mark.parametrize("compression", [one.name.lower() for one in Compression])
def test_rows_are_compressed_as_asked(spark: SparkSession, topics: Topics, read: Reads, compression: str) -> None:
    topic = topics.create(3)
    frame = spark.range(0, 2000, 1, 2).selectExpr("cast(id as string) key", "repeat(cast(id as string), 20) value")
    options = {"kafka.bootstrap.servers": topics.servers, "topic": topic, "kafka.compression.type": compression}
    frame.write.format("weir").options(**options).mode("append").save()
    assert sorted(read.values(topic)) == sorted(str(number) * 20 for number in range(2000))


def test_a_batch_write_that_fails_leaves_nothing(spark: SparkSession, topics: Topics, read: Reads) -> None:
    topic = topics.create(1)
    frame = spark.range(0, 1000, 1, 2).selectExpr("cast(if(id = 999, raise_error('no more'), id) as string) value")
    options = {"kafka.bootstrap.servers": topics.servers, "topic": topic, "kafka.transaction.timeout.ms": "5000"}
    with pytest.raises(PySparkException):
        frame.write.format("weir").options(**options).mode("append").save()
    assert read.values(topic) == []
    with topics.cluster() as cluster:
        # A task that was slow to be killed may have written still; what it left ends by itself.
        deadline = monotonic() + 120
        while open_transactions(cluster, "weir-sink/batch-"):
            assert monotonic() < deadline
            sleep(0.1)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("1 as value", "cast it to binary or string"),
        ("'x' as valu", "there is no column value"),
        ("'x' as value, 'y' as keys", "did you mean key"),
        ("'x' as value, array(1) as headers", "array<struct<key:string,value:binary>>"),
    ],
)
def test_columns_that_cannot_be_written_are_named(
    spark: SparkSession, topics: Topics, columns: str, said: str
) -> None:
    frame = spark.sql(f"select {columns}")
    with pytest.raises(PySparkException, match=said.replace("<", "[<]")):
        frame.write.format("weir").options(**{"kafka.bootstrap.servers": topics.servers, "topic": "x"}).mode(
            "append"
        ).save()


def test_what_was_read_can_be_written_as_it_is(topics: Topics, read: Reads) -> None:
    source, target = topics.create(), topics.create()
    topics.fill(source, ["a", "b"])
    options = {"kafka.bootstrap.servers": topics.servers, "topic": target}
    read(source, includeHeaders="true").write.format("weir").options(**options).mode("append").save()
    assert read.values(target) == ["a", "b"]


def test_an_epoch_that_spark_writes_again_is_written_once(
    spark: SparkSession, topics: Topics, read: Reads, tmp_path: Path
) -> None:
    """The driver dies between the topic's commit and Spark's checkpoint: its commit log lacks the epoch."""
    source, target = topics.create(2), topics.create(2)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        frame = (
            spark.readStream.format("weir")
            .options(**{"kafka.bootstrap.servers": topics.servers, "startingOffsets": "earliest"})
            .load(source)
        )
        query = (
            frame.select("key", "value")
            .writeStream.format("weir")
            .options(**{"kafka.bootstrap.servers": topics.servers, "topic": target})
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)

    topics.fill(source, ["a", "b"], 0)
    topics.fill(source, ["c"], 1)
    run()
    assert sorted(read.values(target)) == ["a", "b", "c"]

    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    topics.fill(source, ["d"], 1)
    run()
    assert sorted(read.values(target)) == ["a", "b", "c", "d"]
    with topics.cluster() as cluster:
        assert open_transactions(cluster, "weir-sink/spark-") == []

    shutil.rmtree(checkpoint)  # another query now, which knows of no epoch
    run()
    assert sorted(read.values(target)) == ["a", "a", "b", "b", "c", "c", "d", "d"]


@pytest.mark.parametrize("way", ["format", "foreachBatch"])
def test_a_new_checkpoint_with_the_same_sink_id_is_refused_and_may_take_the_sink_over(
    spark: SparkSession, topics: Topics, read: Reads, tmp_path: Path, way: str
) -> None:
    """Epochs of the new checkpoint begin at 0 again: without the refusal their rows are dropped as duplicates."""
    source, target = topics.create(), topics.create()
    options = {"kafka.bootstrap.servers": topics.servers, "topic": target, "sinkId": f"fixed-{way}"}

    def run(checkpoint: str, **more: str) -> str:
        """What the sink wrote of the source from its start on; answers with the query's id."""
        sink = options | more

        def write(batch: DataFrame, epoch: int) -> None:
            batch.write.format("weir").options(**sink, sinkEpoch=str(epoch)).mode("append").save()

        frame = spark.readStream.format("weir").option("kafka.bootstrap.servers", topics.servers)
        rows = frame.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 1).load(source)
        writer = rows.select("key", "value").writeStream
        writer = writer.foreachBatch(write) if way == "foreachBatch" else writer.format("weir").options(**sink)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        return query.id

    topics.fill(source, ["a", "b"])
    first = run("old")
    assert read.values(target) == ["a", "b"]
    with pytest.raises(PySparkException) as refused:
        run("new")
    said = str(refused.value)
    assert f"has epoch 1 of query {first}" in said
    assert "start the query with the checkpoint that has written it, or give it another sinkId" in said
    assert f"sinkTakeOver={first}" in said
    assert read.values(target) == ["a", "b"]
    topics.fill(source, ["c"])
    run("old")
    assert read.values(target) == ["a", "b", "c"]
    for _ in range(2):  # the option may stay when it has done its work
        run("new", sinkTakeOver=first)
        assert read.values(target) == ["a", "b", "c", "a", "b", "c"]
    topics.fill(source, ["d"])
    with pytest.raises(PySparkException, match="sinkTakeOver="):
        run("old")


def test_an_older_copy_of_a_checkpoint_is_refused(
    spark: SparkSession, topics: Topics, read: Reads, tmp_path: Path
) -> None:
    """Its epochs have numbers that the sink has written, and offsets of their own."""
    source, target = topics.create(), topics.create()

    def run() -> None:
        frame = spark.readStream.format("weir").option("kafka.bootstrap.servers", topics.servers)
        rows = frame.option("startingOffsets", "earliest").load(source).select("key", "value")
        writer = rows.writeStream.format("weir").option("kafka.bootstrap.servers", topics.servers)
        writer = writer.option("topic", target).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(240)

    topics.fill(source, ["a"])
    run()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    for value in ("b", "c"):
        topics.fill(source, [value])
        run()
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "copy", tmp_path / "checkpoint")
    topics.fill(source, ["d"])
    with pytest.raises(PySparkException, match="has epoch 2, and the query's checkpoint is at epoch 1"):
        run()
    assert read.values(target) == ["a", "b", "c"]
