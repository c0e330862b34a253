"""Official clients of both protocols, with few words: for tests of what one writes and the other reads."""

from collections.abc import Sequence
from time import monotonic
from typing import Any

import pulsar
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

PATIENCE_S = 30
PATIENCE_MS = PATIENCE_S * 1000
KAFKA_CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PULSAR_CODECS = ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]
EVENT_MS = 1_600_000_000_000


class Kafka:
    """librdkafka, with few words."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._readers: list[Consumer] = []

    def send(self, topic: str, rows: Sequence[dict[str, Any]], **conf: Any) -> list[int]:
        """Send the rows in one batch per partition; answers the offsets that the client was told."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5000, **conf})  # until the flush
        offsets: list[int] = []

        def told(failure: KafkaError | None, message: Any) -> None:
            assert failure is None, failure
            offsets.append(message.offset())

        for row in rows:
            producer.produce(topic, on_delivery=told, **row)
        assert producer.flush(PATIENCE_S) == 0
        assert len(offsets) == len(rows)
        return offsets

    def reader(self, topic: str, partition: int = 0, offset: int = 0) -> Consumer:
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none", "enable.auto.commit": False})
        self._readers.append(reader)
        reader.assign([TopicPartition(topic, partition, offset)])
        return reader

    def read(self, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Any]:
        return take(self.reader(topic, partition, offset), count)

    def create(self, topic: str, partitions: int, configs: dict[str, str] | None = None) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for made in admin.create_topics([NewTopic(topic, partitions, config=configs or {})]).values():
            made.result(PATIENCE_S)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers.clear()


def take(reader: Consumer, count: int) -> list[Any]:
    """So many messages of a Kafka consumer, in order."""
    found: list[Any] = []
    deadline = monotonic() + PATIENCE_S
    while len(found) < count:
        assert monotonic() < deadline, f"{len(found)} of {count} messages came"
        message = reader.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message)
    return found


def receive(consumer: Any, count: int, *, ack: bool = True) -> list[Any]:
    """So many messages of a Pulsar consumer, in order."""
    found = []
    for _ in range(count):
        found.append(consumer.receive(PATIENCE_MS))
        if ack:
            consumer.acknowledge(found[-1])
    return found


def subscribe(client: pulsar.Client, topic: str, name: str = "s", **more: Any) -> Any:
    return client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest, **more)


def some_rows(count: int = 5) -> list[dict[str, Any]]:
    return [
        {
            "key": f"key-{n}",
            "value": f"value {n} ".encode() * 20,
            "headers": [("n", str(n).encode()), ("raw", b"\xff\x00")],
            "timestamp": EVENT_MS + n,
        }
        for n in range(count)
    ]
