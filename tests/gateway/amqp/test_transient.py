"""Transient messages in durable queues, by RabbitMQ's, Kafka's and Pulsar's own clients: no disk, no surprise."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pika
import pulsar
import pytest
from confluent_kafka import Consumer

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process


def connected(weir: UpProcess) -> Any:
    host, _, port = weir.amqp.rpartition(":")
    return pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))


@pytest.fixture
def channel(weir: UpProcess) -> Iterator[Any]:
    connection = connected(weir)
    found = connection.channel()
    found.confirm_delivery()
    yield found
    if connection.is_open:
        connection.close()


def publish(channel: Any, queue: str, *bodies: str) -> None:
    """Capital letters are persistent."""
    for body in bodies:
        mode = 2 if body.isupper() else 1
        properties = pika.BasicProperties(delivery_mode=mode)
        channel.basic_publish("", queue, body.encode(), properties, mandatory=True)


def taken(channel: Any, queue: str, count: int) -> str:
    """All that is ready, which is so much."""
    found = ""
    for left in reversed(range(count)):
        method, _, body = channel.basic_get(queue, auto_ack=True)
        found += body.decode()
        assert method.message_count == left
    assert channel.basic_get(queue)[0] is None
    return found


def stored_bytes(weir: UpProcess, queue: str) -> int:
    """What the queue's topic has on disks."""
    with urlopen(f"{weir.http_url}/admin/v2/persistent/public/default/{queue}/stats") as answer:
        return int(json.load(answer)["storageSize"])


def test_a_mebibyte_of_them_is_published_consumed_and_acknowledged_without_a_disk(
    weir: UpProcess, channel: Any, name: str
) -> None:
    channel.queue_declare(name, durable=True)
    for _ in range(256):
        channel.basic_publish("", name, b"x" * 4096, mandatory=True)
    assert channel.queue_declare(name, passive=True).method.message_count == 256
    assert stored_bytes(weir, name) < 4096
    channel.basic_publish("", name, b"kept", pika.BasicProperties(delivery_mode=2), mandatory=True)
    for _ in range(256):
        assert len(channel.basic_get(name, auto_ack=True)[2]) == 4096
    assert channel.basic_get(name, auto_ack=True)[2] == b"kept"
    assert 0 < stored_bytes(weir, name) < 4096


def kafka_reads(weir: UpProcess, topic: str, count: int) -> Iterator[str]:
    """As somebody who was never here; goes on where it stopped."""
    consumer = Consumer(
        {
            "bootstrap.servers": weir.addresses["kafka"],
            "group.id": f"g-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:
        for _ in range(count):
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            yield message.value().decode()
    finally:
        consumer.close()


def test_kafkas_consumers_get_what_is_in_memory_and_all_that_comes_later(
    weir: UpProcess, channel: Any, name: str
) -> None:
    channel.queue_declare(name, durable=True)
    publish(channel, name, "a", "B", "c")
    reading = kafka_reads(weir, name, 5)
    assert [next(reading) for _ in range(3)] == ["a", "B", "c"]
    assert taken(channel, name, 3) == "aBc"
    publish(channel, name, "d", "e")
    assert taken(channel, name, 2) == "de"
    assert list(reading) == ["d", "e"]


def test_those_who_come_late_see_what_is_in_the_log_and_stop_at_no_gap(
    weir: UpProcess, channel: Any, name: str, tmp_path: Path
) -> None:
    channel.queue_declare(name, durable=True)
    publish(channel, name, "a", "b", "C", "d", "E", "f")
    assert taken(channel, name, 6) == "abCdEf"
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "log"))
    client = pulsar.Client(f"pulsar://{weir.addresses['pulsar']}", logger=quiet, operation_timeout_seconds=60)
    try:
        reader = client.create_reader(f"persistent://public/default/{name}", pulsar.MessageId.earliest)
        seen = []
        while reader.has_message_available():
            seen.append(reader.read_next(60_000).data().decode())
        assert seen == ["C", "E"]
        publish(channel, name, "g")
        assert reader.read_next(60_000).data() == b"g"
    finally:
        client.close()
    assert list(kafka_reads(weir, name, 3)) == ["C", "E", "g"]


def test_a_server_that_is_killed_loses_them_and_nothing_else(weir: UpProcess, name: str) -> None:
    channel = connected(weir).channel()
    channel.confirm_delivery()
    channel.queue_declare(name, durable=True)
    publish(channel, name, "a", "B", "c", "D", "e")
    assert channel.queue_declare(name, passive=True).method.message_count == 5
    weir.kill()
    weir.start()
    channel = connected(weir).channel()
    assert channel.queue_declare(name, passive=True).method.message_count == 2
    assert taken(channel, name, 2) == "BD"
