"""Source, sink and SQL on a cluster of three brokers, of which one is lost in the middle of what they do."""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from weir.client.admin import Access
from weir.client.kafka.cluster import Cluster, Partition, open_transactions
from weir.client.kafka.produce import Sender
from weir.client.kafka.settings import KafkaSettings, parse_servers
from weir.client.schemas import schemas_by
from weir.client.sink_epochs import last_epoch
from weir.client.streams import runner
from weir.model.topics import TopicName
from weir.spark.options import parse, parse_sink
from weir.spark.sink import StreamWriter, ask_some_broker
from weir.spark.source.planning import Range
from weir.spark.source.reading import read_range
from weir.spark.tables.names import WeirCluster
from weir.testing.kafka.stage import batch_of
from weir.testing.many_brokers import ManyBrokers

from .conftest import Topics
from .sql_session import ORDER, stored

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

PARTITIONS = 2
BATCH = 25
#: Less than a partition has, so that it is fetched in several steps.
FETCHED = 65_536


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


def test_sql_asks_another_broker_when_the_one_that_it_was_given_is_lost(brokers: ManyBrokers) -> None:
    topics = ManyTopics(brokers)
    topics.create(PARTITIONS, name="orders")
    schema = {"type": "JSON", "schema": json.dumps(ORDER), "properties": {}}
    brokers["two"].do("POST", "schemas/public/default/orders/schema", schema)
    place = WeirCluster.find(Access(brokers["one"].http))
    assert sorted(place.kafka.split(",")) == sorted(brokers.bootstrap.split(","))
    brokers.lose("one")
    assert [one.kind for one in schemas_by(place.access, TopicName.parse("orders"))] == ["JSON"]
    assert runner(place.access).allowed
    sink = parse_sink({**place.options, "topic": "orders"})
    assert ask_some_broker(sink, lambda access: last_epoch(access, "mine")) == -1
