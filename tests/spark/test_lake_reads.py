"""Table and topic read as one by `format("weir")`: batches, sessions without Weir's import, streams, buckets."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from weir.client.admin import ask_v2
from weir.model.topics import TopicName
from weir.spark.columns import schema_of
from weir.spark.lake.catalog import Definition, namespace_lake, turn_off
from weir.spark.lake.export import LocalJobs
from weir.spark.source.batch_reader import WeirSource
from weir.spark.tables.topic_tables import Tables
from weir.testing.processes.s3 import S3Server
from weir.testing.processes.up import UpProcess

from .conftest import Topics
from .lake_kit import Lake
from .sql_session import ORDER, Sql, make_orders, patiently

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


def _turned_on(lake: Lake, topic: str) -> TopicName:
    name = lake.on(topic)
    found = namespace_lake(lake.place.access, name.namespace).of(name)
    assert found is not None
    lake.definition = found
    return name


@pytest.fixture
def seam(topics: Topics, tmp_path: Path) -> Iterator[tuple[str, Lake]]:
    """Of nine orders the first six are in the table, and the first five in no broker any more."""
    topic = f"seam-{tmp_path.name}"
    make_orders(topics, topic, 0, 5)
    lake = Lake(topics, tmp_path, LocalJobs())
    name = _turned_on(lake, topic)
    make_orders(topics, topic, 5, 1)
    lake.export(topic)
    topics.trim(topic, 5)
    make_orders(topics, topic, 6, 3)
    yield topic, lake
    turn_off(lake.place.access, name.namespace, name.local)


def test_a_batch_read_has_every_offset_once_and_the_tables_part_is_sparks_own_parquet_scan(
    topics: Topics, seam: tuple[str, Lake], spark: "SparkSession"
) -> None:
    topic, _ = seam
    options = {"kafka.bootstrap.servers": topics.servers, "adminUrl": topics.up.http_url}
    typed = spark.read.format("weir").options(**options, valueFormat="schema").load(topic)
    assert sorted(row.offset for row in typed.select("offset").collect()) == list(range(9))
    chosen = typed.where("value.id > 3").select("value.id")
    plan = chosen._jdf.queryExecution().executedPlan().toString()
    assert "GreaterThan(value.id,3)" in plan
    assert "ReadSchema: struct<value:struct<id:int>>" in plan
    assert sorted(row.id for row in chosen.collect()) == [4, 5, 6, 7, 8]

    raw = spark.read.format("weir").options(**options).load(topic)
    unhooked = spark.read.schema(schema_of(headers=False)).format("weir").options(**options).load(topic)
    columns = ("offset", "key", "value", "timestamp", "topic")
    rows = [sorted(frame.select(*columns).collect()) for frame in (raw, unhooked)]
    assert rows[0] == rows[1], "Python's tasks read the same where Weir has not been imported"
    assert len(rows[0]) == 9
    assert rows[0][0].value == rows[0][0].key, "the bytes that were sent"
    tail = spark.read.format("weir").options(**options, lake="false").load(topic)
    assert tail.count() == 4


def test_a_schema_that_grows_does_not_wait_for_the_next_export(
    topics: Topics, seam: tuple[str, Lake], sql: Sql
) -> None:
    topic, lake = seam
    note = {"name": "note", "type": ["null", "string"], "default": None}
    grown = {**ORDER, "fields": [*ORDER["fields"], note]}
    body = {"type": "JSON", "schema": json.dumps(grown), "properties": {}}
    ask_v2(lake.place.access, "POST", f"schemas/public/default/{topic}/schema", body)
    topics.fill(topic, [json.dumps({"id": 9, "customer": "c", "amount": 1, "note": "new"})])
    query = f"SELECT id, note FROM `{topic}` WHERE id > 4 ORDER BY __offset"
    rows = [(5, None), (6, None), (7, None), (8, None), (9, "new")]
    assert sql.rows(query) == rows
    lake.export(topic)
    assert sql.rows(query) == rows


def test_what_is_exported_and_trimmed_once_a_read_is_planned_comes_from_the_table(
    topics: Topics, seam: tuple[str, Lake]
) -> None:
    topic, lake = seam
    options = {"kafka.bootstrap.servers": topics.servers, "adminUrl": topics.up.http_url, "subscribe": topic}
    source = WeirSource(options)
    reader = source.reader(source.schema())
    planned = reader.partitions()
    lake.export(topic)
    topics.trim(topic, 8)
    found = [batch.column("offset").to_pylist() for one in planned for batch in reader.read(one)]
    assert sorted(offset for some in found for offset in some) == list(range(9))


def test_a_stream_from_the_earliest_begins_with_what_only_the_table_has(
    topics: Topics, seam: tuple[str, Lake], spark: "SparkSession", tmp_path: Path
) -> None:
    topic, _ = seam
    options = {"kafka.bootstrap.servers": topics.servers, "adminUrl": topics.up.http_url}
    frame = (
        spark.readStream.format("weir")
        .options(**options, startingOffsets="earliest", subscription="", valueFormat="schema")
        .load(topic)
    )
    seen: list[tuple[int, int]] = []
    query = (
        frame.selectExpr("offset", "value.id")
        .writeStream.foreachBatch(lambda rows, _: seen.extend(tuple(row) for row in rows.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    assert sorted(seen) == [(at, at) for at in range(9)]


def test_offsets_whose_ledgers_are_gone_are_read_by_format_weir_and_sql_each_once(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    up = UpProcess(tmp_path, "broker.maintenance_interval=100ms", "storage.cache_bytes=0B").start()
    with closing(up):
        topics = Topics(up)
        lake = Lake(topics, tmp_path, LocalJobs())
        lake.definition = replace(lake.definition, tiered_after_ms=0)
        make_orders(topics, "tiered", 0, 6)
        _turned_on(lake, "tiered")
        lake.export("tiered")

        def tiered() -> bool:
            told = ask_v2(lake.place.access, "GET", "persistent/public/default/tiered-partition-0/stats")
            return bool(told["lake"]) and told["lake"]["endOffset"] == 6

        patiently(tiered)
        up.kill()  # nothing of it is in memory any more
        up.start()
        make_orders(topics, "tiered", 6, 3)
        for through in ("true", "false"):  # the table; or the broker, which reads the copies of the ledgers
            options = {"kafka.bootstrap.servers": topics.servers, "adminUrl": up.http_url, "lake": through}
            frame = spark.read.format("weir").options(**options, valueFormat="schema").load("tiered")
            rows = sorted((row.offset, row.id) for row in frame.select("offset", "value.id").collect())
            assert rows == [(at, at) for at in range(9)], through
        sql = Sql(spark, topics, tmp_path)
        try:
            assert sql.rows("SELECT id, __offset FROM tiered ORDER BY 2") == [(at, at) for at in range(9)]
        finally:
            sql.close()
        assert tiered(), "nothing came back"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server.start(tmp_path_factory.mktemp("s3"))
    if server is None:
        pytest.skip("SeaweedFS is not installed")
    yield server
    server.close()


def test_a_table_in_a_bucket_is_scanned_by_sparks_own_reader_too(
    topics: Topics, tmp_path: Path, s3: S3Server, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    topic = f"bucket_{tmp_path.name}"
    make_orders(topics, topic, 0, 5)
    lake = Lake(topics, tmp_path, LocalJobs())
    lake.definition = Definition(
        f"s3://{s3.bucket}/{tmp_path.name}", f"sqlite:///{tmp_path}/catalog.db", {"s3.endpoint": s3.url}
    )
    name = _turned_on(lake, topic)
    try:
        lake.export(topic)
        topics.trim(topic, 5)
        make_orders(topics, topic, 5, 2)
        frame = Tables(lambda: spark, lake.place).table(name).where("id > 1").select("id")
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert "ReadSchema: struct<value:struct<id:int>>" in plan
        assert sorted(row.id for row in frame.collect()) == [2, 3, 4, 5, 6]
    finally:
        turn_off(lake.place.access, name.namespace, name.local)
