"""One Spark session and one `weir up` for all of these tests; every test has topics of its own."""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import weir.spark
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.produce import Sender
from weir.client.kafka.settings import KafkaSettings, parse_servers
from weir.testing.processes.up import UpProcess
from weir.wire.kafka.records import Record, build_batch

from .sql_session import Sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Topics:
    """Makes and fills topics, through Kafka's protocol."""

    def __init__(self, up: UpProcess) -> None:
        self.up = up
        self._admin = AdminClient({"bootstrap.servers": up.kafka, "log_level": 0})
        self._names = count()

    @property
    def servers(self) -> str:
        return self.up.kafka

    def cluster(self) -> Cluster:
        return Cluster(KafkaSettings(parse_servers(self.up.kafka)))

    def create(self, partitions: int = 1, name: str | None = None) -> str:
        name = name or f"topic-{next(self._names)}"
        self._admin.create_topics([NewTopic(name, partitions)])[name].result(30)
        return name

    def grow(self, name: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(30)

    def trim(self, name: str, offset: int, partition: int = 0) -> None:
        wanted = TopicPartition(name, partition, offset)
        self._admin.delete_records([wanted])[wanted].result(30)

    def fill(
        self, name: str, values: Sequence[str], partition: int = 0, *, times: Sequence[int] | None = None
    ) -> None:
        """One batch of these values."""
        records = [
            Record(at, times[at] if times else 1_700_000_000_000 + at, value.encode(), value.encode())
            for at, value in enumerate(values)
        ]
        self.send(name, build_batch(records), partition)

    def send(self, name: str, batch: bytes, partition: int = 0) -> None:
        with self.cluster() as cluster:
            sender = Sender(cluster)
            sender.send({Partition(name, partition): batch})
            sender.flush()


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    process = UpProcess(tmp_path_factory.mktemp("weir")).start()
    yield process
    process.close()


@pytest.fixture(scope="session")
def topics(up: UpProcess) -> Topics:
    return Topics(up)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    folder = tmp_path_factory.mktemp("spark")
    session = weir.spark.session(
        "tests",
        master="local[2,3]",  # a task that dies is tried again
        config={
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
        },
    )
    yield session
    session.stop()


@pytest.fixture
def sql(spark: "SparkSession", topics: Topics, tmp_path: Path) -> Iterator[Sql]:
    found = Sql(spark, topics, tmp_path)
    yield found
    found.close()


@pytest.fixture
def read(spark: "SparkSession", topics: Topics) -> "Reads":
    return Reads(spark, topics)


class Reads:
    """Batch reads of topics."""

    def __init__(self, spark: "SparkSession", topics: Topics) -> None:
        self._spark = spark
        self._topics = topics

    def __call__(self, topic: str, **options: object) -> "DataFrame":
        reader = self._spark.read.format("weir").option("kafka.bootstrap.servers", self._topics.servers)
        return reader.options(**options).load(topic)  # type: ignore[arg-type]

    def values(self, topic: str, **options: object) -> list[str]:
        rows = self(topic, **options).selectExpr("partition", "offset", "cast(value as string) v").collect()
        return [row.v for row in sorted(rows)]
