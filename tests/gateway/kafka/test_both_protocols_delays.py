"""Delays and cancelling by header, or by Pulsar's own means: seen in their time by clients of both protocols."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from time import time
from typing import Any
from urllib.request import urlopen

import pulsar
import pytest
from confluent_kafka import KafkaError, Producer

from weir.testing.processes.both_clients import KAFKA_CODECS, PATIENCE_S, Kafka, receive, subscribe, take
from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def client(weir: UpProcess) -> Iterator[pulsar.Client]:
    found = pulsar.Client(weir.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield found
    found.close()


@pytest.fixture
def kafka(bootstrap: str) -> Iterator[Kafka]:
    found = Kafka(bootstrap)
    yield found
    found.close()


def delayed(value: bytes, delay_ms: int, *more: tuple[str, bytes]) -> dict[str, Any]:
    return {"value": value, "headers": [("weir-deliver-after", str(delay_ms).encode()), *more]}


def test_a_delayed_record_is_seen_in_its_time_by_both_in_every_compression(
    kafka: Kafka, client: pulsar.Client, topic: str
) -> None:
    sent_ms = int(time() * 1000)
    due_ms = sent_ms + 1500
    for codec in KAFKA_CODECS:  # they wait together
        rows = [
            {"value": b"late" * 20, "key": "k", "headers": [("weir-deliver-at", str(due_ms).encode())]},
            {"value": b"now"},
            delayed(b"soon", 1000),
        ]
        kafka.send(f"{topic}-{codec}", rows, **{"compression.type": codec})
    for codec in KAFKA_CODECS:
        name = f"{topic}-{codec}"
        consumer, reader = subscribe(client, name), kafka.reader(name)
        by_pulsar, by_kafka = {}, {}
        for _ in range(3):
            (message,) = receive(consumer, 1)
            by_pulsar[message.data()] = int(time() * 1000)
            (record,) = take(reader, 1)
            by_kafka[record.value()] = int(time() * 1000)
        assert list(by_pulsar) == list(by_kafka)
        for seen_ms in (by_pulsar, by_kafka):
            assert set(seen_ms) == {b"now", b"soon", b"late" * 20}
            assert seen_ms[b"soon"] >= sent_ms + 1000
            assert seen_ms[b"late" * 20] >= due_ms
        found = kafka.read(name, 3)  # and on history
        assert [(m.offset(), m.value()) for m in found] == list(enumerate(by_kafka))
        late = next(m for m in found if m.value() == b"late" * 20)
        assert (late.key(), late.headers()) == (b"k", [("weir-deliver-at", str(due_ms).encode())])
        consumer.close()


def test_what_pulsar_delays_kafka_sees_in_its_time(kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    reader = kafka.reader(topic)
    sent_ms = int(time() * 1000)
    producer.send(b"late", deliver_after=timedelta(milliseconds=500), partition_key="k")
    producer.send(b"now")
    seen_ms: dict[tuple[bytes | None, bytes], int] = {}
    for _ in range(2):
        (message,) = take(reader, 1)
        seen_ms[message.key(), message.value()] = int(time() * 1000)
    assert sorted(value for _, value in seen_ms) == [b"late", b"now"]
    assert seen_ms[b"k", b"late"] >= sent_ms + 500
    producer.close()


#: Nothing that waits for so long is released while a test runs, however slow the machine.
LONG_MS = 3_600_000


def held(weir: UpProcess, topic: str) -> int:
    """How many messages wait."""
    with urlopen(f"{weir.http_url}/admin/weir/v1/held/persistent/public/default/{topic}/count") as answer:
        return int(json.load(answer)["messages"])


def named(count: int) -> list[dict[str, Any]]:
    return [delayed(b"%d" % n, LONG_MS, ("weir-delay-id", b"order-%d" % n)) for n in range(count)]


def cancelling(*numbers: int) -> list[dict[str, Any]]:
    return [{"value": None, "headers": [("weir-cancel", b"order-%d" % n)]} for n in numbers]


def test_a_delayed_record_can_be_cancelled(
    weir: UpProcess, kafka: Kafka, client: pulsar.Client, topic: str
) -> None:
    consumer = subscribe(client, topic)
    kafka.send(topic, named(3))
    assert held(weir, topic) == 3
    kafka.send(topic, cancelling(1))
    assert held(weir, topic) == 2
    kafka.send(topic, [*cancelling(0, 7, 2), {"value": b"end"}])
    assert held(weir, topic) == 0
    assert [m.data() for m in receive(consumer, 1)] == [b"end"]
    assert [(m.offset(), m.value()) for m in kafka.read(topic, 1)] == [(0, b"end")]
    consumer.close()


def test_an_idempotent_producer_delays_and_cancels_among_other_records(
    weir: UpProcess, kafka: Kafka, client: pulsar.Client, topic: str
) -> None:
    consumer = subscribe(client, topic)
    rows = [{"value": b"a"}, *named(2), {"value": b"b"}, *cancelling(0), delayed(b"soon", 300), {"value": b"c"}]
    kafka.send(topic, rows, **{"enable.idempotence": True})
    assert sorted(m.data() for m in receive(consumer, 4)) == [b"a", b"b", b"c", b"soon"]
    assert held(weir, topic) == 1
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for row in (*cancelling(1), delayed(b"again", 300), {"value": b"d"}):
        producer.produce(topic, **row)  # each in a request of its own
        assert producer.flush(PATIENCE_S) == 0
    assert sorted(m.data() for m in receive(consumer, 2)) == [b"again", b"d"]
    assert held(weir, topic) == 0
    assert sorted(m.value() for m in kafka.read(topic, 6)) == [b"a", b"again", b"b", b"c", b"d", b"soon"]
    consumer.close()


def test_a_delay_that_makes_no_sense_is_refused(bootstrap: str, topic: str) -> None:
    refused: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(
        topic,
        value=b"x",
        headers=[("weir-deliver-at", b"soon")],
        on_delivery=lambda failure, _: refused.append(failure),
    )
    assert producer.flush(PATIENCE_S) == 0
    assert refused[0].code() == KafkaError.INVALID_RECORD


def test_what_was_delayed_and_named_is_cancelled_after_a_crash(
    start_weir: Callable[..., UpProcess], topic: str
) -> None:
    weir = start_weir()
    part = f"{topic}-partition-0"
    Kafka(weir.kafka).send(topic, named(3))
    assert held(weir, part) == 3
    weir.kill()
    weir.start()
    kafka = Kafka(weir.kafka)
    kafka.send(topic, [*cancelling(2), {"value": b"now"}])
    assert held(weir, part) == 2
    assert [m.value() for m in kafka.read(topic, 1)] == [b"now"]
    kafka.close()
