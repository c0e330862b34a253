"""What tests of tiered storage share: a `weir up` that is quick to tier, reads by clients of every protocol."""

import base64
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

import pika
import pulsar
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from weir.cli.main import cli
from weir.client.admin import Access, ask_v2
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.fetch import Fetcher
from weir.client.kafka.settings import KafkaSettings, parse_servers
from weir.testing.processes.both_clients import PATIENCE_MS, Kafka, take
from weir.testing.processes.up import UpProcess

PATIENCE_S = 120


class Weir:
    """`weir up`, quick to look after topics and without a tail in memory, and the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.up = UpProcess(folder, "broker.maintenance_interval=100ms", "storage.cache_bytes=0B").start()

    def __call__(self, *words: str) -> str:
        result = CliRunner().invoke(cli, [*words, "--url", self.up.http_url])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    def fails(self, *words: str) -> str:
        """What a command says that ends with 1."""
        result = CliRunner().invoke(cli, [*words, "--url", self.up.http_url])
        assert result.exit_code != 0, result.output
        return f"{result.output} {result.exception}"

    @property
    def access(self) -> Access:
        return Access(self.up.http_url, patience_s=10.0)

    def stats(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = ask_v2(self.access, "GET", f"persistent/public/default/{self.part(topic)}/stats")
        return found

    def internal(self, topic: str) -> dict[str, Any]:
        path = f"persistent/public/default/{self.part(topic)}/internalStats"
        found: dict[str, Any] = ask_v2(self.access, "GET", path)
        return found

    def part(self, topic: str) -> str:
        """Kafka's clients make topics with partitions; of these tests' topics they have one."""
        told = ask_v2(self.access, "GET", f"persistent/public/default/{topic}/partitions")
        return f"{topic}-partition-0" if told["partitions"] else topic

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

    def browsed(self, topic: str, offset: int = 0) -> list[Any]:
        """As the REST gives messages to whoever looks at them."""
        path = f"/admin/weir/v1/messages/persistent/public/default/{self.part(topic)}?offset={offset}&limit=200"
        with urllib.request.urlopen(self.up.http_url + path, timeout=PATIENCE_S) as answer:
            found = json.load(answer)["messages"]
        return [
            (one["offset"], one["ledger"], one["entry"], one["key"], base64.b64decode(one["value"]))
            for one in found
        ]

    def console(self, topic: str, offset: int) -> str:
        """The console's page of messages."""
        page = f"/console/topic/persistent/public/default/{self.part(topic)}/messages?by=offset&offset={offset}"
        with urllib.request.urlopen(self.up.http_url + page, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())


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


@contextmanager
def weir_in(folder: Path) -> Iterator[Weir]:
    one = Weir(folder)
    try:
        yield one
    finally:
        one.up.close()
        rmtree(folder, ignore_errors=True)


# --- reading ----------------------------------------------------------------------------------------------------


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


def _rocketmq() -> Any:
    """The module of its client, which writes a log below the home of whoever imports it."""
    home = os.environ.get("HOME")
    with tempfile.TemporaryDirectory(prefix="rocketmq-client-") as other:
        os.environ["HOME"] = other
        import rocketmq
        from tests.gateway.rocketmq.behaviour import questions

        if home is not None:
            os.environ["HOME"] = home
    return rocketmq, questions


def rocketmq_pull(weir: Weir, topic: str, offset: int, count: int) -> list[Any]:
    """By offset, as the calls for that do; one by one, so that each offset is looked for."""
    _, questions = _rocketmq()
    d, s = questions.d, questions.s
    found = []
    with closing(questions.Broker(weir.up.rocketmq)) as broker:
        for at in range(offset, offset + count):
            request = s.PullMessageRequest(
                group=d.Resource(name="g"), message_queue=questions.queue(topic), offset=at, batch_size=1
            )
            answers = broker.ask("PullMessage", request)
            assert not isinstance(answers, str), answers
            messages = [one.message for one in answers if one.HasField("message")]
            assert answers[0].status.code == d.Code.OK, answers
            found += [
                (one.system_properties.queue_offset, one.body, one.system_properties.message_id)
                for one in messages
            ]
    return found


def rocketmq_refusals(weir: Weir, topic: str, offset: int) -> list[tuple[str, str]]:
    """Codes and words of a pull, and of a group's receive from the first message on, that bring nothing."""
    _, questions = _rocketmq()
    d, s = questions.d, questions.s
    with closing(questions.Broker(weir.up.rocketmq)) as broker:
        request = s.PullMessageRequest(
            group=d.Resource(name="g"), message_queue=questions.queue(topic), offset=offset, batch_size=1
        )
        answers = [broker.ask("PullMessage", request), broker.receive(topic, f"g-{uuid4().hex}")]
    assert all(isinstance(one, list) for one in answers), answers
    said = [next(part.status for part in one if part.HasField("status")) for one in answers]
    return [(d.Code.Name(status.code), status.message) for status in said]


def rocketmq_receive(weir: Weir, topic: str, count: int) -> list[Any]:
    """By RocketMQ's own client in a group that begins now; what it received is acknowledged."""
    client, _ = _rocketmq()
    how = client.ClientConfiguration(weir.up.rocketmq, client.Credentials(), request_timeout=60)
    consumer = client.SimpleConsumer(how, f"g-{uuid4().hex}", {topic: client.FilterExpression()}, 20)
    consumer.startup()
    try:
        found: list[Any] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} came"
            for one in consumer.receive(16, 600) or []:
                found.append((one.body, one.message_id, one.tag, one.properties))
                consumer.ack(one)
        return sorted(found, key=lambda one: str(one[1]))
    finally:
        consumer.shutdown()


# --- filling ----------------------------------------------------------------------------------------------------


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


def fill_rocketmq(weir: Weir, topic: str) -> None:
    client, _ = _rocketmq()
    producer = client.Producer(
        client.ClientConfiguration(weir.up.rocketmq, client.Credentials(), request_timeout=60), (topic,)
    )
    producer.startup()
    try:
        for at in range(10):
            message = client.Message()
            message.topic, message.body, message.tag = topic, b"rocketmq %d" % at, f"t{at % 2}"
            message.add_property("n", str(at))
            producer.send(message)
    finally:
        producer.shutdown()
