"""One topic, both protocols: what Kafka's clients write Pulsar's read, and the other way round, live and later."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from time import monotonic, sleep, time
from typing import Any
from urllib.request import urlopen

import pulsar
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from weir.cli.main import cli
from weir.testing.up import UpProcess

pytestmark = pytest.mark.process

PATIENCE_S = 30
PATIENCE_MS = PATIENCE_S * 1000
KAFKA_CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PULSAR_CODECS = ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]
EVENT_MS = 1_600_000_000_000


@pytest.fixture(scope="module")
def client(weir: UpProcess) -> Iterator[pulsar.Client]:
    found = pulsar.Client(weir.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield found
    found.close()


@pytest.fixture
def kafka(bootstrap: str) -> Iterator["Kafka"]:
    found = Kafka(bootstrap)
    yield found
    found.close()


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


# --- Kafka to Pulsar ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", KAFKA_CODECS)
def test_what_kafka_sends_pulsar_reads_live_and_later(
    kafka: Kafka, client: pulsar.Client, topic: str, codec: str
) -> None:
    live = subscribe(client, topic, "live")
    kafka.send(topic, some_rows(), **{"compression.type": codec})
    later = subscribe(client, topic, "later")
    for consumer in (live, later):
        found = receive(consumer, 5)
        assert [m.data() for m in found] == [row["value"] for row in some_rows()]
        assert [m.partition_key() for m in found] == [f"key-{n}" for n in range(5)]
        assert [m.event_timestamp() for m in found] == [EVENT_MS + n for n in range(5)]
        assert found[3].properties() == {"n": "3", "raw": "/wA=", "weir-base64-headers": '["raw"]'}
        assert {m.message_id().entry_id() for m in found} == {0}
        assert [m.message_id().batch_index() for m in found] == list(range(5))
        consumer.close()


def test_nulls_and_keys_of_any_bytes(kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    kafka.send(
        topic,
        [
            {"key": None, "value": b"no key"},
            {"key": b"gone", "value": None},
            {"key": b"\xff\xfe", "value": b"raw key"},
            {"key": b"", "value": b""},
            {"key": "größe", "value": b"text", "headers": [("null", None), ("empty", b"")]},
        ],
    )
    consumer = subscribe(client, topic)
    found = receive(consumer, 5)
    assert [m.data() for m in found] == [b"no key", b"", b"raw key", b"", b"text"]
    assert [m.partition_key() for m in found] == ["", "gone", "//4=", "", "größe"]
    assert found[4].properties() == {"null": "", "empty": "", "weir-null-headers": '["null"]'}
    consumer.close()


def test_messages_of_a_kafka_batch_are_acknowledged_one_by_one(
    kafka: Kafka, client: pulsar.Client, topic: str
) -> None:
    kafka.send(topic, [{"value": b"%d" % n} for n in range(6)])
    kind = pulsar.ConsumerType.Shared
    first = subscribe(client, topic, consumer_type=kind, batch_index_ack_enabled=True)
    for message in receive(first, 6, ack=False):
        if message.data() in (b"0", b"2", b"3"):
            first.acknowledge(message)
    first.close()
    second = subscribe(client, topic, consumer_type=kind, batch_index_ack_enabled=True)
    assert [m.data() for m in receive(second, 3)] == [b"1", b"4", b"5"]
    kafka.send(topic, [{"value": b"last"}])
    assert [m.data() for m in receive(second, 1)] == [b"last"]
    second.close()


def test_each_key_of_a_kafka_batch_has_one_consumer(kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    kind = pulsar.ConsumerType.KeyShared
    consumers = [subscribe(client, topic, consumer_type=kind, consumer_name=f"c{n}") for n in range(2)]
    rows = [{"key": f"key-{n % 8}", "value": b"%d" % n} for n in range(80)]
    kafka.send(topic, rows)
    owners: dict[str, set[int]] = {}
    values: dict[str, list[int]] = {}
    deadline = monotonic() + PATIENCE_S
    while sum(map(len, values.values())) < 80:
        assert monotonic() < deadline, values
        for number, consumer in enumerate(consumers):
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            owners.setdefault(message.partition_key(), set()).add(number)
            values.setdefault(message.partition_key(), []).append(int(message.data()))
    assert all(len(numbers) == 1 for numbers in owners.values()), owners
    assert set().union(*owners.values()) == {0, 1}
    assert values == {f"key-{n}": list(range(n, 80, 8)) for n in range(8)}
    for consumer in consumers:
        consumer.close()


def test_a_reader_begins_within_a_kafka_batch_and_knows_its_end(
    kafka: Kafka, client: pulsar.Client, topic: str
) -> None:
    kafka.send(topic, [{"value": b"%d" % n} for n in range(5)])
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(PATIENCE_MS))
    assert [m.data() for m in found] == [b"0", b"1", b"2", b"3", b"4"]
    within = client.create_reader(topic, found[2].message_id())
    assert [within.read_next(PATIENCE_MS).data() for _ in range(2)] == [b"3", b"4"]
    assert not within.has_message_available()
    reader.close()
    within.close()


def test_a_table_view_holds_what_kafka_wrote(kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    kafka.send(topic, [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}, {"key": "a", "value": b"3"}])
    view = client.create_table_view(topic)
    assert (view.get("a"), view.get("b")) == (b"3", b"2")
    view.close()


def test_a_peek_shows_kafkas_records(weir: UpProcess, kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    kafka.send(topic, some_rows(3), **{"compression.type": "zstd"})
    shown = weir_cli(weir, "peek", topic, "s", "-n", "3", "--json")
    assert [json.loads(line)["key"] for line in shown.splitlines()] == ["key-0", "key-1", "key-2"]
    assert receive(consumer, 3)[2].partition_key() == "key-2"
    consumer.close()


def weir_cli(weir: UpProcess, *words: str) -> str:
    """What a command prints."""
    done = CliRunner().invoke(cli, [*words, "--url", weir.http_url])
    assert done.exit_code == 0, done.output
    return str(done.stdout)


# --- Pulsar to Kafka ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", [True, False], ids=["batches", "singles"])
@pytest.mark.parametrize("codec", PULSAR_CODECS)
def test_what_pulsar_sends_kafka_reads_live_and_later(
    kafka: Kafka, client: pulsar.Client, topic: str, codec: str, batching: bool
) -> None:
    producer = client.create_producer(
        topic,
        compression_type=getattr(pulsar.CompressionType, codec),
        batching_enabled=batching,
        batching_max_publish_delay_ms=100,
    )
    live = kafka.reader(topic)
    before_ms = int(time() * 1000) - 1
    for n in range(5):
        more: dict[str, Any] = {"event_timestamp": EVENT_MS + n} if n else {}
        producer.send_async(
            b"value %d " % n * 20, lambda *_: None, partition_key=f"key-{n}", properties={"n": str(n)}, **more
        )
    producer.flush()
    for found in (take(live, 5), kafka.read(topic, 5)):
        assert [m.offset() for m in found] == list(range(5))
        assert [m.value() for m in found] == [b"value %d " % n * 20 for n in range(5)]
        assert [m.key() for m in found] == [f"key-{n}".encode() for n in range(5)]
        assert [m.headers() for m in found] == [[("n", str(n).encode())] for n in range(5)]
        assert [m.timestamp()[1] for m in found[1:]] == [EVENT_MS + n for n in range(1, 5)]
        assert found[0].timestamp()[1] >= before_ms  # it names no event: when it was published
    producer.close()


def test_a_kafka_reader_begins_within_a_pulsar_batch(kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for n in range(5):
        producer.send_async(b"%d" % n, lambda *_: None)
    producer.flush()
    assert [(m.offset(), m.value()) for m in kafka.read(topic, 2, offset=3)] == [(3, b"3"), (4, b"4")]
    producer.close()


# --- together -------------------------------------------------------------------------------------------------


def test_both_see_one_order_whoever_wrote(kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    expected = []
    for turn in range(4):
        kafka.send(topic, [{"value": b"kafka %d.%d" % (turn, n)} for n in range(3)])
        producer.send(b"pulsar %d" % turn)
        expected += [b"kafka %d.%d" % (turn, n) for n in range(3)] + [b"pulsar %d" % turn]
    assert [m.data() for m in receive(consumer, 16)] == expected
    found = kafka.read(topic, 16)
    assert [m.value() for m in found] == expected
    assert [m.offset() for m in found] == list(range(16))
    consumer.close()
    producer.close()


def test_partitions_are_the_same_partitions(kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    kafka.create(topic, 3)
    assert len(client.get_topic_partitions(topic)) == 3
    kafka.send(topic, [{"value": b"k%d" % n, "partition": n % 3} for n in range(6)])
    producer = client.create_producer(
        topic,
        message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, partitions: int(message.properties()["to"]),
        batching_enabled=False,
    )
    for n in range(6):
        producer.send(b"p%d" % n, properties={"to": str(n % 3)})
    producer.close()
    consumer = subscribe(client, topic)
    by_partition: dict[int, list[bytes]] = {}
    for message in receive(consumer, 12):
        by_partition.setdefault(message.message_id().partition(), []).append(message.data())
    consumer.close()
    expected = {n: [b"k%d" % n, b"k%d" % (n + 3), b"p%d" % n, b"p%d" % (n + 3)] for n in range(3)}
    assert by_partition == expected
    for n in range(3):
        found = kafka.read(topic, 4, partition=n)
        assert [m.value() for m in found] == expected[n]
        assert [m.offset() for m in found] == [0, 1, 2, 3]


def compact(weir: UpProcess, topic: str) -> None:
    """Compact the topic, and wait until that is done."""
    weir_cli(weir, "topics", "compact", topic)
    path = f"{weir.http_url}/admin/v2/persistent/public/default/{topic}/compaction"
    deadline = monotonic() + PATIENCE_S
    while json.load(urlopen(path))["status"] != "SUCCESS":
        assert monotonic() < deadline, "it is not compacted"
        sleep(0.02)


def test_compaction_sees_the_keys_of_both(
    weir: UpProcess, kafka: Kafka, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"old", partition_key="a")
    kafka.send(topic, [{"key": "b", "value": b"old"}, {"key": "a", "value": b"new"}, {"key": "c", "value": b"x"}])
    producer.send(b"new", partition_key="b")
    kafka.send(topic, [{"key": "c", "value": None}, {"key": "d", "value": b"only"}])
    compact(weir, topic)
    producer.send(b"last", partition_key="z")
    producer.close()
    found: list[tuple[str, bytes]] = []
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    while not found or found[-1] != ("z", b"last"):
        message = reader.read_next(PATIENCE_MS)
        found.append((message.partition_key(), message.data()))
    reader.close()
    assert found == [("a", b"new"), ("b", b"new"), ("d", b"only"), ("z", b"last")]


def test_a_topic_that_compacts_itself_keeps_the_latest_of_both_at_their_offsets(
    weir: UpProcess, kafka: Kafka, client: pulsar.Client, topic: str
) -> None:
    kafka.create(topic, 1, {"cleanup.policy": "compact"})
    rows = [{"key": f"k{n % 3}", "value": b"kafka %d" % n} for n in range(5)]
    kafka.send(topic, rows, **{"compression.type": "lz4"})
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for n in range(4):
        producer.send_async(b"pulsar %d" % n, lambda *_: None, partition_key=f"k{1 + n % 3}")
    producer.flush()
    producer.send(b"end", partition_key="end")  # the last batch is left as it is
    producer.close()
    wanted = [
        (3, b"k0", b"kafka 3"),
        (6, b"k2", b"pulsar 1"),
        (7, b"k3", b"pulsar 2"),
        (8, b"k1", b"pulsar 3"),
        (9, b"end", b"end"),
    ]
    deadline = monotonic() + PATIENCE_S
    found: list[Any] = []
    while found != wanted:  # one that it had begun by itself may have seen only some of it
        assert monotonic() < deadline, found
        compact(weir, topic)
        found = [(m.offset(), m.key(), m.value()) for m in kafka.read(topic, 5)]


def test_pulsar_sees_what_a_kafka_transaction_decided(kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"id-{topic}"})
    producer.init_transactions(PATIENCE_S)
    for turn, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for n in range(3):
            producer.produce(topic, b"%d.%d" % (turn, n))
        if commit:
            producer.commit_transaction(PATIENCE_S)
        else:
            assert producer.flush(PATIENCE_S) == 0
            producer.abort_transaction(PATIENCE_S)
    found = receive(consumer, 6)
    assert [m.data() for m in found] == [b"0.0", b"0.1", b"0.2", b"2.0", b"2.1", b"2.2"]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read = []
    while reader.has_message_available():  # a marker is no message
        read.append(reader.read_next(PATIENCE_MS).data())
    assert read == [m.data() for m in found]
    reader.close()
    consumer.close()


async def test_the_other_clients_of_kafka_agree(bootstrap: str, client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    producer.send(b"from pulsar", partition_key="k", properties={"a": "b"}, event_timestamp=EVENT_MS)
    python = KafkaProducer(bootstrap_servers=bootstrap, compression_type="snappy")
    python.send(topic, b"from kafka-python " * 10, key=b"k", headers=[("a", b"b")], timestamp_ms=EVENT_MS).get(
        PATIENCE_S
    )
    python.close()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type="gzip") as aio:
        await aio.send_and_wait(
            topic, b"from aiokafka " * 10, key=b"k", headers=[("a", b"b")], timestamp_ms=EVENT_MS
        )
    expected = [b"from pulsar", b"from kafka-python " * 10, b"from aiokafka " * 10]
    found = receive(consumer, 3)
    assert [m.data() for m in found] == expected
    assert {(m.partition_key(), str(m.properties()), m.event_timestamp()) for m in found} == {
        ("k", "{'a': 'b'}", EVENT_MS)
    }
    records: list[Any] = []
    deadline = monotonic() + PATIENCE_S
    with closing(KafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")) as reader:
        while len(records) < 3:
            assert monotonic() < deadline, records
            for batch in reader.poll(1000).values():
                records += batch
    async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as aio_reader:
        records += [await aio_reader.getone() for _ in range(3)]
    assert [record.value for record in records] == expected * 2
    assert {(record.key, tuple(record.headers), record.timestamp) for record in records} == {
        (b"k", (("a", b"b"),), EVENT_MS)
    }
    producer.close()
    consumer.close()


# --- delays ---------------------------------------------------------------------------------------------------


def delayed(value: bytes, delay_ms: int, *more: tuple[str, bytes]) -> dict[str, Any]:
    return {"value": value, "headers": [("weir-deliver-after", str(delay_ms).encode()), *more]}


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_delayed_record_is_seen_in_its_time_by_both(
    kafka: Kafka, client: pulsar.Client, topic: str, codec: str
) -> None:
    consumer = subscribe(client, topic)
    sent_ms = int(time() * 1000)
    due_ms = sent_ms + 1500
    rows = [
        {"value": b"late", "headers": [("weir-deliver-at", str(due_ms).encode())]},
        {"value": b"now"},
        delayed(b"soon", 1000),
    ]
    kafka.send(topic, rows, **{"compression.type": codec})
    seen_ms: dict[bytes, int] = {}
    for _ in range(3):
        (message,) = receive(consumer, 1)
        seen_ms[message.data()] = int(time() * 1000)
    assert set(seen_ms) == {b"now", b"soon", b"late"}
    assert seen_ms[b"soon"] >= sent_ms + 1000
    assert seen_ms[b"late"] >= due_ms
    found = kafka.read(topic, 3)
    assert [(m.offset(), m.value()) for m in found] == list(enumerate(seen_ms))
    late = next(m for m in found if m.value() == b"late")
    assert late.headers() == [("weir-deliver-at", str(due_ms).encode())]
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
