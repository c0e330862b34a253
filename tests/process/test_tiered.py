"""Ledgers that went to the lake: official clients read the very bytes that they read before, after every kill."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pulsar
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaException, TopicPartition

from weir.cli.main import cli
from weir.client.blocking import Access, ask_v2
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.fetching import Fetcher
from weir.client.kafka.settings import KafkaSettings, parse_servers
from weir.model.errors import WeirError
from weir.model.topics import NamespaceName
from weir.spark.lake.definitions import namespace_lake, turn_on
from weir.testing.processes.both_clients import PATIENCE_MS, Kafka, some_rows, take
from weir.testing.processes.s3 import S3Server
from weir.testing.processes.up import UpProcess

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("tiered")]

PATIENCE_S = 60
#: At which a broker that moves a ledger to the lake is killed.
STEPS = ("named", "copied", "kept", "going", "deleted", "gone")


class Weir:
    """`weir up`, quick to look after topics and without a tail in memory, and the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.up = UpProcess(folder, "broker.maintenance_interval=100ms", "storage.cache_bytes=0B").start()

    def __call__(self, *words: str) -> str:
        result = CliRunner().invoke(cli, [*words, "--url", self.up.http_url])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    def stats(self, topic: str) -> dict[str, Any]:
        access = Access(self.up.http_url, patience_s=10.0)
        found: dict[str, Any] = ask_v2(access, "GET", f"persistent/public/default/{self.part(topic)}/stats")
        return found

    def part(self, topic: str) -> str:
        """Kafka's clients make topics with partitions."""
        return topic if topic in ("by-pulsar", "by-amqp", "behind") else f"{topic}-partition-0"

    def lake_on(self, *words: str) -> None:
        self("lake", "on", *words, "--tiered-after", "0s")

    def export(self) -> None:
        self("lake", "run", "--once", "--master", "none")

    def tiered(self, *topics: str) -> None:
        """Wait until nothing of them is in ledgers."""
        for topic in topics:
            until(lambda topic=topic: self.is_tiered(topic))  # type: ignore[misc]

    def is_tiered(self, topic: str) -> bool:
        told = self.stats(topic)
        return bool(told["lake"]) and told["lake"]["endOffset"] == told["endOffset"]

    def restart(self, kafka: Kafka) -> None:
        """Killed: nothing is in memory any more."""
        kafka.close()
        self.up.kill()
        self.up.start()

    def fetched(self, topic: str) -> bytes:
        """The very bytes that a Kafka consumer is sent."""
        with Cluster(KafkaSettings(parse_servers(self.up.kafka))) as cluster:
            fetcher, found, offset = Fetcher(cluster, Partition(topic, 0)), b"", 0
            while True:
                fetcher.ask(offset, 1 << 20)
                answer = fetcher.take()
                found += bytes(answer.records)
                offset = _end_of(answer.records)
                if offset >= answer.end_offset:
                    return found


def _end_of(records: memoryview) -> int:
    """The offset after the last batch."""
    at = end = 0
    while at + 27 <= len(records):
        end = int.from_bytes(records[at : at + 8]) + int.from_bytes(records[at + 23 : at + 27]) + 1
        at += 12 + int.from_bytes(records[at + 8 : at + 12])
    return end


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    folder = tmp_path_factory.mktemp("tiered")
    one = Weir(folder)
    yield one
    one.up.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def kafka(weir: Weir) -> Iterator[Kafka]:
    one = Kafka(weir.up.kafka)
    yield one
    one.close()


def as_told(messages: list[Any]) -> list[Any]:
    return [(m.offset(), m.key(), m.value(), m.headers(), m.timestamp(), m.leader_epoch()) for m in messages]


def checked(weir: Weir, topic: str, count: int) -> list[Any]:
    """By a consumer that checks the checksums."""
    reader = Consumer({"bootstrap.servers": weir.up.kafka, "group.id": "none", "check.crcs": True})
    reader.assign([TopicPartition(topic, 0, 0)])
    try:
        return as_told(take(reader, count))
    finally:
        reader.close()


def pulsar_read(weir: Weir, topic: str, count: int) -> list[Any]:
    client = pulsar.Client(weir.up.pulsar_url)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = [reader.read_next(PATIENCE_MS) for _ in range(count)]
        ids = [
            (m.message_id().ledger_id(), m.message_id().entry_id(), m.message_id().batch_index()) for m in found
        ]
        return [
            (place, m.data(), m.properties(), m.partition_key(), m.publish_timestamp())
            for place, m in zip(ids, found, strict=True)
        ]
    finally:
        client.close()


