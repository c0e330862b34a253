"""Kafka's own clients on a cluster of three brokers: leaders, coordinators, moves and losses."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec
from kafka import KafkaConsumer, KafkaProducer

from weir.gateway.kafka.errors import Code
from weir.model.topics import TopicName
from weir.testing.kafka.stage import Peer, batch_of
from weir.testing.many_brokers import ManyBrokers
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

PARTITIONS = 12
_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def brokers() -> Iterator[ManyBrokers]:
    found = ManyBrokers().start()
    yield found
    found.stop()


@pytest.fixture
def admin(brokers: ManyBrokers) -> AdminClient:
    return AdminClient({"bootstrap.servers": brokers.bootstrap})


@pytest.fixture
def topic(brokers: ManyBrokers, admin: AdminClient) -> str:
    name = f"orders-{uuid4().hex[:8]}"
    done(admin.create_topics([NewTopic(name, PARTITIONS, 1)]))
    return name


def done(futures: dict[Any, Any]) -> dict[Any, Any]:
    return {key: future.result(_TIMEOUT_S) for key, future in futures.items()}


def create(brokers: ManyBrokers, topic: str) -> None:
    """A topic of one partition."""
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    done(admin.create_topics([NewTopic(topic, 1, 1)]))


def part(topic: str, index: int) -> TopicName:
    return TopicName.parse(topic).at(index)


def leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    found = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
    return {index: one.leader for index, one in found.partitions.items()}


def other_than(brokers: ManyBrokers, owner: str) -> str:
    return next(name for name in brokers.running if name != owner)


def test_a_replication_factor_above_the_number_of_brokers_is_refused(
    brokers: ManyBrokers, admin: AdminClient
) -> None:
    name = f"orders-{uuid4().hex[:8]}"
    (refused,) = admin.create_topics([NewTopic(name, 2, 4)]).values()
    with pytest.raises(KafkaException) as caught:
        refused.result(_TIMEOUT_S)
    assert caught.value.args[0].code() == Code.INVALID_REPLICATION_FACTOR
    assert "because only 3 broker(s) are registered" in caught.value.args[0].str()
    done(admin.create_topics([NewTopic(name, 2, 3)]))


def consume(brokers: ManyBrokers, topic: str, count: int) -> dict[int, list[bytes]]:
    """Everything, by partition."""
    consumer = Consumer(
        {"bootstrap.servers": brokers.bootstrap, "group.id": uuid4().hex, "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {}
    try:
        while sum(map(len, found.values())) < count:
            message = consumer.poll(_TIMEOUT_S)
            assert message is not None, f"{sum(map(len, found.values()))} of {count} came"
            assert message.error() is None, message.error()
            found.setdefault(message.partition(), []).append(message.value())
    finally:
        consumer.close()
    return found


# --- who is where -------------------------------------------------------------------------------------------


def test_every_broker_tells_of_all_brokers_and_the_same_leaders(brokers: ManyBrokers, topic: str) -> None:
    told = []
    for name in brokers.running:
        admin = AdminClient({"bootstrap.servers": brokers.address(name)})
        cluster = admin.list_topics(topic, timeout=_TIMEOUT_S)
        nodes = {node.id: f"{node.host}:{node.port}" for node in cluster.brokers.values()}
        told.append((nodes, cluster.controller_id, leaders(admin, topic)))
    assert told[0] == told[1] == told[2]
    nodes, controller, led = told[0]
    assert sorted(nodes.values()) == sorted(brokers.address(name) for name in brokers.running)
    assert nodes[controller] == brokers.address(brokers.leader())
    assert len(set(led.values())) > 1
    for index, leader in led.items():
        assert nodes[leader] == brokers.address(brokers.owner(part(topic, index)))


def test_another_broker_than_the_leader_stores_nothing_and_reads_nothing(brokers: ManyBrokers, topic: str) -> None:
    owner = brokers.owner(part(topic, 0))

    async def ask() -> None:
        peer = await brokers.peer(other_than(brokers, owner))
        peer.produce(topic, batch_of(b"a"))
        assert (await peer.produced()).error_code == Code.NOT_LEADER_OR_FOLLOWER
        peer.fetch((topic, 0, 0), max_wait_ms=60_000)
        assert (await peer.fetched()).error_code == Code.NOT_LEADER_OR_FOLLOWER
        wanted = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        asked = m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])
        told = await peer.call(ApiKey.LIST_OFFSETS, 7, m.ListOffsetsRequest(topics=[asked]))
        assert told.topics[0].partitions[0].error_code == Code.NOT_LEADER_OR_FOLLOWER

    brokers.call(ask)


# --- clients ------------------------------------------------------------------------------------------------


def test_confluent_kafka_produces_to_and_reads_from_all_brokers(brokers: ManyBrokers, topic: str) -> None:
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True})
    for number in range(10 * PARTITIONS):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(_TIMEOUT_S) == 0
    found = consume(brokers, topic, 10 * PARTITIONS)
    assert found == {
        index: [str(number).encode() for number in range(index, 10 * PARTITIONS, PARTITIONS)]
        for index in range(PARTITIONS)
    }


def test_aiokafka_produces_to_and_reads_from_all_brokers(brokers: ManyBrokers, topic: str) -> None:
    async def both() -> set[bytes]:
        producer = AIOKafkaProducer(bootstrap_servers=brokers.bootstrap, enable_idempotence=True)
        await producer.start()
        for number in range(5 * PARTITIONS):
            await producer.send(topic, str(number).encode(), partition=number % PARTITIONS)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=brokers.bootstrap, group_id=uuid4().hex, auto_offset_reset="earliest"
        )
        await consumer.start()
        found: set[bytes] = set()
        async with asyncio.timeout(_TIMEOUT_S):
            while len(found) < 5 * PARTITIONS:
                found.add((await consumer.getone()).value)
        await consumer.stop()
        return found

    assert asyncio.run(both()) == {str(number).encode() for number in range(5 * PARTITIONS)}


def test_kafka_python_produces_to_and_reads_from_all_brokers(brokers: ManyBrokers, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=brokers.bootstrap)
    for number in range(5 * PARTITIONS):
        producer.send(topic, str(number).encode(), partition=number % PARTITIONS)
    producer.flush(_TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=brokers.bootstrap,
        group_id=uuid4().hex,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(_TIMEOUT_S * 1000),
    )
    found: set[bytes] = set()
    for message in consumer:
        found.add(message.value)
        if len(found) == 5 * PARTITIONS:
            break
    consumer.close()
    assert len(found) == 5 * PARTITIONS


def test_a_group_has_members_and_partitions_on_several_brokers(brokers: ManyBrokers, topic: str) -> None:
    group = uuid4().hex
    settings = {
        "bootstrap.servers": brokers.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    members = [Consumer(settings) for _ in range(3)]
    for member in members:
        member.subscribe([topic])
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for number in range(PARTITIONS):
        producer.produce(topic, str(number).encode(), partition=number)
    assert producer.flush(_TIMEOUT_S) == 0
    found: dict[int, bytes] = {}
    shares: set[int] = set()
    looks = int(_TIMEOUT_S / 0.02)
    while looks and (len(found) < PARTITIONS or len(shares) < 3):
        looks -= 1
        for number, member in enumerate(members):
            message = member.poll(0.02)
            if member.assignment() and all(one.assignment() for one in members):
                shares.add(number)
            if message is not None and message.error() is None:
                found[message.partition()] = message.value()
                member.commit(message, asynchronous=False)
    assert found == {number: str(number).encode() for number in range(PARTITIONS)}
    assert shares == {0, 1, 2}
    for member in members:
        member.close()
    after = Consumer(settings)
    committed = after.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], _TIMEOUT_S)
    assert [one.offset for one in committed] == [1] * PARTITIONS
    after.close()


def test_groups_are_listed_and_described_whichever_broker_coordinates_them(
    brokers: ManyBrokers, admin: AdminClient, topic: str
) -> None:
    groups = [f"group-{uuid4().hex[:6]}" for _ in range(6)]
    for group in groups:
        consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
        consumer.close()
    listed = {one.group_id for one in admin.list_consumer_groups().result(_TIMEOUT_S).valid}
    assert listed >= set(groups)
    described = done(admin.describe_consumer_groups(groups))
    assert {one.coordinator.id for one in described.values()} <= set(range(100))

    async def elsewhere() -> set[int]:
        """What brokers answer that do not coordinate it."""
        codes = set()
        for name in brokers.running:
            peer = await brokers.peer(name)
            answer = await peer.call(ApiKey.DESCRIBE_GROUPS, 5, m.DescribeGroupsRequest(groups=groups[:1]))
            codes.add(answer.groups[0].error_code)
        return codes

    assert brokers.call(elsewhere) == {Code.NONE, Code.NOT_COORDINATOR}
    assert done(admin.delete_consumer_groups(groups)) == dict.fromkeys(groups)


def test_a_transaction_over_partitions_of_several_brokers_is_all_or_nothing(
    brokers: ManyBrokers, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "transactional.id": uuid4().hex})
    producer.init_transactions(_TIMEOUT_S)
    for word in (b"aborted", b"committed"):
        producer.begin_transaction()
        for index in range(PARTITIONS):
            producer.produce(topic, word, partition=index)
        if word == b"aborted":
            producer.flush(_TIMEOUT_S)
            producer.abort_transaction(_TIMEOUT_S)
        else:
            producer.commit_transaction(_TIMEOUT_S)
    found = consume(brokers, topic, PARTITIONS)
    assert found == {index: [b"committed"] for index in range(PARTITIONS)}


# --- administrators -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")  # by the client; brokers serve it
def test_topics_are_administered_by_any_broker(brokers: ManyBrokers) -> None:
    first, second, third = (AdminClient({"bootstrap.servers": brokers.address(name)}) for name in brokers.running)
    name = f"managed-{uuid4().hex[:8]}"
    done(first.create_topics([NewTopic(name, 3, replica_assignment=[[node] for node in _numbers(first)])]))
    assert len(leaders(second, name)) == 3
    done(third.create_partitions([NewPartitions(name, 6)]))
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, set_config={"retention.ms": "86400000"})
    done(second.alter_configs([resource]))
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    (found,) = done(first.describe_configs([resource])).values()
    assert found["retention.ms"].value == "86400000"
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for index in range(6):
        producer.produce(name, b"a", partition=index)
    assert producer.flush(_TIMEOUT_S) == 0
    parts = [TopicPartition(name, index, 1) for index in range(6)]
    done(third.delete_records(parts))
    starts = done(first.list_offsets({TopicPartition(name, index): OffsetSpec.earliest() for index in range(6)}))
    assert [one.offset for one in starts.values()] == [1] * 6


def test_a_topic_with_partitions_on_several_brokers_is_deleted_by_any_of_them(
    brokers: ManyBrokers, admin: AdminClient, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for index in range(PARTITIONS):
        producer.produce(topic, b"a", partition=index)
    assert producer.flush(_TIMEOUT_S) == 0
    done(admin.delete_topics([topic]))
    with pytest.raises(KafkaException):
        done(admin.delete_topics([topic]))


def _numbers(admin: AdminClient) -> list[int]:
    return sorted(admin.list_topics(timeout=_TIMEOUT_S).brokers)


# --- moves and losses ---------------------------------------------------------------------------------------


class Traffic:
    """An idempotent producer of numbers for one partition, and a consumer of them, until they are told to stop."""

    def __init__(self, brokers: ManyBrokers, topic: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self._stop = threading.Event()
        self.acknowledged: list[int] = []
        self.failures: list[str] = []
        self.read: list[int] = []
        self._grew = threading.Condition()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_TIMEOUT_S)

    def more(self, count: int = 200) -> None:
        """Wait until so many more were stored and read."""
        with self._grew:
            wanted = (len(self.acknowledged) + count, len(self.read) + count)
            assert self._grew.wait_for(
                lambda: (len(self.acknowledged) >= wanted[0] and len(self.read) >= wanted[1]) or self.failures,
                _TIMEOUT_S,
            )

    def _write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._brokers.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 10,
                "retry.backoff.ms": 20,
                "topic.metadata.refresh.fast.interval.ms": 20,
            }
        )

        def told(error: Any, message: Any) -> None:
            with self._grew:
                if error is None:
                    self.acknowledged.append(int(message.value()))
                else:
                    self.failures.append(str(error))
                self._grew.notify_all()

        number = 0
        while not self._stop.is_set():
            for _ in range(20):
                producer.produce(self._topic, str(number).encode(), partition=0, on_delivery=told)
                number += 1
            producer.poll(0)
            if len(producer) > 500:
                producer.flush(0.05)
        producer.flush(_TIMEOUT_S)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._brokers.bootstrap,
                "group.id": uuid4().hex,
                "auto.offset.reset": "error",
                "topic.metadata.refresh.fast.interval.ms": 20,
                "fetch.error.backoff.ms": 20,
            }
        )
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self._stop.is_set():
            for message in consumer.consume(500, 0.1):
                with self._grew:
                    if message.error() is not None:
                        self.failures.append(str(message.error()))
                    else:
                        self.read.append(int(message.value()))
                    self._grew.notify_all()
        consumer.close()


@pytest.mark.slow
def test_nothing_is_lost_doubled_or_turned_round_while_a_partition_moves(brokers: ManyBrokers) -> None:
    name = f"moving-{uuid4().hex[:8]}"
    create(brokers, name)
    home = brokers.owner(part(name, 0))
    away = other_than(brokers, home)
    with Traffic(brokers, name) as traffic:
        traffic.more()
        for to in (away, home, away, home):
            brokers.move(part(name, 0), to)
            traffic.more()
    assert traffic.failures == []
    assert traffic.acknowledged == list(range(len(traffic.acknowledged)))
    assert traffic.read == list(range(len(traffic.read)))


def test_epochs_grow_with_each_move_and_are_answered_by_where_they_ended(brokers: ManyBrokers) -> None:
    name = f"epochs-{uuid4().hex[:8]}"
    create(brokers, name)
    home = brokers.owner(part(name, 0))
    away = other_than(brokers, home)
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    epochs = []
    for to in (home, away, home):
        brokers.move(part(name, 0), to)
        producer.produce(name, b"a", partition=0)
        assert producer.flush(_TIMEOUT_S) == 0
        epochs.append(brokers.call(lambda to=to: _epoch(brokers, to, name)))
    assert epochs == sorted(set(epochs))

    async def ends() -> list[tuple[int, int]]:
        peer = await brokers.peer(home)
        return [await _epoch_end(peer, name, epoch) for epoch in epochs]

    assert brokers.call(ends) == [(epochs[0], 1), (epochs[1], 2), (epochs[2], 3)]


async def _epoch(brokers: ManyBrokers, at: str, topic: str) -> int:
    answer = await (await brokers.peer(at)).metadata(topic)
    return int(answer.topics[0].partitions[0].leader_epoch)


async def _epoch_end(peer: Peer, topic: str, epoch: int) -> tuple[int, int]:
    kind = m.OffsetForLeaderEpochRequest
    wanted = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    request = kind(topics=[kind.OffsetForLeaderTopic(topic=topic, partitions=[wanted])])
    answer = await peer.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
    told = answer.topics[0].partitions[0]
    return told.leader_epoch, told.end_offset


@pytest.mark.slow
def test_nothing_is_lost_when_a_broker_is() -> None:
    brokers = ManyBrokers().start()
    try:
        name = "orders"
        create(brokers, name)
        with Traffic(brokers, name) as traffic:
            traffic.more()
            brokers.lose(brokers.owner(part(name, 0)))
            traffic.more()
        assert traffic.failures == []
        assert traffic.acknowledged == list(range(len(traffic.acknowledged)))
        assert traffic.read == list(range(len(traffic.read)))
    finally:
        brokers.stop()
