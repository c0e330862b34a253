"""The seam between table and topic: each offset once, whatever is exported, trimmed and added after a read was
planned, and no row looks different for where it comes from."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from weir.client.admin import ask_v2
from weir.model.errors import DataLostError, LakeError
from weir.spark.lake.catalog import namespace_lake, turn_off
from weir.spark.lake.export import LocalJobs
from weir.spark.options import parse
from weir.spark.source.batch_reader import TopicReader
from weir.spark.source.streaming import TopicStreamReader
from weir.spark.tables.names import topic_named
from weir.spark.tables.topic_tables import Tables
from weir.wire.kafka.records import Record, build_batch

from .conftest import Topics
from .lake_kit import Lake
from .sql_session import Sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


class Seam:
    """A topic of its own, some of which is in the lake."""

    def __init__(self, topics: Topics, folder: Path) -> None:
        self.topics = topics
        self.topic = f"line-{folder.name}"
        self.lake = Lake(topics, folder, LocalJobs())
        topics.create(name=self.topic)

    def on(self) -> None:
        name = self.lake.on(self.topic)
        found = namespace_lake(self.lake.place.access, name.namespace).of(name)
        assert found is not None
        self.lake.definition = found

    def off(self) -> None:
        name = self.lake.on(self.topic)
        turn_off(self.lake.place.access, name.namespace, name.local)

    def add(self, count: int, partition: int = 0) -> None:
        self.topics.fill(self.topic, [f"{at}" for at in range(count)], partition)

    def options(self, **more: str) -> dict[str, str]:
        found = {"kafka.bootstrap.servers": self.topics.servers, "adminUrl": self.topics.up.http_url}
        return {**found, "subscribe": self.topic, **more}

    def reader(self, **more: str) -> TopicReader:
        return TopicReader(parse(self.options(**more), streaming=False))


@pytest.fixture
def seam(topics: Topics, tmp_path: Path) -> Iterator[Seam]:
    """Of nine messages six are in the table, and the first five in no broker any more."""
    found = Seam(topics, tmp_path)
    found.on()
    found.add(6)
    found.lake.export(found.topic)
    topics.trim(found.topic, 5)
    found.add(3)
    yield found
    found.off()


def offsets(reader: Any, pieces: Sequence[Any]) -> list[int]:
    return sorted(
        offset for piece in pieces for batch in reader.read(piece) for offset in batch.column("offset").to_pylist()
    )


def test_what_is_exported_and_trimmed_after_a_task_was_planned_comes_from_the_table(seam: Seam) -> None:
    reader = seam.reader()
    pieces = reader.partitions()
    stream = TopicStreamReader(parse(seam.options(startingOffsets="earliest", subscription=""), streaming=True))
    planned = stream.partitions({seam.topic: {"0": 0}}, {seam.topic: {"0": 9}})
    seam.lake.export(seam.topic)
    seam.topics.trim(seam.topic, 8)
    assert offsets(reader, pieces) == list(range(9))
    assert offsets(stream, planned) == list(range(9))
    without = seam.reader(lake="false")
    late = without.partitions()
    seam.topics.trim(seam.topic, 9)
    with pytest.raises(DataLostError, match="offsets 8 to 8"):
        offsets(without, late)


def test_headers_that_are_not_there_are_null_wherever_a_task_finds_the_message(seam: Seam) -> None:
    reader = seam.reader(includeHeaders="true")
    found = [batch.column("headers").null_count for piece in reader.partitions() for batch in reader.read(piece)]
    assert sum(found) == 9


def test_offsets_that_only_the_table_has_can_be_named(seam: Seam) -> None:
    for more, wanted in (
        ({"startingOffsets": json.dumps({seam.topic: {"0": 2}})}, range(2, 9)),
        ({"endingOffsets": json.dumps({seam.topic: {"0": 3}})}, range(3)),
        (
            {
                "startingOffsets": json.dumps({seam.topic: {"0": 1}}),
                "endingOffsets": json.dumps({seam.topic: {"0": 4}}),
            },
            range(1, 4),
        ),
        ({"seam": json.dumps({seam.topic: {"0": 4}})}, range(4, 9)),
    ):
        reader = seam.reader(**more)
        assert offsets(reader, reader.partitions()) == list(wanted), more


def test_what_nobody_has_is_lost_all_the_same(seam: Seam) -> None:
    seam.topics.trim(seam.topic, 8)
    named = {"startingOffsets": json.dumps({seam.topic: {"0": 2}})}
    with pytest.raises(DataLostError, match="offsets 6 to 7 "):
        seam.reader(**named).partitions()
    skipping = seam.reader(**named, failOnDataLoss="false")
    assert offsets(skipping, skipping.partitions()) == [2, 3, 4, 5, 8]


def test_a_read_of_what_may_be_in_the_lake_does_not_end_early_because_nobody_can_be_asked(seam: Seam) -> None:
    with pytest.raises(LakeError, match="cannot be asked"):
        seam.reader(adminUrl="http://127.0.0.1:9").partitions()
    alone = seam.reader(adminUrl="http://127.0.0.1:9", lake="false")
    assert offsets(alone, alone.partitions()) == [5, 6, 7, 8]


def test_a_frame_and_a_query_that_were_made_before_have_each_offset_once(seam: Seam, sql: Sql) -> None:
    spark, topics = sql._spark, seam.topics
    frames = {
        "batch": spark.read.format("weir").options(**seam.options()).load().select("partition", "offset"),
        "sql": Tables(lambda: spark, sql.place)
        .table(topic_named((seam.topic,)))
        .selectExpr("__partition", "__offset"),
    }
    plans = {name: frame._jdf.queryExecution().executedPlan().toString() for name, frame in frames.items()}
    assert all("FileScan parquet" in plan for plan in plans.values()), plans
    seam.lake.export(seam.topic)
    topics.trim(seam.topic, 9)
    topics.grow(seam.topic, 3)
    seam.add(2, partition=1)
    seam.add(4, partition=2)
    seam.lake.export(seam.topic)
    Topics(topics.up).trim(seam.topic, 2, partition=2)  # a client that knows of the new partitions
    seam.add(1)
    wanted = [(0, at) for at in range(10)] + [(1, 0), (1, 1)] + [(2, at) for at in range(4)]
    for name, frame in frames.items():
        assert sorted(tuple(row) for row in frame.collect()) == wanted, name


_DETAIL = {
    "type": "record",
    "name": "Detail",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exact", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "here", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "OLD"]}},
        {"name": "real", "type": "double"},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "more", "type": {"type": "map", "values": ["null", "long"]}},
        {"name": "either", "type": ["null", "string", "long"]},
        {
            "name": "place",
            "type": ["null", {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "float"}]}],
        },
    ],
}
_VALUES = (
    "(1, 'ann', timestamp'1969-12-31 23:59:59.999', timestamp'2026-01-01 00:00:00.000001',"
    " timestamp_ntz'2026-03-29 02:30:00', date'1582-10-15', -1.5, X'0001', 'OLD', double('NaN'),"
    " array('a', NULL), map('k', NULL, 'l', 5), named_struct('member1', 7, 'member0', NULL),"
    " named_struct('x', 0.5))",
    "(2, NULL, timestamp'1600-01-01 00:00:00', timestamp'9998-12-31 23:59:59.999999', NULL, date'9999-12-31',"
    " 999999999.999, X'FFFF', 'NEW', -0.0, array(), map(), NULL, NULL)",
)


def test_no_row_tells_whether_the_table_or_the_topic_has_it(
    topics: Topics, sql: Sql, spark: "SparkSession", tmp_path: Path
) -> None:
    """Bytes with nulls, without headers, of old times; and typed by each of Avro's types."""
    folders = [tmp_path / f"{tmp_path.name}-{name}" for name in ("raw", "typed", "sent")]
    raw, typed, sent = (Seam(topics, folder) for folder in folders)
    body = {"type": "AVRO", "schema": json.dumps(_DETAIL), "properties": {}}
    records = [
        Record(0, 0, None, None),
        Record(1, 1, b"", b""),
        Record(2, 1_700_000_000_123, b"\xff", b"\x00", [(b"h", None), (b"h", b""), ("ü".encode(), b"\xfe")]),
    ]
    topics.send(raw.topic, build_batch(records))
    for one in (typed, sent):
        ask_v2(sql.place.access, "POST", f"schemas/public/default/{one.topic}/schema", body)
        for row in _VALUES:
            sql.do(f"INSERT INTO `{one.topic}` VALUES {row}")
    for one, more in ((raw, {}), (typed, {"valueFormat": "schema"}), (sent, {})):
        options = one.options(**more, includeHeaders="true")

        def rows(frame: Any) -> list[str]:
            return sorted(repr(row) for row in frame.collect())

        frame = spark.read.format("weir").options(**options, lake="false").load()
        before = rows(frame)
        one.on()
        one.lake.export(one.topic)
        whole = spark.read.format("weir").options(**options).load()
        assert whole.schema.json() == frame.schema.json()
        assert rows(whole) == before
        topics.trim(one.topic, len(before))
        by_tasks = spark.read.schema(frame.schema).format("weir").options(**options).load()
        assert rows(by_tasks) == before
        one.off()
