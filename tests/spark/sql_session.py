"""A session of SQL on topics, with a runner of streams that is stepped by hand."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, TopicPartition

from weir.client import streams as rest
from weir.client.admin import Access, ask_v2
from weir.spark.sql.console import Console
from weir.spark.sql.parsing import parse
from weir.spark.sql.results import Done, Rows
from weir.spark.sql.runner import Runner
from weir.spark.sql.stream_query import waiting
from weir.spark.tables.names import WeirCluster, topic_named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .conftest import Topics

_PATIENCE_S = 200.0
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": "double"},
    ],
}


def patiently(done: Callable[[], object], within_s: float = _PATIENCE_S) -> None:
    """Until it is done, on a machine that has other things to do as well."""
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.2)


def make_orders(topics: "Topics", name: str, first: int = 0, count: int = 6) -> None:
    """A typed topic, of orders of two customers."""
    if not first:
        topics.create(name=name)
        body = {"type": "JSON", "schema": json.dumps(ORDER), "properties": {}}
        ask_v2(Access(topics.up.http_url), "POST", f"schemas/public/default/{name}/schema", body)
    numbers = range(first, first + count)
    values = [{"id": n, "customer": f"c{n % 2}", "amount": n / 2} for n in numbers]
    times = [1_700_000_000_000 + 1000 * n for n in numbers]
    topics.fill(name, [json.dumps(value) for value in values], times=times)


class Sql:
    """Statements, and a runner that is stepped by hand."""

    def __init__(self, spark: "SparkSession", topics: "Topics", folder: Path) -> None:
        self._spark = spark
        self.topics = topics
        self.place = WeirCluster(Access(topics.up.http_url), topics.servers)
        self.console = Console(lambda: spark, self.place, limit=1000, start="earliest")
        self.runner = Runner(spark, self.place, str(folder / "checkpoints"))
        self.folder = folder / "checkpoints"

    def again(self) -> None:
        """Another runner, as after a restart."""
        self.runner = Runner(self._spark, self.place, str(self.folder))

    def do(self, text: str) -> Rows | Done:
        (statement,) = parse(text)
        return self.console.do(statement)

    def rows(self, text: str) -> list[tuple[object, ...]]:
        found = self.do(text)
        assert isinstance(found, Rows)
        return [tuple(row) for row in found.rows]

    def orders(self, name: str, first: int = 0, count: int = 6) -> None:
        make_orders(self.topics, name, first, count)

    def until(self, done: Callable[[], bool]) -> None:
        """Let the runner do its work until it is done."""
        deadline = time.monotonic() + _PATIENCE_S
        while not done():
            shown = rest.all_streams(self.place.access)
            assert time.monotonic() < deadline, [(one.stream.name, one.progress) for one in shown]
            assert self.runner.step()
            time.sleep(0.2)

    def until_read(self, name: str) -> None:
        """Until the stream has read all that is there, and written what it makes of it."""
        stream = rest.get_stream(self.place.access, topic_named((name,))).stream
        checkpoint = self.runner.checkpoint(stream)
        self.until(lambda: self.state(name) == "running" and waiting(self.place, stream, checkpoint) == 0)

    def stored(self, name: str) -> list[tuple[str | None, str]]:
        return stored(self.topics.servers, name)

    def state(self, name: str) -> str:
        found = rest.get_stream(self.place.access, topic_named((name,)))
        return found.progress.state if found.progress is not None else ""

    def close(self) -> None:
        """Drop all streams, and clean up after them."""
        for one in rest.all_streams(self.place.access):
            rest.drop_stream(self.place.access, one.stream.name)
        self.runner.step()
        self.runner.close()


def stored(servers: str, topic: str) -> list[tuple[str | None, str]]:
    """Keys and values of a topic's committed messages, in the order of each partition; without Spark."""
    return [(None if key is None else key.decode(), value.decode()) for key, value in stored_bytes(servers, topic)]


def stored_bytes(servers: str, topic: str) -> list[tuple[bytes | None, bytes]]:
    """The same as bytes."""
    settings = {"bootstrap.servers": servers, "group.id": "none", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    try:
        partitions = sorted(consumer.list_topics(topic, 60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, at, 0) for at in partitions])
        found: dict[int, list[tuple[bytes | None, bytes]]] = {}
        left = len(partitions)
        while left:
            message = consumer.poll(60)
            assert message is not None, f"{topic} cannot be read"
            if message.error() is None:
                found.setdefault(message.partition(), []).append((message.key(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left -= 1
        return [one for at in partitions for one in found.get(at, [])]
    finally:
        consumer.close()
