"""Partitions that are added while clients are at work are found and read."""

import asyncio
import time
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from weir.testing.processes.up import UpProcess

TIMEOUT_S = 60
REFRESH_MS = 300
#: Nobody is given up because the machine is slow.
SESSION_MS = 300_000


@pytest.fixture
def admin(weir: UpProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": weir.kafka})


def done(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(TIMEOUT_S)


def send(weir: UpProcess, topic: str, partition: int) -> None:
    """A producer that is new knows of new partitions at once."""
    producer = Producer({"bootstrap.servers": weir.kafka})
    producer.produce(topic, b"in %d" % partition, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def grow(weir: UpProcess, admin: AdminClient, topic: str) -> None:
    done(admin.create_partitions([NewPartitions(topic, 3)]))
    send(weir, topic, 2)


def test_a_group_of_confluent_kafka_is_divided_anew(weir: UpProcess, admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    consumer = Consumer(
        {
            "bootstrap.servers": weir.kafka,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "topic.metadata.refresh.interval.ms": REFRESH_MS,
        }
    )
    try:
        consumer.subscribe([topic])
        send(weir, topic, 0)
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.value() == b"in 0"
        grow(weir, admin, topic)
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert (message.partition(), message.value()) == (2, b"in 2")
    finally:
        consumer.close()


def test_a_group_of_kafka_python_is_divided_anew(weir: UpProcess, admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=weir.kafka,
        group_id=topic,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        metadata_max_age_ms=REFRESH_MS,
    )
    try:
        send(weir, topic, 0)
        assert [message.value for message in _polled(consumer)] == [b"in 0"]
        grow(weir, admin, topic)
        assert [message.value for message in _polled(consumer)] == [b"in 2"]
    finally:
        consumer.close()


def _polled(consumer: Any) -> list[Any]:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        found = consumer.poll(timeout_ms=500)
        if found:
            return [message for messages in found.values() for message in messages]
    return []


def test_a_group_of_aiokafka_is_divided_anew(weir: UpProcess, admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1, 1)]))

    async def main() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=weir.kafka,
            group_id=topic,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            metadata_max_age_ms=REFRESH_MS,
        )
        await consumer.start()
        try:
            await asyncio.to_thread(send, weir, topic, 0)
            assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value == b"in 0"
            await asyncio.to_thread(grow, weir, admin, topic)
            assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value == b"in 2"
        finally:
            await consumer.stop()

    asyncio.run(main())