def amqp_read(weir: Weir, queue: str, count: int) -> list[Any]:
    host, _, port = weir.up.amqp.rpartition(":")
    with pika.BlockingConnection(pika.ConnectionParameters(host, int(port))) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        found = []
        for method, properties, body in channel.consume(queue, arguments={"x-stream-offset": "first"}):
            found.append((body, properties.headers["x-stream-offset"]))
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
        return found


def fill_pulsar(weir: Weir, topic: str) -> None:
    client = pulsar.Client(weir.up.pulsar_url)
    try:
        producer = client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_publish_delay_ms=10,
            compression_type=pulsar.CompressionType.LZ4,
        )
        for at in range(20):
            producer.send_async(b"pulsar %d" % at, None, properties={"n": str(at)}, partition_key=f"k{at % 3}")
            if at % 7 == 6:
                producer.flush()
        producer.flush()
    finally:
        client.close()


def fill_amqp(weir: Weir, queue: str) -> None:
    host, _, port = weir.up.amqp.rpartition(":")
    with pika.BlockingConnection(pika.ConnectionParameters(host, int(port))) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        for at in range(10):
            channel.basic_publish("", queue, b"amqp %d" % at)


def test_clients_of_every_protocol_get_the_same_bytes_ids_and_order_from_the_lake(
    weir: Weir, kafka: Kafka
) -> None:
    kafka.create("by-kafka", 1)
    for codec in ("none", "zstd", "gzip"):
        kafka.send("by-kafka", some_rows(), **{"compression.type": codec})
    fill_pulsar(weir, "by-pulsar")
    fill_amqp(weir, "by-amqp")

    def seen() -> list[Any]:
        reader = kafka.reader("by-kafka")
        whole = [
            checked(weir, "by-kafka", 15),
            weir.fetched("by-kafka"),
            weir.fetched("by-pulsar"),
            as_told(kafka.read("by-pulsar", 20)),
            pulsar_read(weir, "by-pulsar", 20),
            pulsar_read(weir, "by-kafka", 15),
            amqp_read(weir, "by-amqp", 10),
            kafka.read("by-kafka", 1, offset=7)[0].value(),
        ]
        first = whole[0][0][4][1]
        moments = [TopicPartition("by-kafka", 0, moment) for moment in (0, first, first + 3, first + 10_000_000)]
        whole.append([one.offset for one in reader.offsets_for_times(moments, 10)])
        return whole

    before = seen()
    weir.lake_on("public/default", "--to", str(weir.folder / "a lake"))
    weir.export()
    weir.tiered("by-kafka", "by-pulsar", "by-amqp")
    weir.restart(kafka)
    assert "of it: " in weir("topics", "stats", "by-kafka")
    told = json.loads(weir("lake", "status", "by-kafka", "--json"))
    assert [(one["tiered"], one["end"], one["problem"]) for one in told] == [(15, 15, "")]
    assert all(one["offloaded"] for one in internal(weir, "by-kafka")["ledgers"])
    assert seen() == before
    assert weir.is_tiered("by-kafka"), "they were read from the lake"
    # A consumer that was behind goes on, into what comes now.
    kafka.send("by-kafka", some_rows(2))
    assert [m.offset() for m in kafka.read("by-kafka", 17)] == list(range(17))


def internal(weir: Weir, topic: str) -> dict[str, Any]:
    access = Access(weir.up.http_url, patience_s=10.0)
    found: dict[str, Any] = ask_v2(access, "GET", f"persistent/public/default/{weir.part(topic)}/internalStats")
    return found


def test_a_pulsar_subscription_seeks_and_acknowledges_in_what_is_in_the_lake(weir: Weir) -> None:
    fill_pulsar(weir, "behind")
    client = pulsar.Client(weir.up.pulsar_url)
    try:
        consumer = client.subscribe("behind", "s", initial_position=pulsar.InitialPosition.Earliest)
        first = [consumer.receive(PATIENCE_MS) for _ in range(20)]

        def sought() -> list[bytes]:
            found = []
            for where in (first[3].message_id(), first[0].publish_timestamp() - 1000, first[12].message_id()):
                consumer.seek(where)
                found.append(consumer.receive(PATIENCE_MS).data())
            return found

        before = sought()
        consumer.seek(pulsar.MessageId.earliest)
        for message in [consumer.receive(PATIENCE_MS) for _ in range(20)][:7]:  # the first batch
            consumer.acknowledge(message)
        consumer.close()
        weir.lake_on("behind", "--to", str(weir.folder / "a lake"))
        weir.export()
        weir.tiered("behind")
        consumer = client.subscribe("behind", "s")
        again = [consumer.receive(PATIENCE_MS) for _ in range(13)]
        assert [m.message_id() for m in again] == [m.message_id() for m in first[7:]]
        assert sought() == before
    finally:
        client.close()


