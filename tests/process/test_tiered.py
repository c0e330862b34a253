"""Ledgers that went to the lake: official clients read the very bytes that they read before."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pika
import pika.exceptions
import pulsar
import pytest
from confluent_kafka import KafkaException, TopicPartition

from weir.testing.processes.both_clients import PATIENCE_MS, Kafka, some_rows
from weir.testing.processes.s3 import S3Server

from .tiered_kit import (
    PATIENCE_S,
    Weir,
    amqp_read,
    as_told,
    checked,
    fill_amqp,
    fill_pulsar,
    fill_rocketmq,
    pulsar_read,
    rocketmq_pull,
    rocketmq_receive,
    rocketmq_refusals,
    until,
    weir_in,
)

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("tiered")]


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    with weir_in(tmp_path_factory.mktemp("tiered")) as one:
        yield one


@pytest.fixture
def kafka(weir: Weir) -> Iterator[Kafka]:
    one = Kafka(weir.up.kafka)
    yield one
    one.close()


def test_clients_of_every_protocol_get_the_same_bytes_ids_and_order_from_the_lake(
    weir: Weir, kafka: Kafka
) -> None:
    kafka.create("by-kafka", 1)
    for codec in ("none", "zstd", "gzip"):
        kafka.send("by-kafka", some_rows(), **{"compression.type": codec})
    fill_pulsar(weir, "by-pulsar")
    fill_amqp(weir, "by-amqp")
    fill_rocketmq(weir, "by-rocketmq")
    for topic in ("by-kafka", "by-pulsar", "by-amqp", "by-rocketmq"):
        weir("subscriptions", "create", topic, "auditor", "--from", "earliest")

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
            rocketmq_receive(weir, "by-rocketmq", 10),
        ]
        for topic, count in (("by-kafka", 15), ("by-pulsar", 20), ("by-amqp", 10), ("by-rocketmq", 10)):
            peeked = [
                json.loads(line) for line in weir("peek", topic, "auditor", "-n", "100", "--json").splitlines()
            ]
            consumed = weir("consume", topic, "-n", str(count), "-F", "%o %s%n").splitlines()
            browsed = weir.browsed(topic)
            pulled = rocketmq_pull(weir, topic, 0, count)
            assert sorted(one["offset"] for one in peeked) == list(range(count)), topic
            assert [int(line.split()[0]) for line in consumed] == list(range(count)), topic
            assert [one[0] for one in browsed] == list(range(count)), topic
            assert [one[0] for one in pulled] == list(range(count)), topic
            value = browsed[3][-1].decode()
            assert value[:8] in weir.console(topic, 3), topic
            whole += [peeked, consumed, browsed, pulled]
        first = whole[0][0][4][1]
        moments = [TopicPartition("by-kafka", 0, moment) for moment in (0, first, first + 3, first + 10_000_000)]
        whole.append([one.offset for one in reader.offsets_for_times(moments, 10)])
        return whole

    before = seen()
    weir.lake_on("public/default", "--to", str(weir.folder / "a lake"))
    weir.export()
    weir.tiered("by-kafka", "by-pulsar", "by-amqp", "by-rocketmq")
    weir.restart(kafka)
    assert "of it: " in weir("topics", "stats", "by-kafka")
    told = json.loads(weir("lake", "status", "by-kafka", "--json"))
    assert [(one["tiered"], one["end"], one["problem"]) for one in told] == [(15, 15, "")]
    assert all(one["offloaded"] for one in weir.internal("by-kafka")["ledgers"])
    assert seen() == before
    assert weir.is_tiered("by-kafka"), "they were read from the lake"
    # A consumer that was behind goes on, into what comes now.
    kafka.send("by-kafka", some_rows(2))
    assert [m.offset() for m in kafka.read("by-kafka", 17)] == list(range(17))


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


@pytest.mark.parametrize("broken", ["missing", "damaged"])
def test_a_broken_object_is_a_named_error_for_each_client_and_other_offsets_are_read(
    weir: Weir, kafka: Kafka, broken: str
) -> None:
    topic = f"{broken}-one"
    kafka.create(topic, 1)
    kafka.send(topic, some_rows(3))
    weir.lake_on(topic, "--to", str(weir.folder / "a lake"))
    weir.export()
    weir.tiered(topic)
    kafka.send(topic, some_rows(3))
    (segment,) = (weir.folder / "a lake" / "_segments").glob(f"*/public/default/{topic}-partition-0/*/*.segment")
    whole = segment.read_bytes()
    if broken == "missing":
        segment.unlink()
    else:
        segment.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    weir.restart(kafka)
    assert [m.offset() for m in kafka.read(topic, 3, offset=3)] == [3, 4, 5]
    assert _kafka_error(kafka, topic)
    assert segment.name in weir.up.log
    assert segment.name in json.dumps(weir.stats(topic))
    assert segment.name in _pulsar_error(weir, f"{topic}-partition-0")
    assert segment.name in weir.fails("consume", topic)
    for code, why in rocketmq_refusals(weir, topic, 0):
        assert (code, segment.name in why) == ("INTERNAL_SERVER_ERROR", True), why
    assert [one[0] for one in weir.browsed(topic, 3)] == [3, 4, 5]
    assert [one[0] for one in rocketmq_pull(weir, topic, 3, 3)] == [3, 4, 5]
    segment.write_bytes(whole)
    assert [m.offset() for m in kafka.read(topic, 6)] == list(range(6))
    assert len(pulsar_read(weir, topic, 6)) == 6


def _kafka_error(kafka: Kafka, topic: str) -> str:
    reader = kafka.reader(topic)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            message = reader.poll(1.0)
        except KafkaException as raised:
            return str(raised)
        assert message is None or message.error() is not None, "nothing of it can be had"
        if message is not None:
            return str(message.error())
    return ""


#: A process of its own: the client logs to the first logger that its process has ever given it.
_PULSAR_CONSUMER = """
import logging, sys
import pulsar

