"""What one protocol's clients wrote before a restart the other's read after it, out of the ledgers, whole."""

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from weir.testing.processes.both_clients import (
    EVENT_MS,
    KAFKA_CODECS,
    PULSAR_CODECS,
    Kafka,
    receive,
    some_rows,
    subscribe,
)
from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process

ROWS = 5


def sent_by_kafka(kafka: Kafka) -> None:
    kafka.create("parts", 3)
    for codec in KAFKA_CODECS:
        for name in ("orders", f"of-kafka-{codec}"):
            kafka.send(name, some_rows(ROWS), **{"compression.type": codec})
    kafka.send("parts", [{"value": b"%d" % n, "partition": n % 3} for n in range(6)])
    kafka.send("nulls", [{"key": "gone", "value": None}, {"key": b"\xff", "value": b""}])


def sent_by_pulsar(client: pulsar.Client) -> None:
    for codec in PULSAR_CODECS:
        for name in ("orders", f"of-pulsar-{codec}"):
            for batching in (True, False):
                producer = client.create_producer(
                    name,
                    compression_type=getattr(pulsar.CompressionType, codec),
                    batching_enabled=batching,
                    batching_max_publish_delay_ms=1000,
                )
                for n in range(ROWS):
                    producer.send_async(
                        b"value %d " % n * 20,
                        lambda *_: None,
                        partition_key=f"key-{n}",
                        properties={"n": str(n)},
                        event_timestamp=EVENT_MS + n,
                    )
                producer.flush()
                producer.close()


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One that was stopped after everything was sent, and started again."""
    up = UpProcess(tmp_path_factory.mktemp("weir"))
    up.start()
    kafka = Kafka(up.kafka)
    sent_by_kafka(kafka)
    kafka.close()
    client = pulsar.Client(up.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    sent_by_pulsar(client)
    client.close()
    up.stop()
    up.start()
    yield up
    up.close()


@pytest.fixture(scope="module")
def client(weir: UpProcess) -> Iterator[pulsar.Client]:
    found = pulsar.Client(weir.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield found
    found.close()


@pytest.fixture
def kafka(weir: UpProcess) -> Iterator[Kafka]:
    found = Kafka(weir.kafka)
    yield found
    found.close()


def as_pulsar_sees(found: list[Any]) -> list[Any]:
    return [(m.data(), m.partition_key(), m.properties()["n"], m.event_timestamp()) for m in found]


def as_kafka_sees(found: list[Any]) -> list[Any]:
    return [(m.value(), m.key().decode(), dict(m.headers())["n"].decode(), m.timestamp()[1]) for m in found]


WHOLE = [(b"value %d " % n * 20, f"key-{n}", str(n), EVENT_MS + n) for n in range(ROWS)]


@pytest.mark.parametrize("codec", KAFKA_CODECS)
def test_pulsar_reads_what_kafka_wrote(client: pulsar.Client, codec: str) -> None:
    consumer = subscribe(client, f"of-kafka-{codec}")
    found = receive(consumer, ROWS)
    assert as_pulsar_sees(found) == WHOLE
    assert {m.publish_timestamp() for m in found} == {EVENT_MS}
    assert found[0].properties()["weir-base64-headers"] == '["raw"]'
    assert [m.message_id().batch_index() for m in found] == list(range(ROWS))
    consumer.close()


@pytest.mark.parametrize("codec", PULSAR_CODECS)
def test_kafka_reads_what_pulsar_wrote(kafka: Kafka, codec: str) -> None:
    found = kafka.read(f"of-pulsar-{codec}", 2 * ROWS)
    assert as_kafka_sees(found) == WHOLE * 2  # in batches, and one by one
    assert [m.offset() for m in found] == list(range(2 * ROWS))


def test_both_read_one_topic_of_both_in_one_order(kafka: Kafka, client: pulsar.Client) -> None:
    times = len(KAFKA_CODECS) + 2 * len(PULSAR_CODECS)
    assert as_kafka_sees(kafka.read("orders", times * ROWS)) == WHOLE * times
    consumer = subscribe(client, "orders")
    assert as_pulsar_sees(receive(consumer, times * ROWS)) == WHOLE * times
    consumer.close()


def test_partitions_nulls_and_keys_of_any_bytes(kafka: Kafka, client: pulsar.Client) -> None:
    consumer = subscribe(client, "parts")
    found = sorted((m.message_id().partition(), m.data()) for m in receive(consumer, 6))
    assert found == [(n % 3, b"%d" % n) for n in (0, 3, 1, 4, 2, 5)]
    consumer.close()
    consumer = subscribe(client, "nulls")
    assert [(m.partition_key(), m.data()) for m in receive(consumer, 2)] == [("gone", b""), ("/w==", b"")]
    consumer.close()
    assert [(m.key(), m.value()) for m in kafka.read("nulls", 2)] == [(b"gone", None), (b"\xff", b"")]
