"""After a broker returns, it leads its share of the partitions in a few rounds, and no message is lost."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from weir.broker.balance.balance_round import BalanceLimits, History
from weir.broker.balance.balancer import BalanceSettings
from weir.testing.many_brokers import ManyBrokers

PARTITIONS = 48
#: By counts alone: all brokers are in this process, and measure its CPU.
LIMITS = BalanceLimits(start=2.0, stop=1.0, broker_pause_s=0.0)
MOST_ROUNDS = 8


@pytest.fixture
def cluster() -> Any:
    many = ManyBrokers(
        "one", "two", "three", spread=True, balance=BalanceSettings(interval_s=3600.0, limits=LIMITS)
    ).start()
    yield many
    many.stop()


class Writer:
    """Produces to all partitions, on a thread of its own, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
            }
        )
        self._topic = topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: Counter[bytes] = Counter()
        self.failed: list[str] = []
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, b"%d" % number, partition=partition, on_delivery=self._told)
                number += 1
            self._producer.poll(0.2)
        self._producer.flush(120)

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged[message.value()] += 1

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def leaders(cluster: ManyBrokers, topic: str) -> list[int]:
    """How many partitions each broker leads, as Kafka's client learns it."""
    found = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=60)
    led = Counter(part.leader for part in found.topics[topic].partitions.values())
    return [led[node] for node in found.brokers]


def test_a_broker_that_returns_leads_its_share_again_and_nothing_is_lost(
    cluster: ManyBrokers, unique: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic(unique, PARTITIONS, 3)]).values():
        made.result()
    writer = Writer(cluster.bootstrap, unique)
    try:
        cluster.until(lambda: len(writer.acknowledged) >= 4 * PARTITIONS)
        cluster.end("three")
        stored = len(writer.acknowledged)
        cluster.until(lambda: len(writer.acknowledged) >= stored + 2 * PARTITIONS)
        cluster.begin("three")
        assert min(leaders(cluster, unique)) <= 2  # it is back, and leads (next to) nothing
        rounds = balanced(cluster, lambda: max(leaders(cluster, unique)) - min(leaders(cluster, unique)) <= 6)
        assert rounds <= MOST_ROUNDS
        stored = len(writer.acknowledged)
        cluster.until(lambda: len(writer.acknowledged) >= stored + 2 * PARTITIONS)
    finally:
        writer.stop()
    assert writer.failed == []
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(unique, partition, 0) for partition in range(PARTITIONS)])
    found: Counter[bytes] = Counter()
    while len(found) < len(writer.acknowledged):
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        found[message.value()] += 1
    consumer.close()
    assert found == writer.acknowledged


def balanced(cluster: ManyBrokers, even: Callable[[], bool]) -> int:
    """How many rounds of the leader it took."""
    history, rounds = History(), 0
    leader = cluster[cluster.leader()].composed.balance
    assert leader is not None
    while rounds <= MOST_ROUNDS and not even():
        rounds += 1
        cluster.call(lambda: leader.balancer.round(history))
    return rounds
