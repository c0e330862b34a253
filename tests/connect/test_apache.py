"""Connectors beside a real Kafka and a real Pulsar, from Maven: there and back, every record counted."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from bench import apache, kafka_peer
from bench.brokers import ApacheBroker, ApacheKafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from .conftest import Weir

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.xdist_group("connect"), pytest.mark.timeout(600)]

_ATTEMPTS = 300
_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_HEADERS = [("h", b"v"), ("n", None)]


def patiently(work: Callable[[], Any], *failures: type[BaseException]) -> Any:
    """What it answers as soon as the server is there; each attempt waits by itself."""
    for _ in range(_ATTEMPTS):
        try:
            return work()
        except failures:
            continue
    raise AssertionError("the server did not come")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if why := kafka_peer.missing():
        pytest.skip(why)
    folder: Path = tmp_path_factory.mktemp("kafka")
    broker = ApacheKafka(folder, sync=False)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.url, "log_level": 0})
        patiently(lambda: admin.list_topics(timeout=2), KafkaException)
        yield broker.url
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def pulsar_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if why := apache.missing():
        pytest.skip(why)
    broker = ApacheBroker(tmp_path_factory.mktemp("pulsar"))
    broker.start()
    try:
        with_producer = lambda: client_of(broker.url).create_producer("first")  # noqa: E731
        patiently(with_producer, pulsar.PulsarException)
        yield broker.url
    finally:
        broker.stop()


def client_of(url: str) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(url, logger=quiet, operation_timeout_seconds=5)


def stored(servers: str, topic: str) -> list[tuple[Any, ...]]:
    """All committed records, as Kafka's own client sees them."""
    settings = {"bootstrap.servers": servers, "group.id": "none", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    found: list[tuple[Any, ...]] = []
    try:
        left = sorted(consumer.list_topics(topic, 60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, at, 0) for at in left])
        while left:
            message = consumer.poll(60)
            assert message is not None, f"{topic} cannot be read"
            if message.error() is None:
                about = (message.partition(), message.key(), message.value(), message.timestamp()[1])
                found.append((*about, tuple(message.headers() or ())))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.remove(message.partition())
        return sorted(found, key=repr)
    finally:
        consumer.close()


def test_topics_of_an_apache_kafka_come_whatever_they_are_compressed_by_and_go_back(
    weir: Weir, kafka: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
    admin.create_topics([NewTopic(unique, 3)])[unique].result(60)
    for at, compression in enumerate(_COMPRESSIONS):
        producer = Producer({"bootstrap.servers": kafka, "compression.type": compression, "linger.ms": 50})
        for number in range(20):
            key, value = b"%d" % number, b"%d-%d" % (at, number) * 20
            producer.produce(
                unique, value, key, number % 3, timestamp=1_700_000_000_000 + number, headers=_HEADERS
            )
        assert producer.flush(60) == 0
    deciding = Producer({"bootstrap.servers": kafka, "transactional.id": unique})
    deciding.init_transactions(60)
    for value, end in ((b"no", deciding.abort_transaction), (b"yes", deciding.commit_transaction)):
        deciding.begin_transaction()
        deciding.produce(unique, value, b"t", 0)
        deciding.flush(60)
        end(60)
    there = stored(kafka, unique)
    assert len(there) == 101
    source = {"type": "kafka", "bootstrap_servers": kafka, "topics": [unique], "prefix": "in.", "batch": 30}
    for steps in (2, 0):  # the first runner ends in the middle
        with weir.task(unique, {"source": source}) as running:
            if steps:
                running.steps(steps)
                assert 0 < len(weir.messages(f"in.{unique}")) < 101
            else:
                running.until(lambda: len(weir.messages(f"in.{unique}")) == 101)
                running.steps()
    assert stored(weir.up.kafka, f"in.{unique}") == there
    back = f"{unique}-back"
    said = {
        "topic": f"in.{unique}",
        "sink": {"type": "kafka", "bootstrap_servers": kafka, "prefix": "back.", "batch": 30},
    }
    with weir.task(back, said) as running:
        monkeypatch.setattr(running.task, "done", lambda piece: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            running.steps()
    with weir.task(back, said) as running:
        running.until(lambda: running.task.status.lag == 0)
        running.steps()
    assert stored(kafka, f"back.in.{unique}") == there


def test_topics_of_an_apache_pulsar_come_and_go_back(weir: Weir, pulsar_url: str, unique: str) -> None:
    client = client_of(pulsar_url)
    producer = client.create_producer(unique, batching_max_publish_delay_ms=5)
    for number in range(50):
        about: dict[str, Any] = {"properties": {"p": str(number)}, "partition_key": f"k{number % 3}"}
        about["event_timestamp"] = 1_700_000_000_000 + number
        producer.send_async(b"v%d" % number, lambda *_: None, **about)
    producer.flush()
    source = {"type": "pulsar", "service_url": pulsar_url, "topics": [unique], "batch": 20}
    for steps in (1, 0):
        with weir.task(unique, {"source": source}) as running:
            if steps:
                running.steps(steps)
            else:
                running.until(lambda: len(weir.messages(unique)) >= 50)
                running.steps()
    found = [one for _, one in weir.messages(unique)]
    assert [bytes(one.value or b"") for one in found] == [b"v%d" % number for number in range(50)]
    assert [bytes(one.key or b"") for one in found] == [b"k%d" % (number % 3) for number in range(50)]
    assert [one.timestamp for one in found] == [1_700_000_000_000 + number for number in range(50)]
    prefix = "persistent://public/default/back-"
    said = {"topic": unique, "sink": {"type": "pulsar", "service_url": pulsar_url, "prefix": prefix}}
    with weir.task(f"{unique}-back", said) as running:
        running.until(lambda: running.task.status.lag == 0)
    reader = client.create_reader(f"{prefix}{unique}", pulsar.MessageId.earliest)
    seen = [reader.read_next(60_000) for _ in range(50)]
    assert not reader.has_message_available()
    assert [one.data() for one in seen] == [b"v%d" % number for number in range(50)]
    assert [one.properties()["p"] for one in seen] == [str(number) for number in range(50)]
    assert [one.partition_key() for one in seen] == [f"k{number % 3}" for number in range(50)]
    assert [one.event_timestamp() for one in seen] == [1_700_000_000_000 + number for number in range(50)]
    client.close()