logger = logging.Logger("pulsar")
logger.addHandler(logging.StreamHandler(sys.stdout))
client = pulsar.Client(sys.argv[1], logger=logger)
consumer = client.subscribe(sys.argv[2], "s", initial_position=pulsar.InitialPosition.Earliest)
ledger, entry = map(int, sys.stdin.readline().split())
consumer.seek(pulsar.MessageId(0, ledger, entry, -1))
print("received", consumer.receive(int(sys.argv[3])).data().hex(), flush=True)
client.close()
"""


def _pulsar_error(weir: Weir, part: str) -> str:
    """As its consumer logs it; meanwhile it reads behind the broken object when it is told to seek there."""
    log = weir.folder / f"{part}.pulsar.log"
    command = [sys.executable, "-u", "-c", _PULSAR_CONSUMER, weir.up.pulsar_url, part, str(PATIENCE_MS)]
    with log.open("wb") as out, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out) as client:
        try:
            until(lambda: client.poll() is not None or "PersistenceError" in log.read_text())
            offset, ledger, entry, *_ = weir.browsed(part.removesuffix("-partition-0"), 3)[0]
            client.communicate(f"{ledger} {entry}\n".encode(), timeout=2 * PATIENCE_S)
        finally:
            client.kill()
    said = log.read_text()
    received = f"received {some_rows(3)[0]['value'].hex()}"
    assert received in said, (offset, said)
    return said


def test_a_broken_object_closes_the_channel_of_an_amqp_stream_and_says_why(weir: Weir) -> None:
    fill_amqp(weir, "broken-stream")
    weir.lake_on("broken-stream", "--to", str(weir.folder / "a lake"))
    weir.export()
    weir.tiered("broken-stream")
    # One, or more where ledgers were closed between two messages.
    segments = list((weir.folder / "a lake" / "_segments").glob("*/public/default/broken-stream/*/*.segment"))
    away = {segment: segment.rename(segment.with_suffix(".away")) for segment in segments}
    weir.up.kill()
    weir.up.start()
    told = "broken-stream cannot be read from offset 0 on .* there is no file:"  # the protocol cuts it there
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=told):
        amqp_read(weir, "broken-stream", 10)
    for segment, moved in away.items():
        moved.rename(segment)
    assert len(amqp_read(weir, "broken-stream", 10)) == 10


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


def test_ledgers_go_to_a_real_s3_server_and_are_read_from_it(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = S3Server.start(tmp_path_factory.mktemp("s3"))
    if server is None:
        pytest.skip("SeaweedFS is not installed")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path_factory.mktemp("tiered-s3")
    with closing(server), weir_in(folder) as weir, closing(Kafka(weir.up.kafka)) as kafka:
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
