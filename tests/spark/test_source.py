"""Topics as tables: what Spark reads is what the protocols' own clients wrote."""

import hashlib
import random
import time
from datetime import UTC, datetime

import pika
import pulsar
import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan

from weir.client.kafka import produce as transactions
from weir.client.kafka.cluster import Partition
from weir.client.kafka.fetch import ends
from weir.client.kafka.produce import Sender
from weir.model.batch import Stamp
from weir.model.errors import ConfigError, DataLostError
from weir.spark.options import parse
from weir.spark.source.batch_reader import TopicReader
from weir.wire.kafka.record_batch import TRANSACTIONAL
from weir.wire.kafka.records import Record, build_batch

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


def reader(topics, topic: str, *filters: Filter, **options: str) -> TopicReader:
    given = {"kafka.bootstrap.servers": topics.servers, "subscribe": topic}
    found = TopicReader(parse(given | options, streaming=False))
    found.pushFilters(list(filters))
    return found


def spans(found: TopicReader) -> list[tuple[int, int, int]]:
    ranges = [one.value for one in found.partitions()]
    return [(one.partition.index, one.start, one.end) for one in ranges]


def test_columns_and_rows_are_those_of_sparks_kafka_source(topics, read) -> None:
    topic = topics.create()
    records = [
        Record(0, 1_700_000_000_123, b"k", b"v", [(b"h", b"1"), (b"h", None)]),
        Record(1, 1_700_000_000_456, None, b""),
        Record(2, 1_700_000_000_789, b"", None),
    ]
    topics.send(topic, build_batch(records))
    found = read(topic, includeHeaders="true")
    assert found.columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    assert read(topic).columns == found.columns[:-1]
    rows = [row.asDict(recursive=True) for row in found.orderBy("offset").collect()]
    assert [row["key"] for row in rows] == [b"k", None, b""]
    assert [row["value"] for row in rows] == [b"v", b"", None]
    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {(topic, 0, 0)}
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    times = [row[0] for row in found.orderBy("offset").selectExpr("unix_millis(timestamp)").collect()]
    assert times == [1_700_000_000_123, 1_700_000_000_456, 1_700_000_000_789]


def test_what_pulsars_and_kafkas_clients_wrote_is_read_whatever_the_compression(up, topics, read) -> None:
    topic = topics.create()
    wanted = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": topics.servers, "compression.type": codec, "linger.ms": 5})
        for at in range(50):
            wanted.append(f"{codec}-{at}")
            producer.produce(topic, wanted[-1], partition=0)
        assert producer.flush(30) == 0
    client = pulsar.Client(up.pulsar_url)
    sender = client.create_producer(
        f"{topic}-partition-0", batching_enabled=True, compression_type=pulsar.CompressionType.ZLib
    )
    for at in range(20):
        wanted.append(f"pulsar-{at}")
        sender.send_async(wanted[-1].encode(), lambda *_: None, partition_key="k")
    sender.flush()
    client.close()
    assert read.values(topic) == wanted


def test_filters_skip_reads_and_give_the_right_rows(topics, read) -> None:
    topic = topics.create(3)
    for partition in range(3):
        topics.fill(topic, [f"{partition}-{at}" for at in range(100)], partition)
    found = read(topic).where("partition = 1 and offset >= 10 and offset < 13")
    assert sorted(bytes(row.value) for row in found.collect()) == [b"1-10", b"1-11", b"1-12"]
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan
    wanted = (EqualTo(("partition",), 1), GreaterThanOrEqual(("offset",), 10), LessThan(("offset",), 13))
    assert spans(reader(topics, topic, *wanted)) == [(1, 10, 13)]


def test_a_session_without_push_down_reads_all_the_same(spark, topics, read) -> None:
    """Spark's default: a session of one's own needs no setting."""
    topic = topics.create()
    topics.fill(topic, ["a", "b", "c"])
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        assert read(topic).where("offset = 1").selectExpr("cast(value as string) v").collect()[0].v == "b"
    finally:
        spark.conf.set(name, "true")


def test_a_filter_on_the_timestamp_skips_what_is_older(topics, read) -> None:
    topic = topics.create()
    base = 1_700_000_000_000
    for at in range(4):  # times that do not grow: the third batch is the latest
        moments = [base + 1000 * (2, 0, 9, 1)[at] + step for step in range(10)]
        topics.fill(topic, [f"{at}-{step}" for step in range(10)], times=moments)
    moment = datetime.fromtimestamp((base + 5000) / 1000, UTC)
    assert spans(reader(topics, topic, GreaterThan(("timestamp",), moment))) == [(0, 20, 40)]
    found = read(topic).where(f"timestamp > timestamp_millis({base + 5000})")
    assert sorted(bytes(row.value) for row in found.collect()) == [f"2-{step}".encode() for step in range(10)]
    none = read(topic).where(f"timestamp > timestamp_millis({base + 50_000})")
    assert none.count() == 0