def test_a_missing_object_is_an_error_with_its_name_and_other_offsets_are_read(weir: Weir, kafka: Kafka) -> None:
    kafka.create("broken", 1)
    kafka.send("broken", some_rows(3))
    weir.lake_on("broken", "--to", str(weir.folder / "a lake"))
    weir.export()
    weir.tiered("broken")
    kafka.send("broken", some_rows(3))
    (segment,) = (weir.folder / "a lake" / "_segments").glob("*/public/default/broken-partition-0/*/*.segment")
    segment.rename(segment.with_suffix(".away"))
    weir.restart(kafka)
    assert [m.offset() for m in kafka.read("broken", 3, offset=3)] == [3, 4, 5]
    reader = kafka.reader("broken")
    deadline = time.monotonic() + PATIENCE_S
    error = None
    while error is None and time.monotonic() < deadline:
        try:
            message = reader.poll(1.0)
        except KafkaException as raised:
            error = str(raised)
        else:
            assert message is None or message.error() is not None, "nothing of it can be had"
            error = None if message is None else str(message.error())
    assert error
    assert segment.name in weir.up.log
    segment.with_suffix(".away").rename(segment)
    assert [m.offset() for m in kafka.read("broken", 3)] == [0, 1, 2]


def test_deleting_a_topic_deletes_its_segments(weir: Weir, kafka: Kafka) -> None:
    kafka.create("deleted", 1)
    kafka.send("deleted", some_rows(3))
    weir.lake_on("deleted", "--to", str(weir.folder / "a lake"))
    weir.export()
    weir.tiered("deleted")
    folder = weir.folder / "a lake" / "_segments"
    assert list(folder.glob("*/public/default/deleted-partition-0/*/*"))
    weir("topics", "delete", "deleted", "--force")
    assert not list(folder.glob("*/public/default/deleted-partition-0/*/*"))


def turn_on_tiering(weir: Weir, topic: str) -> None:
    access = Access(weir.up.http_url, patience_s=0.0)
    namespace = NamespaceName.parse("public/default")
    now = namespace_lake(access, namespace).topics[topic]
    assert now is not None
    turn_on(access, namespace, topic, replace(now, tiered_after_ms=0))


@pytest.mark.soak
def test_a_broker_that_is_killed_at_any_step_loses_no_offset_and_leaves_nothing_behind(
    weir: Weir, kafka: Kafka
) -> None:
    kafka.create("killed", 1)
    before: list[Any] = []
    for step in STEPS:
        weir("lake", "on", "killed", "--to", str(weir.folder / "killed lake"))
        kafka.send("killed", some_rows(3))
        weir.export()
        before = checked(weir, "killed", 3 + len(before))
        weir.up.kill()
        weir.up.variables = {"WEIR_TIERED_STOP_AT": step}
        weir.up.start()
        weir.stats("killed")  # so that it is loaded
        with suppress(WeirError):  # the answer may not come any more
            turn_on_tiering(weir, "killed")
        weir.up.wait_ended()
        weir.up.variables = {}
        weir.up.start()
        assert checked(weir, "killed", len(before)) == before, step
    weir.tiered("killed")  # which loads it
    weir.restart(kafka)
    assert checked(weir, "killed", len(before)) == before
    ledgers = [one["ledgerId"] for one in internal(weir, "killed")["ledgers"]]
    objects = list((weir.folder / "killed lake" / "_segments").glob("*/public/default/killed-partition-0/*/*"))
    until(lambda: len(list(objects[0].parent.iterdir())) == len(ledgers))
    assert sorted(int(one.name.partition("-")[0]) for one in objects[0].parent.iterdir()) == ledgers


def test_ledgers_go_to_a_real_s3_server_and_are_read_from_it(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = S3Server.start(tmp_path_factory.mktemp("s3"))
    if server is None:
        pytest.skip("there is no Go, or it cannot fetch the S3 server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path_factory.mktemp("tiered-s3")
    weir = Weir(folder)
    kafka = Kafka(weir.up.kafka)
    try:
        kafka.create("far", 1)
        for _ in range(3):
            kafka.send("far", some_rows(), **{"compression.type": "lz4"})
        before = checked(weir, "far", 15), weir.fetched("far"), pulsar_read(weir, "far", 15)
        where = ("--to", f"s3://{server.bucket}/weir", "--option", f"s3.endpoint={server.url}")
        weir.lake_on("far", *where, "--catalog", f"sqlite:///{folder}/catalog.db")
        weir.export()
        weir.tiered("far")
        weir.restart(kafka)
        assert (checked(weir, "far", 15), weir.fetched("far"), pulsar_read(weir, "far", 15)) == before
        server.close()
        weir.restart(kafka)
        told = weir.stats("far")
        assert told["endOffset"] == 15, "topics open while the store is away"
    finally:
        kafka.close()
        weir.up.kill()
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
