"""Messages of the largest sizes: 16 MiB unless more is configured, 128 MiB at the most; read by every protocol."""

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack
from typing import Any

import pika
import pulsar
import pytest
from confluent_kafka import Consumer
from kafka import KafkaConsumer
from pika.adapters.blocking_connection import BlockingChannel
from tests.gateway.amqp.behaviour.raw import Raw

from weir.testing.processes.up import UpProcess
from weir.wire.amqp.frames import HEADER
from weir.wire.amqp.methods import basic, encode_method
from weir.wire.amqp.properties import Properties, encode_properties

pytestmark = [pytest.mark.process, pytest.mark.slow]
MIB = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A Weir that takes messages as large as any may be."""
    up = UpProcess(tmp_path_factory.mktemp("large"), "limits.message_bytes=128MiB")
    yield up.start()
    up.close()


@pytest.fixture
def opened() -> Iterator[Callable[[UpProcess], BlockingChannel]]:
    connections = []

    def open_channel(up: UpProcess) -> BlockingChannel:
        host, _, port = up.amqp.rpartition(":")
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), stack_timeout=60))
        connections.append(connection)
        channel = connection.channel()
        channel.confirm_delivery()
        return channel

    yield open_channel
    for connection in connections:
        if connection.is_open:
            connection.close()


def body_of(size: int) -> bytes:
    """Bytes that no compression makes smaller."""
    return random.Random(size).randbytes(MIB) * (size // MIB) + bytes(size % MIB)


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def publish(channel: BlockingChannel, queue: str, body: bytes) -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


@pytest.mark.parametrize("options", [{"durable": True}, {"exclusive": True}], ids=["durable", "memory"])
def test_messages_have_up_to_16_mib_unless_configured(
    weir: UpProcess, opened: Callable[[UpProcess], BlockingChannel], name: str, options: dict[str, Any]
) -> None:
    channel = opened(weir)
    channel.queue_declare(name, **options)
    body = body_of(16 * MIB)
    publish(channel, name, body)
    assert channel.basic_get(name, auto_ack=True)[2] == body
    publish(channel, name, body)
    _, _, consumed = next(channel.consume(name, auto_ack=True))
    assert consumed == body
    channel.cancel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        publish(channel, name, body + b"x")
    limit = 16 * MIB
    text = f"PRECONDITION_FAILED - message size {limit + 1} is larger than configured max size {limit}"
    assert (refused.value.reply_code, refused.value.reply_text) == (406, text)
    again = channel.connection.channel()  # the connection goes on
    assert again.queue_declare(name, passive=True).method.message_count == 0
    again.queue_delete(name)


def test_a_message_of_128_mib_is_read_by_all_clients_and_after_a_crash(
    large: UpProcess, opened: Callable[[UpProcess], BlockingChannel], name: str, tmp_path: Path
) -> None:
    body = body_of(128 * MIB)
    channel = opened(large)
    channel.queue_declare(name, durable=True)
    publish(channel, name, body)
    publish(channel, name, b"small")
    channel.connection.close()
    large.kill()
    large.start()

    pulsar_client = pulsar.Client(
        large.pulsar_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "log"))
    )
    reader = pulsar_client.create_reader(f"persistent://public/default/{name}", pulsar.MessageId.earliest)
    found = [reader.read_next(60_000).data() for _ in range(2)]
    assert [digest(one) for one in found] == [digest(body), digest(b"small")]
    pulsar_client.close()

    told = {"bootstrap.servers": large.kafka, "group.id": name, "auto.offset.reset": "earliest"}
    consumer = Consumer(told | {"fetch.message.max.bytes": 200_000_000, "receive.message.max.bytes": 300_000_000})
    consumer.subscribe([name])
    kept = []
    while len(kept) < 2:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        kept.append(message.value())
    consumer.close()
    assert [digest(one) for one in kept] == [digest(body), digest(b"small")]

    channel = opened(large)
    assert digest(channel.basic_get(name, auto_ack=True)[2]) == digest(body)
    assert channel.basic_get(name, auto_ack=True)[2] == b"small"


def test_kafkas_defaults_read_what_amqp_takes_by_default(
    weir: UpProcess, opened: Callable[[UpProcess], BlockingChannel], name: str, tmp_path: Path
) -> None:
    body = body_of(16 * MIB)
    channel = opened(weir)
    channel.queue_declare(name, durable=True)
    publish(channel, name, body)
    consumer = KafkaConsumer(
        name, bootstrap_servers=weir.kafka, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    assert next(consumer).value == body
    consumer.close()
    client = pulsar.Client(
        weir.pulsar_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "log"))
    )
    reader = client.create_reader(f"persistent://public/default/{name}", pulsar.MessageId.earliest)
    assert reader.read_next(60_000).data() == body
    client.close()


def test_bodies_that_are_announced_and_not_sent_keep_nobody_out(
    large: UpProcess, opened: Callable[[UpProcess], BlockingChannel], name: str
) -> None:
    channel = opened(large)
    channel.queue_declare(name, durable=True)
    before = rss_bytes(large.pid)
    silent = []
    for _ in range(50):
        raw = publisher(large.amqp)
        raw.send_bytes(announced(name, 128 * MIB))
        silent.append(raw)
    body = body_of(32 * MIB)
    publish(channel, name, body)
    assert channel.basic_get(name, auto_ack=True)[2] == body
    assert rss_bytes(large.pid) - before < 1024 * MIB
    for raw in silent:
        raw.close()


def publisher(address: str) -> Raw:
    raw = Raw(address)
    raw.open()
    raw.channel()
    return raw


def announced(queue: str, size: int) -> bytes:
    """A publish without its body."""
    properties = encode_properties(Properties(delivery_mode=2))
    header = encode_frame(HEADER, 1, pack(">HHQ", 60, 0, size) + properties)
    return encode_method(1, basic.Publish("", queue)) + header


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    return pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096
