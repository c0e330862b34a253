"""Topics as Iceberg tables: what is exported, with which columns, and who reads it."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
import pyarrow.parquet as pq
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String

from weir.client.admin import ask_v2
from weir.client.kafka import groups
from weir.client.kafka.cluster import Partition
from weir.client.kafka.fetch import ends
from weir.client.schemas import topic_of
from weir.model.errors import LakeConflictError, WeirError
from weir.spark.lake.catalog import namespace_lake, turn_off
from weir.spark.lake.export import Exporter, LocalJobs, SparkJobs
from weir.spark.lake.table import OFFSETS, RANGES
from weir.spark.lake.topics import SUBSCRIPTION, hold_one, keep
from weir.spark.tables.topic_tables import Tables

from .conftest import Topics
from .lake_kit import Lake
from .sql_session import Sql, make_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

DAY_MS = 86_400_000
START_MS = 1_700_000_000_000


@pytest.fixture
def lake(topics: Topics, tmp_path: Path) -> Lake:
    """Written by this process: what is written is the same."""
    return Lake(topics, tmp_path, LocalJobs())


@pytest.fixture
def spark_lake(topics: Topics, tmp_path: Path, spark: "SparkSession") -> Lake:
    return Lake(topics, tmp_path, SparkJobs(spark))


def test_sparks_tasks_write_every_offset_once_by_day_and_in_order_and_one_commit_says_which(
    topics: Topics, spark_lake: Lake
) -> None:
    topic = topics.create(2)
    times = [START_MS + (at % 2) * DAY_MS for at in range(10)]
    topics.fill(topic, [f"a{at}" for at in range(10)], 0, times=times)
    topics.fill(topic, ["b0", "b1"], 1)
    done = spark_lake.export(topic)
    assert done is not None
    assert (done.rows, done.lost) == (12, 0)
    topics.fill(topic, ["b2"], 1)
    assert spark_lake.export(topic).rows == 1  # type: ignore[union-attr]
    assert spark_lake.export(topic) is None

    assert spark_lake.places(topic) == [*((0, at) for at in range(10)), (1, 0), (1, 1), (1, 2)]
    table = spark_lake.table(topic).table
    summaries = [one.summary.additional_properties for one in table.metadata.snapshots]  # type: ignore[union-attr]
    assert [json.loads(one[RANGES]) for one in summaries] == [{"0": [0, 10], "1": [0, 2]}, {"1": [2, 3]}]
    assert json.loads(summaries[-1][OFFSETS]) == {"0": 10, "1": 3}
    files = [task.file for task in table.scan().plan_files()]
    assert sorted({file.partition[0] for file in files}) == [START_MS // DAY_MS, START_MS // DAY_MS + 1]
    for file in files:
        offsets = pq.read_table(file.file_path.removeprefix("file://")).column("offset").to_pylist()
        assert offsets == sorted(offsets)


def test_where_there_is_no_schema_the_bytes_are_kept_with_headers_time_and_the_producers_protocol(
    up, topics: Topics, lake: Lake
) -> None:
    topic = topics.create()
    topics.fill(topic, ["kafka"])
    client = pulsar.Client(up.pulsar_url)
    try:
        sender = client.create_producer(f"{topic}-partition-0")
        sender.send(b"pulsar", properties={"h": "1"}, partition_key="k", event_timestamp=START_MS)
    finally:
        client.close()
    lake.export(topic)
    first, second = lake.rows(topic)
    assert (first["key"], first["value"], first["protocol"]) == (b"kafka", b"kafka", "kafka")
    assert (second["key"], second["value"], second["protocol"]) == (b"k", b"pulsar", "pulsar")
    assert second["headers"] == [{"key": "h", "value": b"1"}]
    assert second["timestamp"] == datetime.fromtimestamp(START_MS / 1000, UTC)


class Order(Record):  # type: ignore[misc]
    product = String(required=True)
    amount = Integer(required=True)


class LaterOrder(Record):  # type: ignore[misc]
    product = String(required=True)
    amount = Integer(required=True)
    note = String(required_default=True)


LaterOrder._avro_name = "Order"


def test_values_have_the_schemas_columns_new_fields_are_added_and_what_does_not_fit_keeps_its_bytes(
    up, topics: Topics, lake: Lake
) -> None:
    topic = topics.create()
    client = pulsar.Client(up.pulsar_url)
    try:
        first = client.create_producer(f"{topic}-partition-0", schema=AvroSchema(Order))
        first.send(Order(product="pear", amount=3))
        lake.export(topic)
        assert lake.rows(topic)[0]["value"] == {"product": "pear", "amount": 3}
        topics.fill(topic, ["no record"])
        second = client.create_producer(f"{topic}-partition-0", schema=AvroSchema(LaterOrder))
        second.send(LaterOrder(product="plum", amount=4, note="ripe"))
        lake.export(topic)
    finally:
        client.close()
    rows = lake.rows(topic)
    assert [row["value"] for row in rows] == [
        {"product": "pear", "amount": 3, "note": None},
        None,
        {"product": "plum", "amount": 4, "note": "ripe"},
    ]
    assert [row["corrupt"] for row in rows] == [None, b"no record", None]


def test_the_bytes_that_were_sent_are_one_column_whether_the_topic_has_a_schema_or_not(
    topics: Topics, lake: Lake
) -> None:
    topic = topics.create()
    schema = f"schemas/public/default/{topic}/schema"
    topics.fill(topic, ["raw"])
    lake.export(topic)
    definition = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    body = {"type": "JSON", "schema": json.dumps(definition), "properties": {}}
    ask_v2(lake.place.access, "POST", schema, body)
    topics.fill(topic, ['{"n": 7}'])
    lake.export(topic)
    rows = lake.rows(topic)
    assert [row["value"] for row in rows] == [None, {"n": 7}]
    assert [row["raw_value"] for row in rows] == [b"raw", b'{"n": 7}']
    ask_v2(lake.place.access, "DELETE", schema)
    topics.fill(topic, ["again"])
    lake.export(topic)
    rows = lake.rows(topic)
    assert [row["value"] for row in rows] == [b"raw", b'{"n": 7}', b"again"]
    typed = [next(row[name] for name in row if name.startswith("value_until")) for row in rows]
    assert typed == [None, {"n": 7}, None]
    ask_v2(lake.place.access, "POST", schema, {"type": "STRING", "schema": "", "properties": {}})
    topics.fill(topic, ["text"])
    lake.export(topic)
    rows = lake.rows(topic)
    assert [row["raw_value"] for row in rows] == [b"raw", b'{"n": 7}', b"again", b"text"]
    assert [row["value"] for row in rows] == [None, None, None, "text"]


def test_what_is_not_exported_stays_in_the_topic_and_the_lag_is_that_of_a_subscription(
    topics: Topics, lake: Lake
) -> None:
    topic = topics.create()
    topics.fill(topic, ["a", "b"])
    lake.export(topic)
    with topics.cluster() as cluster:
        place = Partition(topic, 0)
        assert groups.committed(cluster, SUBSCRIPTION, [place]) == ends(cluster, [place]) == {place: 2}
    topics.fill(topic, ["c"])
    assert [
        (one.exported, one.end, one.lag)
        for one in lake.exporter.standing(lake.table(topic).topic, lake.table(topic))
    ] == [(2, 3, 1)]


def test_of_two_exports_of_the_same_offsets_one_adds_them_and_the_other_nothing(
    topics: Topics, lake: Lake, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.fill(topic, ["a", "b"])
    lake.export(topic)
    topics.fill(topic, ["c"])

    class Late(LocalJobs):
        def run(self, job, ranges, done):  # type: ignore[no-untyped-def]
            found = super().run(job, ranges, done)
            lake.export(topic)  # another process is faster
            return found

    late = Lake(topics, tmp_path, Late())
    with pytest.raises(LakeConflictError):
        late.export(topic)
    assert lake.places(topic) == [(0, 0), (0, 1), (0, 2)]
    files = list(Path(tmp_path, "lake").rglob("*.parquet"))
    assert len(files) == 2, "what was not added is gone"


def test_a_topic_that_was_deleted_and_made_again_begins_a_new_table(topics: Topics, lake: Lake) -> None:
    topic = topics.create()
    topics.fill(topic, ["old"] * 3)
    lake.export(topic)
    topics.delete(topic)
    topics.create(name=topic)
    topics.fill(topic, ["new"])
    lake.export(topic)
    assert [row["value"] for row in lake.rows(topic)] == [b"new"]


@pytest.mark.parametrize("step", ["planned", "written", "committed"])
def test_a_topic_that_is_created_again_while_it_is_exported_is_in_its_own_table_whole(
    topics: Topics, lake: Lake, step: str
) -> None:
    topic = topics.create()
    topics.fill(topic, ["a 0", "a 1"])
    lake.export(topic)
    topics.fill(topic, ["a 2", "a 3"])
    values = [f"b {at}" for at in range(6)]

    def recreate(at: str) -> None:
        if at == step:
            topics.delete(topic)
            topics.create(name=topic)
            topics.fill(topic, values)

    unlucky = Exporter(lake.place, LocalJobs(), reached=recreate)
    with pytest.raises(WeirError, match="was deleted and created again"):
        unlucky.export(topic_of(topic), lake.definition)
    with topics.cluster() as cluster:
        # Retention may not trim the new topic up to where the table of the old one is.
        assert groups.committed(cluster, SUBSCRIPTION, [Partition(topic, 0)]).get(Partition(topic, 0), 0) == 0
    lake.export(topic)
    assert [row["value"].decode() for row in lake.rows(topic)] == values


def test_the_position_of_a_deleted_topic_holds_back_nothing_of_the_next_one(topics: Topics, lake: Lake) -> None:
    """As an export leaves it that is killed at the moment at which the topic is created again."""
    topic = topics.create()
    topics.fill(topic, ["a", "b"])
    part = Partition(topic, 0)
    with topics.cluster() as cluster:
        keep(cluster, {part: 2}, {topic: "0" * 31 + "1"})
        hold_one(cluster, topic_of(topic))
        assert groups.committed(cluster, SUBSCRIPTION, [part]) == {part: 0}
        keep(cluster, {part: 1}, {topic: cluster.topic_id(topic)})
        hold_one(cluster, topic_of(topic))
        assert groups.committed(cluster, SUBSCRIPTION, [part]) == {part: 1}


def test_what_was_trimmed_before_it_was_exported_is_counted(topics: Topics, lake: Lake) -> None:
    topic = topics.create()
    topics.fill(topic, ["a", "b", "c"])
    lake.export(topic)
    for value in ("d", "e", "f"):
        topics.fill(topic, [value])
    topics.trim(topic, 5)
    done = lake.export(topic)
    assert done is not None
    assert (done.rows, done.lost) == (1, 2)
    assert lake.places(topic) == [(0, 0), (0, 1), (0, 2), (0, 5)]
    assert lake.table(topic).lost() == 2


def test_duckdb_pandas_polars_and_plain_spark_read_the_tables(
    topics: Topics, lake: Lake, spark: "SparkSession"
) -> None:
    import duckdb
    import polars

    topic = topics.create()
    topics.fill(topic, ["a", "b", "c"])
    lake.export(topic)
    table = lake.table(topic).table
    files = [task.file.file_path for task in table.scan().plan_files()]

    events = table.scan(row_filter="offset >= 1").to_arrow()
    assert duckdb.sql('SELECT count(*), max("offset") FROM events').fetchall() == [(2, 2)]
    paths = [path.removeprefix("file://") for path in files]
    assert duckdb.read_parquet(paths).aggregate("count(*)").fetchall() == [(3,)]
    assert table.scan().to_pandas()["value"].tolist() == [b"a", b"b", b"c"]
    lazy = polars.scan_iceberg(table).filter(polars.col("offset") > 0).select("offset")
    assert lazy.collect()["offset"].to_list() == [1, 2]
    found = spark.read.parquet(*files)
    assert [row.value for row in found.where("offset < 2").orderBy("offset").collect()] == [b"a", b"b"]
    assert "protocol" in found.columns
    assert events.num_rows == 2


def test_sql_reads_table_and_topic_as_one_each_offset_once_though_the_topic_was_trimmed_and_goes_on(
    topics: Topics, lake: Lake, sql: Sql, spark: "SparkSession"
) -> None:
    topic = f"seam_{time.time_ns()}"
    make_orders(topics, topic, 0, 6)
    name = lake.on(topic)
    try:
        found = namespace_lake(lake.place.access, name.namespace).of(name)
        assert found is not None
        lake.definition = found
        lake.export(topic)
        topics.trim(topic, 6)
        make_orders(topics, topic, 6, 3)
        rows = sql.rows(f"SELECT id, __offset, __key FROM {topic} ORDER BY __offset")
        assert [row[:2] for row in rows] == [(at, at) for at in range(9)]
        lake.export(topic)
        assert sql.rows(f"SELECT count(*), count(DISTINCT __offset) FROM {topic}") == [(9, 9)]
        frame = Tables(lambda: spark, lake.place).table(name).where("id > 7").select("id")
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert "PushedFilters: [IsNotNull(value.id), GreaterThan(value.id,7)]" in plan
        assert "ReadSchema: struct<value:struct<id:int>>" in plan
    finally:
        turn_off(lake.place.access, name.namespace, name.local)