@pytest.mark.parametrize("year", [1, 1900, 1969])
def test_a_timestamp_before_1970_skips_nothing(topics, year: int) -> None:
    topic = topics.create()
    topics.fill(topic, ["a", "b"])
    moment = datetime(year, 12, 31, 23, 59, 59, 999_000, UTC)  # in milliseconds, -1 of 1969 is Kafka's "latest"
    assert spans(reader(topics, topic, GreaterThanOrEqual(("timestamp",), moment))) == [(0, 0, 2)]
    late = LessThan(("timestamp",), moment)
    assert spans(reader(topics, topic, late, orderedTimestamps="true")) == [(0, 0, 2)]


def test_a_latest_timestamp_ends_the_reading_where_the_query_says_that_times_grow(topics) -> None:
    topic = topics.create(2)
    base = 1_700_000_000_000
    for at in range(3):
        topics.fill(topic, [f"{at}-{step}" for step in range(10)], times=[base + 1000 * at + s for s in range(10)])
    early = LessThan(("timestamp",), datetime.fromtimestamp((base + 1005) / 1000, UTC))
    assert spans(reader(topics, topic, early)) == [(0, 0, 30)]  # times need not grow
    assert spans(reader(topics, topic, early, orderedTimestamps="true")) == [(0, 0, 15)]
    late = LessThan(("timestamp",), datetime.fromtimestamp((base + 5000) / 1000, UTC))
    assert spans(reader(topics, topic, late, orderedTimestamps="true")) == [(0, 0, 30)]


def test_a_large_partition_is_read_by_as_many_tasks_as_are_asked_for(topics, read) -> None:
    topic = topics.create()
    values = [str(at) for at in range(100)]
    topics.fill(topic, values)
    found = read(topic, minPartitions=7)
    assert found.rdd.getNumPartitions() == 7
    assert read.values(topic, minPartitions=7) == values
    assert spans(reader(topics, topic, maxRecordsPerPartition="60")) == [(0, 0, 50), (0, 50, 100)]


def test_a_read_begins_and_ends_where_it_is_told(topics, read) -> None:
    topic = topics.create(2)
    base = 1_700_000_000_000
    for partition in range(2):
        topics.fill(
            topic, [f"{partition}-{at}" for at in range(5)], partition, times=[base + at for at in range(5)]
        )
    starting = f'{{"{topic}": {{"0": 3, "1": -2}}}}'
    ending = f'{{"{topic}": {{"0": -1, "1": 2}}}}'
    assert read.values(topic, startingOffsets=starting, endingOffsets=ending) == ["0-3", "0-4", "1-0", "1-1"]
    span = {"startingTimestamp": base + 3, "endingTimestamp": base + 4}
    assert read.values(topic, **span) == ["0-3", "1-3"]
    by_time = f'{{"{topic}": {{"0": {base + 4}, "1": {base}}}}}'
    assert read.values(topic, startingOffsetsByTimestamp=by_time, endingTimestamp=base + 1) == ["1-0"]
    with pytest.raises(PySparkException, match="no message that late"):
        read(topic, startingTimestamp=base + 99).count()
    late = {"startingTimestamp": base + 99, "startingOffsetsByTimestampStrategy": "latest"}
    assert read.values(topic, **late) == []
    backwards = {"startingOffsets": f'{{"{topic}": {{"0": 3, "1": 3}}}}', "endingOffsets": ending}
    with pytest.raises(ConfigError, match=f"before startingOffsets: {topic}-1"):
        reader(topics, topic, **backwards).partitions()
    beyond = f'{{"{topic}": {{"0": 9, "1": -2}}}}'
    with pytest.raises(DataLostError, match=f"offsets 5 to 8 of {topic}-0 are not in the topic"):
        reader(topics, topic, startingOffsets=beyond).partitions()
    assert spans(reader(topics, topic, startingOffsets=beyond, failOnDataLoss="false")) == [(1, 0, 5)]
    with pytest.raises(PySparkException, match=f"does not name {topic}-1"):
        read(topic, startingOffsets=f'{{"{topic}": {{"0": 3}}}}').count()


