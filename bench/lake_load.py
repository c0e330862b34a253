"""Export, scan and replay of one topic, in one Spark driver."""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench.brokers import KAFKAS
from bench.case import Measured, Params, case
from bench.kafka_load import create, first_message_s

_PARTITIONS = 4
_SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "note", "type": "string"},
    ],
}


def _fill(url: str, topic: str, rows: int) -> None:
    producer = Producer(
        {"bootstrap.servers": url, "linger.ms": 20, "batch.size": 1 << 20, "compression.type": "lz4"}
    )
    note = "n" * 60
    for number in range(rows):
        value = f'{{"id":{number},"customer":"c{number % 1000}","amount":{number % 977}.5,"note":"{note}"}}'
        while True:
            try:
                producer.produce(topic, value, b"%d" % (number & 1023), number % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise SystemExit("the topic could not be filled")


@case("lake.all")
def lake(params: Params, folder: str) -> Measured:
    place = Path(folder) / "broker"
    place.mkdir()
    broker = KAFKAS["weir"](place, sync=True)
    try:
        first_message_s(broker, "first")
        for topic in ("rows", "audit"):
            create(broker, topic, _PARTITIONS)
        return _measured(broker.url, params, folder)
    finally:
        broker.stop()


def _measured(kafka: str, params: Params, folder: str) -> Measured:
    import weir.spark
    from weir.client.admin import Access, ask_v2
    from weir.client.kafka.cluster import Cluster, admin_url
    from weir.client.kafka.settings import KafkaSettings, parse_servers
    from weir.model.topics import TopicName
    from weir.spark.lake.catalog import Definition, namespace_lake, turn_on
    from weir.spark.lake.export import Exporter, SparkJobs
    from weir.spark.lake.table import find_table
    from weir.spark.tables.names import WeirCluster

    with Cluster(KafkaSettings(parse_servers(kafka))) as cluster:
        access = Access(admin_url(cluster), patience_s=10.0)
    place, topic = WeirCluster(access, kafka), TopicName.parse("rows")
    body = {"type": "JSON", "schema": json.dumps(_SCHEMA), "properties": {}}
    ask_v2(access, "POST", "schemas/public/default/rows/schema", body)
    _fill(kafka, "rows", params["rows"])
    config = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
    spark = weir.spark.session("bench", master="local[2]", config=config)
    try:
        wanted = Definition(f"file://{folder}/lake", f"sqlite:///{folder}/lake/catalog.db")
        turn_on(access, topic.namespace, topic.local, wanted)
        definition = namespace_lake(access, topic.namespace).of(topic)
        done = Exporter(place, SparkJobs(spark)).export(topic, definition) if definition is not None else None
        table = None if definition is None else find_table(topic, definition)
        if done is None or table is None or done.rows != params["rows"]:
            raise SystemExit("the topic was not exported")
        files = [task.file.file_path for task in table.table.scan().plan_files()]

        options = {"kafka.bootstrap.servers": kafka, "adminUrl": access.url, "valueFormat": "schema"}
        ours = spark.read.format("weir").options(**options).load("rows")
        plain = spark.read.parquet(*files)
        scans: dict[str, float] = {}
        for name, query in (("sum", _sum), ("report", _report)):
            if query(ours) != query(plain):
                raise SystemExit("the two reads differ")
            took = [(_ms(lambda: query(ours)), _ms(lambda: query(plain))) for _ in range(params["rounds"])]  # noqa: B023
            scans[f"{name}_ms"] = statistics.median(one for one, _ in took)
            scans[f"{name}_parquet_ms"] = statistics.median(one for _, one in took)
        return {
            "export_rows_s": done.rows / done.seconds,
            **scans,
            **_replayed(spark, place, topic),
        }
    finally:
        spark.stop()


def _sum(frame: Any) -> Any:
    """Of one column, filtered by it: hardly more than what a query costs without a row."""
    return frame.where("value.amount > 900").selectExpr("sum(value.amount)").collect()


def _report(frame: Any) -> Any:
    """Over every row and column of the values."""
    sums = frame.groupBy("value.customer").agg(
        {"value.amount": "sum", "value.id": "max", "value.note": "max", "offset": "min"}
    )
    return sorted(tuple(row) for row in sums.collect())


def _replayed(spark: Any, place: Any, topic: Any) -> Measured:
    from weir.spark.replay.delivery import Delivery, go_on
    from weir.spark.replay.requests import Request, begin, resolve
    from weir.spark.replay.selection import Selector
    from weir.spark.tables.topic_tables import Tables

    selector, picked = Selector(Tables(lambda: spark, place), place), [0.0]

    def select(replay: Any) -> None:
        picked[0] = _ms(lambda: selector.write(replay)) / 1000

    replay = begin(place, resolve(place, Request(topic, "topic:audit", "id % 100 = 0")))
    started = time.monotonic()
    done = go_on(place, replay, select, Delivery(place))
    took_s = time.monotonic() - started - picked[0]
    return {"picked_s": picked[0], "delivered_s": sum(done.delivered) / took_s}


def _ms(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return 1000 * (time.monotonic() - started)
