"""The blocking Kafka client, which Spark's tasks use, on three brokers of which one is lost in the middle."""

from collections.abc import Iterator

import pytest

from weir.client.kafka import groups, produce
from weir.client.kafka.cluster import Cluster, Partition, open_transactions
from weir.client.kafka.fetch import Fetcher, ends
from weir.client.kafka.produce import Sender
from weir.client.kafka.settings import KafkaSettings, parse_servers
from weir.model.batch import Stamp
from weir.model.topics import TopicName
from weir.testing.kafka.stage import batch_of
from weir.testing.many_brokers import ManyBrokers
from weir.wire.kafka.record_batch import TRANSACTIONAL, split_batches
from weir.wire.kafka.records import iter_records

PARTS = [Partition("orders", index) for index in range(6)]


@pytest.fixture
def brokers() -> Iterator[ManyBrokers]:
    found = ManyBrokers().start()
    broker = found.running["broker0"].composed
    found.call(lambda: broker.registry.topics.create(TopicName.parse("orders"), partitions=len(PARTS)))
    yield found
    found.stop()


@pytest.fixture
def cluster(brokers: ManyBrokers) -> Iterator[Cluster]:
    with Cluster(KafkaSettings(parse_servers(brokers.bootstrap), retry_for_s=30)) as found:
        yield found


def everything(cluster: Cluster, partition: Partition, end: int) -> list[bytes]:
    fetcher, found, offset = Fetcher(cluster, partition), [], 0
    while offset < end:
        fetcher.ask(offset, 1 << 20)
        for one in split_batches(fetcher.take().records):
            values = [bytes(record.value or b"") for record in iter_records(one)]
            found += values
            offset += len(values)
    return found


@pytest.mark.slow
def test_what_was_sent_while_a_broker_was_lost_is_stored_once_and_read_in_order(
    brokers: ManyBrokers, cluster: Cluster
) -> None:
    producer = produce.init_producer(cluster)
    sender = Sender(cluster)
    for number in range(40):
        if number == 20:
            brokers.lose(brokers.owner(TopicName.parse("orders").at(0)))
        stamp = Stamp(producer.id, producer.epoch, number)
        sender.send({part: batch_of(str(number).encode(), stamp=stamp) for part in PARTS})
    sender.flush()
    assert ends(cluster, PARTS) == dict.fromkeys(PARTS, 40)
    for part in PARTS:
        assert everything(cluster, part, 40) == [str(number).encode() for number in range(40)]


@pytest.mark.slow
def test_a_transaction_goes_on_when_its_coordinator_is_lost(brokers: ManyBrokers, cluster: Cluster) -> None:
    producer = produce.init_producer(cluster, "mover")
    produce.add_partitions(cluster, "mover", producer, PARTS)
    sender = Sender(cluster, transactional_id="mover")
    stamp = Stamp(producer.id, producer.epoch, 0)
    sender.send({part: batch_of(b"a", stamp=stamp, attributes=TRANSACTIONAL) for part in PARTS})
    sender.flush()
    assert open_transactions(cluster, "mov") == ["mover"]
    coordinator = str(cluster.transaction_coordinator("mover").address)
    brokers.lose(next(name for name in brokers.running if brokers.address(name) == coordinator))
    produce.end(cluster, "mover", producer, commit=True)
    groups.commit(cluster, "readers", dict.fromkeys(PARTS, 1))
    assert groups.committed(cluster, "readers", PARTS) == dict.fromkeys(PARTS, 1)
    for part in PARTS:
        assert everything(cluster, part, 1)[0] == b"a"  # and maybe the marker
