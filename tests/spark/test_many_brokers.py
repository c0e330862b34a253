"""Source, sink and SQL on a cluster of three brokers, of which one is lost in the middle of what they do."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from weir.client.blocking import Access
from weir.client.kafka.admin import open_transactions
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.producing import Sender
from weir.client.kafka.settings import KafkaSettings, parse_servers
from weir.model.topics import TopicName
from weir.spark.sink.options import SinkOptions, parse_sink
from weir.spark.sink.sink import StreamWriter, TaskWritten
from weir.spark.source.options import parse
from weir.spark.source.ranges import Range
from weir.spark.source.reading import read_range
from weir.spark.source.source import WeirSource
from weir.spark.sql.cluster import WeirCluster
from weir.spark.sql.console import Console
from weir.spark.sql.parsing import parse as parse_sql
from weir.spark.sql.results import Done, Rows
from weir.testing.kafka.stage import batch_of
from weir.testing.many_brokers import ManyBrokers

from .conftest import Topics
from .sql_session import ORDER, stored

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PARTITIONS = 2
BATCH = 25
#: Less than a partition has, so that it is fetched in several steps.
FETCHED = 65_536
_PATIENCE_S = 240.0


class ManyTopics(Topics):
    """Topics of a cluster of several brokers."""

    def __init__(self, brokers: ManyBrokers) -> None:
        super().__init__(SimpleNamespace(kafka=brokers.bootstrap))  # type: ignore[arg-type]
        self._brokers = brokers

    @property
    def servers(self) -> str:
        return self._brokers.bootstrap

    def cluster(self) -> Cluster:
        return Cluster(KafkaSettings(parse_servers(self.servers)))

    def owner(self, name: str, index: int = 0) -> str:
        return self._brokers.owner(TopicName.parse(name).at(index))

    def fill_all(self, name: str, rows: int, size: int = 1) -> list[str]:
        """Every partition; what was written."""
        values = {
            index: [f"{index}-{number}-{'x' * size}" for number in range(rows)] for index in range(PARTITIONS)
        }
        with self.cluster() as cluster:
            sender = Sender(cluster)
            for first in range(0, rows, BATCH):
                batches = {
                    index: [one.encode() for one in some[first : first + BATCH]] for index, some in values.items()
                }
                sender.send({Partition(name, index): batch_of(*some) for index, some in batches.items()})
            sender.flush()
        return sorted(value for some in values.values() for value in some)

    def stored(self, name: str) -> list[str]:
        return sorted(value for _, value in stored(self.servers, name))


@pytest.fixture
def brokers() -> Iterator[ManyBrokers]:
    many = ManyBrokers("one", "two", "three", spread=True).start()
    yield many
    many.stop()


def test_a_task_reads_all_of_its_range_when_its_leader_is_lost_in_the_middle(brokers: ManyBrokers) -> None:
    topics = ManyTopics(brokers)
    name = topics.create(PARTITIONS)
    written = topics.fill_all(name, 300, size=1000)
    given = {"kafka.bootstrap.servers": topics.servers, "kafka.max.partition.fetch.bytes": str(FETCHED)}
    options = parse({**given, "path": name}, streaming=False)
    found: list[str] = []
    steps = 0
    for batch in read_range(options, Range(Partition(name, 0), 0, 300)):
        if not steps:
            brokers.lose(topics.owner(name))
        steps += 1
        found += [value.decode() for value in batch.column("value").to_pylist()]
    assert steps > 1
    assert sorted(found) == [value for value in written if value.startswith("0-")]


def test_epochs_are_written_once_when_a_leader_is_lost_in_one_and_the_coordinator_before_one_is_committed(
    brokers: ManyBrokers,
) -> None:
    topics = ManyTopics(brokers)
    name = topics.create(PARTITIONS)
    writer = StreamWriter(parse_sink({"kafka.bootstrap.servers": topics.servers, "topic": name, "sinkId": "mine"}))

    def rows(first: int, then: Callable[[], None] = lambda: None) -> Iterator[Any]:
        values = [str(number).encode() for number in range(first, first + BATCH)]
        batch = pa.record_batch({"key": values, "value": values})
        yield batch.slice(0, 5)
        then()
        yield batch.slice(5)

    lost = topics.owner(name)
    writer.commit([writer.write(rows(0, lambda: brokers.lose(lost)))], 0)
    brokers.begin(lost)
    task = writer.write(rows(BATCH))
    with topics.cluster() as cluster:
        address = str(cluster.transaction_coordinator("weir-sink/mine/any").address)
    brokers.lose(next(one for one in brokers.running if brokers.address(one) == address))
    writer.commit([task], 1)
    # What Spark does whose driver died before it knew of the commit: the epoch once more.
    writer.commit([writer.write(rows(BATCH))], 1)
    assert topics.stored(name) == sorted(str(number) for number in range(2 * BATCH))
    with topics.cluster() as cluster:
        assert open_transactions(cluster, "weir-sink/") == []


# --- in Spark -----------------------------------------------------------------------------------------------


class Moment:
    """A moment in a task of Spark's, at which it waits until the test has done something. By files: tasks are in
    processes of their own."""

    def __init__(self, folder: Path) -> None:
        self._reached, self._done = str(folder / "reached"), str(folder / "done")

    def at(self) -> None:
        """In the task."""
        with open(self._reached, "a"):
            pass
        self._wait(self._done)

    def then(self, work: Callable[[], None]) -> threading.Thread:
        """In the test: as soon as the moment is reached, on a thread."""

        def run() -> None:
            self._wait(self._reached)
            work()
            with open(self._done, "x"):
                pass

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    @staticmethod
    def _wait(path: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.exists(path):
            assert time.monotonic() < deadline, f"{path} does not come to be"
            time.sleep(0.02)


class WaitingWriter(StreamWriter):
    """Waits in the middle of what it writes."""

    def __init__(self, options: SinkOptions, moment: Moment) -> None:
        super().__init__(options)
        self._moment = moment

    def write(self, iterator: Iterator[Any]) -> TaskWritten:
        def waiting() -> Iterator[Any]:
            for batch in iterator:
                yield batch.slice(0, 1)
                self._moment.at()
                yield batch.slice(1)

        return super().write(waiting())


class WaitingSource(WeirSource):
    @classmethod
    def name(cls) -> str:
        return "weir_waiting"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        given = {name.lower(): value for name, value in self._given.items()}
        folder = Path(given.pop("folder"))
        return WaitingWriter(parse_sink(given), Moment(folder))


def test_a_query_and_sql_go_on_when_a_broker_is_lost(
    spark: SparkSession, brokers: ManyBrokers, tmp_path: Path
) -> None:
    spark.dataSource.register(WaitingSource)
    topics = ManyTopics(brokers)
    schema = {"type": "JSON", "schema": json.dumps(ORDER), "properties": {}}
    for name in ("orders", "copies"):
        topics.create(PARTITIONS, name=name)
        brokers["two"].do("POST", f"schemas/public/default/{name}/schema", schema)
    values = [json.dumps({"id": n, "customer": f"c{n % 2}", "amount": n / 2}) for n in range(8)]
    for index in range(PARTITIONS):
        topics.fill("orders", values[4 * index : 4 * index + 4], index)
    servers, lost = topics.servers, topics.owner("copies")
    losing = Moment(tmp_path).then(lambda: brokers.lose(lost))
    place = WeirCluster.find(Access(brokers[lost].http))
    query = (
        spark.readStream.format("weir")
        .options(**{"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"})
        .load("orders")
        .select("key", "value")
        .writeStream.format("weir_waiting")
        .options(**{"kafka.bootstrap.servers": servers, "topic": "copies", "folder": str(tmp_path)})
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(_PATIENCE_S)
    losing.join(_PATIENCE_S)
    assert lost not in brokers.running
    assert topics.stored("copies") == sorted(values)
    console = Console(lambda: spark, place, limit=100, start="earliest")

    def do(text: str) -> Rows | Done:
        (statement,) = parse_sql(text)
        return console.do(statement)

    do("INSERT INTO copies SELECT id + 8 AS id, customer, amount FROM orders")
    found = do("SELECT customer, count(*), sum(amount) FROM copies GROUP BY customer ORDER BY customer")
    assert isinstance(found, Rows)
    assert [tuple(row) for row in found.rows] == [("c0", 8, 12.0), ("c1", 8, 16.0)]
