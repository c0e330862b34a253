"""Connectors of files with `engine = "spark"`: Spark's readers and writers, each record once over restarts."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from weir.client.blocking import Access
from weir.client.kafka.settings import KafkaSettings, parse_servers
from weir.connect.definitions import parse, parse_name
from weir.connect.place import Place
from weir.connect.task import Job
from weir.connect.tasks import make_task

from .conftest import Reads, Topics
from .sql_session import patiently

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.soak, pytest.mark.xdist_group("spark")]


def test_files_go_through_spark_into_a_topic_and_the_topic_into_files_once(
    spark: "SparkSession", topics: Topics, read: Reads, tmp_path: Path
) -> None:
    place = Place(Access(topics.up.http_url, patience_s=5.0), KafkaSettings(parse_servers(topics.servers)))
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()

    def carry(name: str, said: dict[str, Any], rows: int) -> None:
        task = make_task(Job(place, parse(parse_name(name), json.dumps(said)), name))
        task.open()
        try:
            carried: list[int] = []

            def enough() -> bool:
                carried.append(task.step())
                return sum(carried) >= rows

            patiently(enough)
            assert sum(carried) == rows
        finally:
            task.close()

    topic = topics.create()
    source = {"type": "files", "path": str(folder), "engine": "spark", "key": "n", "poll": "100ms"}
    sink = {"type": "files", "path": str(out), "engine": "spark", "format": "parquet", "max_age": "500ms"}
    for turn in range(2):
        lines = [json.dumps({"n": number, "name": f"x{number}"}) for number in range(turn * 5, turn * 5 + 5)]
        (folder / f"{turn}.json").write_text("\n".join(lines))
        carry("spark-in", {"topic": topic, "source": source}, 5)
        carry("spark-out", {"topic": topic, "sink": sink}, 5)
    assert sorted(json.loads(value)["n"] for value in read.values(topic)) == list(range(10))
    rows = spark.read.parquet(f"{out}/{topic}").collect()
    assert sorted((row.n, row.name) for row in rows) == [(number, f"x{number}") for number in range(10)]
