"""Functions of messages on Spark: the same code, with state by key, dead letters and each micro-batch once."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from weir.client import functions as rest
from weir.client.admin import Access
from weir.client.functions import Definition
from weir.functions.subscriptions import Place
from weir.model.topics import TopicName
from weir.spark.functions.query import COUNTED, start, task_of
from weir.spark.tables.names import WeirCluster

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process]

COUNT = """
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    if message.data == b"bad":
        raise ValueError("bad one")
    return f"{message.text} {context.state['n']}"
"""
BATCH = """
import pyarrow as pa
def f(batch: pa.RecordBatch):
    values = pa.array([value + b"!" for value in batch["value"].to_pylist()])
    return pa.record_batch({"key": batch["key"], "value": values})
"""


def run(
    spark: "SparkSession", topics: Topics, folder: Path, code: str, *, restarted: bool = False, **options: str
) -> tuple[str, dict[str, int]]:
    """The function of a topic with `a`, `bad` and `b`, until it has come to the end; and again, with one more."""
    name = topics.create()
    topics.fill(name, ["a", "bad", "b"])
    access = Access(topics.up.http_url)
    source, output = TopicName.parse(name), TopicName.parse(f"{name}-out")
    definition = Definition(code, "f.py", "f", (source,), output, {"on": "spark", **options})
    function = rest.deploy(access, TopicName.parse(f"{name}-fn"), definition).function
    place, cluster = Place.find(access), WeirCluster.find(access)
    counted: dict[str, int] = {}
    query = None
    try:
        for more in ([], ["a"]):
            if more:
                topics.fill(name, more)
            if query is None:
                query = start(spark, cluster, task_of(place, function), str(folder / name))
            query.processAllAvailable()
            if restarted or more:
                _count(query, counted)
                query.stop()
                query = None
    finally:
        if query is not None:
            query.stop()
        rest.delete(access, function.name)
    return name, counted


def _count(query: Any, counted: dict[str, int]) -> None:
    for one in query.recentProgress:
        if one.numInputRows:
            for kind, many in one.observedMetrics[COUNTED].asDict().items():
                counted[kind] = counted.get(kind, 0) + (many or 0)


def rows(spark: "SparkSession", topics: Topics, topic: str) -> list[tuple[str, str]]:
    frame = (
        spark.read.format("weir").options(**{"kafka.bootstrap.servers": topics.servers, "subscribe": topic}).load()
    )
    return sorted((bytes(row.key).decode(), bytes(row.value).decode()) for row in frame.collect())


def test_state_by_key_outlives_the_micro_batch_and_what_fails_is_a_dead_letter(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    name, counted = run(spark, topics, tmp_path, COUNT, stateful="true", retry="1ms", max_deliveries="2")
    assert rows(spark, topics, f"{name}-out") == [("a", "a 1"), ("a", "a 2"), ("b", "b 1")]
    assert rows(spark, topics, f"{name}-fn-{name}-fn-DLQ") == [("bad", "bad")]
    assert counted == {"sent": 3, "failed": 2, "dead": 1}


def test_functions_of_batches_run_within_tasks_and_go_on_after_a_restart(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    name, counted = run(spark, topics, tmp_path, BATCH, restarted=True)
    assert rows(spark, topics, f"{name}-out") == [("a", "a!"), ("a", "a!"), ("b", "b!"), ("bad", "bad!")]
    assert counted["sent"] == 4
