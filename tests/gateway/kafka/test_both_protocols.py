"""One topic, both protocols: what Kafka's clients write Pulsar's read, and the other way round, live and later."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from time import monotonic, sleep, time
from typing import Any
from urllib.request import urlopen

import pulsar
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from click.testing import CliRunner
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer

from weir.cli.main import cli
from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.consumer import Subscribing
from weir.client.pulsar.messages import Outgoing
from weir.runtime.real import real_runtime
from weir.testing.processes.both_clients import (
    EVENT_MS,
    KAFKA_CODECS,
    PATIENCE_MS,
    PATIENCE_S,
    PULSAR_CODECS,
    Kafka,
    receive,
    some_rows,
    subscribe,
    take,
)
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
        assert {m.publish_timestamp() for m in found} == {EVENT_MS}  # a batch has one, that of its first
        assert found[3].properties() == {"n": "3", "raw": "/wA=", "weir-base64-headers": '["raw"]'}
        assert {m.message_id().entry_id() for m in found} == {0}
        assert [m.message_id().batch_index() for m in found] == list(range(5))
        consumer.close()


def test_times_of_the_broker_are_times_of_publication(kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    kafka.create(topic, 1, {"message.timestamp.type": "LogAppendTime"})
    live = subscribe(client, topic, "live")
    before_ms = int(time() * 1000) - 1
    kafka.send(topic, some_rows(2))
    for consumer in (live, subscribe(client, topic, "later")):
        found = receive(consumer, 2)
        assert [m.event_timestamp() for m in found] == [0, 0]
        assert all(m.publish_timestamp() >= before_ms for m in found)
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


async def test_what_has_no_value_has_none_for_both(bootstrap: str, weir: UpProcess, topic: str) -> None:
    """By Weir's own client on Pulsar's side: the official ones in Python neither send nor show it."""
    kafka = Kafka(bootstrap)
    async with PulsarClient(real_runtime(), weir.pulsar_url) as ours:
        live = await ours.consumer(topic, Subscribing("live", earliest=True))
        producer = await ours.producer(topic)
        for null in (True, False):
            await producer.send(Outgoing(b"", key=f"pulsar {null}", null=null))
        await asyncio.to_thread(
            kafka.send, topic, [{"key": "kafka True", "value": None}, {"key": "kafka False", "value": b""}]
        )
        expected = [(f"{who} {null}".encode(), null) for who in ("pulsar", "kafka") for null in (True, False)]
        for consumer in (live, await ours.consumer(topic, Subscribing("later", earliest=True))):
            found = []
            async with asyncio.timeout(PATIENCE_S):
                while len(found) < 4 and (message := await consumer.receive()) is not None:
                    found.append((message.key, message.null))
            assert found == expected
    read = await asyncio.to_thread(kafka.read, topic, 4)
    assert [(m.key(), m.value() is None) for m in read] == expected
    kafka.close()


# --- together -------------------------------------------------------------------------------------------------


def test_both_see_one_order_whoever_wrote(kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    reader = kafka.reader(topic)
    expected = []
    for turn in range(4):
        kafka.send(topic, [{"value": b"kafka %d.%d" % (turn, n)} for n in range(3)])
        producer.send(b"pulsar %d" % turn)
        expected += [b"kafka %d.%d" % (turn, n) for n in range(3)] + [b"pulsar %d" % turn]
    for pulsar_reader in (consumer, subscribe(client, topic, "later")):
        assert [m.data() for m in receive(pulsar_reader, 16)] == expected
        pulsar_reader.close()
    for found in (take(reader, 16), kafka.read(topic, 16)):
        assert [m.value() for m in found] == expected
        assert [m.offset() for m in found] == list(range(16))
    producer.close()


def test_partitions_are_the_same_partitions(kafka: Kafka, client: pulsar.Client, topic: str) -> None:
    kafka.create(topic, 3)
    assert len(client.get_topic_partitions(topic)) == 3
    live = subscribe(client, topic, "live")
    readers = [kafka.reader(topic, partition=n) for n in range(3)]
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
    expected = {n: [b"k%d" % n, b"k%d" % (n + 3), b"p%d" % n, b"p%d" % (n + 3)] for n in range(3)}
    for consumer in (live, subscribe(client, topic, "later")):
        by_partition: dict[int, list[bytes]] = {}
        for message in receive(consumer, 12):
            by_partition.setdefault(message.message_id().partition(), []).append(message.data())
        consumer.close()
        assert by_partition == expected
    for n in range(3):
        for found in (take(readers[n], 4), kafka.read(topic, 4, partition=n)):
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