def test_topics_by_pattern_and_by_assignment(spark, topics) -> None:
    for name in ("pattern-a", "pattern-b", "other-pattern-a"):
        topics.fill(topics.create(2, name), [name], 1)
    base = spark.read.format("weir").option("kafka.bootstrap.servers", topics.servers)
    rows = base.option("subscribePattern", "^pattern-.").load().select("topic").collect()
    assert sorted(row.topic for row in rows) == ["pattern-a", "pattern-b"]
    anywhere = TopicReader(
        parse({"kafka.bootstrap.servers": topics.servers, "subscribePattern": "pattern-a"}, streaming=False)
    )
    assert sorted(one.value.partition.topic for one in anywhere.partitions()) == ["other-pattern-a", "pattern-a"]
    assign = '{"pattern-a": [0], "pattern-b": [1]}'
    rows = (
        spark.read.format("weir").options(**{"kafka.bootstrap.servers": topics.servers, "assign": assign}).load()
    )
    assert [row.topic for row in rows.collect()] == ["pattern-b"]


def test_aborted_transactions_are_not_read_unless_asked_for(topics, read) -> None:
    topic = topics.create()
    part = Partition(topic, 0)
    with topics.cluster() as cluster:
        for value, commit in ((b"aborted", False), (b"committed", True)):
            producer = transactions.init_producer(cluster, topic)
            transactions.add_partitions(cluster, topic, producer, [part])
            sender = Sender(cluster, transactional_id=topic)
            stamp = Stamp(producer.id, producer.epoch, 0)
            sender.send({part: build_batch([Record(0, 1, None, value)], stamp=stamp, attributes=TRANSACTIONAL)})
            sender.flush()
            transactions.end(cluster, topic, producer, commit=commit)
        deadline = time.monotonic() + 30
        while ends(cluster, [part])[part] < 4:  # two messages and two markers, which may come a little later
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert read.values(topic) == ["committed"]
    assert read.values(topic, **{"kafka.isolation.level": "read_uncommitted"}) == ["aborted", "committed"]


def test_an_empty_topic_is_an_empty_table(topics, read) -> None:
    assert read(topics.create(2)).count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"includeHeaders": "yes"}, "includeHeaders"),
    ],
    ids=["unknown", "wrong"],
)
def test_a_wrong_option_is_an_error_that_says_what_to_write(topics, read, options, message) -> None:
    with pytest.raises(PySparkException, match=message):
        read("anything", **options).count()


def test_a_topic_that_does_not_exist_is_named(read) -> None:
    with pytest.raises(PySparkException, match="nowhere"):
        read("nowhere").count()


def test_a_trimmed_range_is_an_error_that_names_it_or_is_skipped(topics, read) -> None:
    topic = topics.create()
    for at in range(10):
        topics.fill(topic, [f"{at}-{step}" for step in range(10)])
    topics.trim(topic, 50)
    starting = f'{{"{topic}": {{"0": 5}}}}'
    with pytest.raises(DataLostError, match=f"offsets 5 to 49 of {topic}-0"):
        reader(topics, topic, startingOffsets=starting).partitions()
    with pytest.raises(PySparkException, match=f"offsets 5 to 49 of {topic}-0 .*failOnDataLoss"):
        read(topic, startingOffsets=starting).count()
    found = read.values(topic, startingOffsets=starting, failOnDataLoss="false")
    assert found == [f"{at}-{step}" for at in range(5, 10) for step in range(10)]


def test_what_is_trimmed_between_planning_and_reading_is_an_error_or_skipped(topics) -> None:
    topic = topics.create()
    for at in range(10):
        topics.fill(topic, [f"{at}-{step}" for step in range(10)])
    strict, lenient = reader(topics, topic), reader(topics, topic, failOnDataLoss="false")
    (planned,) = strict.partitions()
    topics.trim(topic, 70)
    with pytest.raises(DataLostError, match="offsets 0 to 69"):
        list(strict.read(planned))
    assert sum(batch.num_rows for batch in lenient.read(planned)) == 30


def test_rows_are_as_large_as_messages_of_amqp_may_be(topics, read) -> None:
    topic = topics.create()
    body = random.Random(1).randbytes(1 << 20) * 16
    host, _, port = topics.up.amqp.rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    channel = connection.channel()
    channel.confirm_delivery()
    for value in (body, b"small"):
        channel.basic_publish("", topic, value, pika.BasicProperties(delivery_mode=2), mandatory=True)
    connection.close()
    rows = read(topic).orderBy("offset").selectExpr("length(value) size", "sha2(value, 256) digest").collect()
    assert [(row.size, row.digest) for row in rows] == [
        (len(value), hashlib.sha256(value).hexdigest()) for value in (body, b"small")
    ]
