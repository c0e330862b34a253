"""Kafka's own clients produce and consume."""

import json
import time
import urllib.request
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from weir.testing.processes.up import UpProcess

VALUES = [b"value %03d " % at + bytes(50) for at in range(100)]


def make(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_sent_in_any_compression_comes_back(
    client: Any, bootstrap: str, topic: str, compression: str
) -> None:
    options = {} if compression == "none" else {"compression_type": compression}
    sent = client.send(bootstrap, topic, VALUES, **options)
    assert sent == [(0, at) for at in range(100)]
    assert client.read(bootstrap, topic, {0: 0}, 100) == [(0, at, value) for at, value in enumerate(VALUES)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_level_of_acknowledgement_stores_what_was_sent(
    client: Any, bootstrap: str, topic: str, acks: Any
) -> None:
    client.send(bootstrap, topic, [b"first"], acks="all")  # the topic is there before anything goes unanswered
    more = {"enable_idempotence": False}
    client.send(bootstrap, topic, VALUES[:10], acks=acks, **more)
    assert [value for _, _, value in client.read(bootstrap, topic, {0: 1}, 10)] == VALUES[:10]


def test_one_client_reads_what_another_sent(client: Any, bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    assert [value for _, _, value in client.read(bootstrap, topic, {0: 0}, 100)] == VALUES


def test_reading_begins_at_any_offset_within_a_batch(client: Any, bootstrap: str, topic: str) -> None:
    client.send(bootstrap, topic, VALUES)
    for start in (0, 1, 57, 99):
        assert client.read(bootstrap, topic, {0: start}, 1) == [(0, start, VALUES[start])]


def test_many_partitions_are_written_and_read_at_once(client: Any, bootstrap: str, topic: str) -> None:
    make(bootstrap, topic, 40)
    for index in range(40):
        if index % 10 == 0:
            client.send(bootstrap, topic, VALUES[:3], partition=index)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for index in range(40):
        producer.produce(topic, b"last", partition=index)
    assert producer.flush(60) == 0
    found = client.read(bootstrap, topic, dict.fromkeys(range(40), 0), 40 + 12)
    assert sorted((part, offset) for part, offset, _ in found) == [
        (part, offset) for part in range(40) for offset in range(4 if part % 10 == 0 else 1)
    ]


def test_a_large_message_passes_and_a_larger_one_is_refused(client: Any, bootstrap: str, topic: str) -> None:
    large = {client.max_request: 40_000_000}
    value = b"x" * 16_000_000
    assert client.send(bootstrap, topic, [value], **large) == [(0, 0)]
    assert client.read(bootstrap, topic, {0: 0}, 1) == [(0, 0, value)]
    with pytest.raises(Exception, match=r"(?i)too ?large|size"):
        client.send(bootstrap, topic, [b"x" * 18_000_000], **large)
    assert client.send(bootstrap, topic, [b"small"], **large) == [(0, 1)]


def test_a_waiting_consumer_is_woken_by_what_comes(bootstrap: str, topic: str) -> None:
    make(bootstrap, topic, 3)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "fetch.wait.max.ms": 250_000,  # longer than the test may take: only growth can wake it
            "socket.timeout.ms": 290_000,
        }
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for at in range(3):
        producer.produce(topic, b"old", partition=at)
    assert producer.flush(60) == 0
    consumer.assign([confluent_kafka.TopicPartition(topic, at, 0) for at in range(3)])
    # librdkafka may ask for one of them at first, and for the others only once that is answered.
    assert {consumer.poll(60).partition() for _ in range(3)} == {0, 1, 2}
    assert consumer.poll(0.5) is None
    for index in (2, 0, 2):
        producer.produce(topic, b"news", partition=index)
        assert producer.flush(60) == 0
        message = consumer.poll(60)
        assert message is not None
        assert (message.error(), message.partition()) == (None, index)
    consumer.close()


def test_a_consumer_seeks_pauses_and_looks_up_moments(bootstrap: str, topic: str) -> None:
    make(bootstrap, topic, 2)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    began = int(time.time() * 1000) - 1_000_000
    for at in range(20):
        producer.produce(topic, b"%d" % at, partition=at % 2, timestamp=began + at * 1000)
    assert producer.flush(60) == 0
    even, odd = (confluent_kafka.TopicPartition(topic, index, 0) for index in range(2))
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    consumer.assign([even, odd])
    consumer.pause([odd])
    assert [consumer.poll(60).value() for _ in range(10)] == [b"%d" % at for at in range(0, 20, 2)]
    consumer.resume([odd])
    assert [consumer.poll(60).value() for _ in range(10)] == [b"%d" % at for at in range(1, 20, 2)]
    consumer.seek(confluent_kafka.TopicPartition(topic, 0, 7))
    assert consumer.poll(60).value() == b"14"
    asked = [
        confluent_kafka.TopicPartition(topic, 0, began + 7_001),
        confluent_kafka.TopicPartition(topic, 1, began + 7_000),
    ]
    assert [found.offset for found in consumer.offsets_for_times(asked, 60)] == [4, 3]
    assert consumer.get_watermark_offsets(even, 60) == (0, 10)
    consumer.close()


def test_keys_headers_and_times_come_back(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
    headers = [("a", b"1"), ("a", b"2"), ("none", None)]
    producer.produce(topic, None, key=b"\xff\x00", headers=headers, timestamp=123_456)
    assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    message = consumer.poll(60)
    assert (message.key(), message.value(), message.headers()) == (b"\xff\x00", None, headers)
    assert message.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, 123_456)
    consumer.close()


def test_topics_of_other_namespaces_have_their_namespace_in_the_name(
    client: Any, weir: UpProcess, bootstrap: str
) -> None:
    local = type(client).__name__
    rest(weir, "PUT", f"/namespaces/public/{local}")
    name = f"public..{local}..events"
    assert client.send(bootstrap, name, [b"there"]) == [(0, 0)]
    assert client.read(bootstrap, name, {0: 0}, 1) == [(0, 0, b"there")]
    assert rest(weir, "GET", f"/persistent/public/{local}/events/partitions")["partitions"] == 1


def rest(weir: UpProcess, method: str, path: str) -> Any:
    request = urllib.request.Request(f"{weir.http_url}/admin/v2{path}", method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def test_a_topic_that_is_only_asked_for_does_not_come_to_be(bootstrap: str, topic: str) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "allow.auto.create.topics": False}
    )
    described = consumer.list_topics(topic, 60).topics[topic]
    assert described.error.code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
    assert topic not in consumer.list_topics(timeout=60).topics
    consumer.close()


def test_connections_requests_and_bytes_are_counted(
    client: Any, weir: UpProcess, bootstrap: str, topic: str
) -> None:
    client.send(bootstrap, topic, VALUES)
    client.read(bootstrap, topic, {0: 0}, 1)
    with urllib.request.urlopen(f"{weir.http_url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("weir_gateway"))
    for api in ("Produce", "Fetch", "Metadata", "ApiVersions"):
        assert int(found[f'weir_gateway_requests_total{{protocol="kafka",api="{api}"}}']) > 0
    for name in ("received", "sent"):
        assert int(found[f'weir_gateway_{name}_bytes_total{{protocol="kafka"}}']) > 5_000
    assert 'weir_gateway_connections{protocol="kafka"}' in found
