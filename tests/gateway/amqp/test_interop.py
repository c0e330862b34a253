"""One topic, every client: what Kafka, Pulsar and AMQP call the same thing is the same thing."""

import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pulsar
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process
EVENT_S = 1_700_000_000


@pytest.fixture(scope="module")
def channel(weir: UpProcess) -> Iterator[Any]:
    host, _, port = weir.amqp.rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    found = connection.channel()
    found.confirm_delivery()
    yield found
    connection.close()


@pytest.fixture(scope="module")
def pulsar_client(weir: UpProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pulsar.Client]:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path_factory.mktemp("pulsar") / "log"))
    client = pulsar.Client(f"pulsar://{weir.addresses['pulsar']}", logger=quiet, operation_timeout_seconds=60)
    yield client
    client.close()


def taken(channel: Any, queue: str, until: Callable[[Callable[[], Any]], Any]) -> tuple[Any, Any, bytes]:
    """The next message of a queue."""

    def look() -> Any:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        return None if method is None else (method, properties, body)

    found: tuple[Any, Any, bytes] = until(look)
    return found


def read_by_kafka(weir: UpProcess, topic: str) -> Any:
    consumer = Consumer(
        {"bootstrap.servers": weir.addresses["kafka"], "group.id": f"g-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        return message
    finally:
        consumer.close()


def publish(channel: Any, queue: str, body: bytes, **properties: Any) -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(**properties), mandatory=True)


def test_what_kafka_and_pulsar_produce_is_in_the_queue_with_key_headers_and_time(
    weir: UpProcess, channel: Any, pulsar_client: pulsar.Client, name: str, until: Any
) -> None:
    channel.queue_declare(name, durable=True)
    producer = Producer({"bootstrap.servers": weir.addresses["kafka"]})
    producer.produce(name, b"of kafka", b"k", headers=[("colour", b"red")], timestamp=EVENT_S * 1000)
    assert producer.flush(60) == 0
    _, properties, body = taken(channel, name, until)
    assert body == b"of kafka"
    assert properties.headers["key"] == "k"
    assert properties.headers["colour"] == "red"
    assert properties.timestamp == EVENT_S
    sender = pulsar_client.create_producer(f"persistent://public/default/{name}")
    sender.send(b"of pulsar", properties={"colour": "blue"}, partition_key="p", event_timestamp=EVENT_S * 1000 + 5)
    _, properties, body = taken(channel, name, until)
    assert body == b"of pulsar"
    assert properties.headers["key"] == "p"
    assert properties.headers["colour"] == "blue"
    assert properties.headers["weir-event-ms"] == EVENT_S * 1000 + 5
    sender.close()


def test_what_is_published_to_a_queue_is_read_by_kafka_and_pulsar(
    weir: UpProcess, channel: Any, pulsar_client: pulsar.Client, name: str
) -> None:
    channel.queue_declare(name, durable=True)
    publish(
        channel,
        name,
        b"hello",
        delivery_mode=2,
        message_id="m-1",
        content_type="text/plain",
        timestamp=EVENT_S,
        priority=3,
        headers={"key": "k", "count": 7, "colour": "red"},
    )
    message = read_by_kafka(weir, name)
    headers = dict(message.headers())
    assert (message.key(), message.value(), message.timestamp()[1]) == (b"k", b"hello", EVENT_S * 1000)
    assert headers["amqp-message-id"] == b"m-1"
    assert (headers["count"], headers["colour"], headers["weir-priority"]) == (b"7", b"red", b"3")
    reader = pulsar_client.create_reader(f"persistent://public/default/{name}", pulsar.MessageId.earliest)
    seen = reader.read_next(60_000)
    assert (seen.partition_key(), seen.data(), seen.event_timestamp()) == ("k", b"hello", EVENT_S * 1000)
    assert seen.properties()["amqp-content-type"] == "text/plain"
    assert seen.properties()["count"] == "7"
    reader.close()


def test_a_pulsar_consumer_of_the_queues_subscription_shares_its_messages(
    weir: UpProcess, channel: Any, pulsar_client: pulsar.Client, name: str, until: Any
) -> None:
    channel.queue_declare(name, durable=True)
    for number in range(4):
        publish(channel, name, b"%d" % number, delivery_mode=2)
    _, _, first = taken(channel, name, until)
    consumer = pulsar_client.subscribe(
        f"persistent://public/default/{name}", "queue", consumer_type=pulsar.ConsumerType.Shared
    )
    seen = [first]
    for _ in range(3):
        message = consumer.receive(60_000)
        seen.append(message.data())
        consumer.acknowledge(message)
    assert sorted(seen) == [b"0", b"1", b"2", b"3"]
    consumer.close()
    until(lambda: channel.queue_declare(name, passive=True).method.message_count == 0)


def test_a_topic_that_nobody_declared_is_consumed_as_a_queue(
    weir: UpProcess, channel: Any, name: str, until: Any
) -> None:
    producer = Producer({"bootstrap.servers": weir.addresses["kafka"], "enable.idempotence": True})
    for number in range(3):
        producer.produce(name, b"%d" % number)
    assert producer.flush(60) == 0
    assert channel.queue_declare(name, passive=True).method.message_count == 3
    assert [taken(channel, name, until)[2] for _ in range(3)] == [b"0", b"1", b"2"]


def test_a_topic_with_partitions_is_one_queue_in_the_order_of_each_partition(
    weir: UpProcess, channel: Any, name: str
) -> None:
    admin = AdminClient({"bootstrap.servers": weir.addresses["kafka"]})
    admin.create_topics([NewTopic(name, 3)])[name].result(60)
    producer = Producer({"bootstrap.servers": weir.addresses["kafka"]})
    for number in range(30):
        producer.produce(name, b"%d" % number, partition=number % 3)
    assert producer.flush(60) == 0
    publish(channel, name, b"30", delivery_mode=2)
    assert channel.queue_declare(name, passive=True).method.message_count == 31
    channel.basic_qos(prefetch_count=1)
    seen: list[int] = []
    for method, _, body in channel.consume(name):
        seen.append(int(body))
        if seen.count(seen[-1]) == 1 and seen[-1] == 7:
            channel.basic_nack(method.delivery_tag)  # once, and it comes again before those behind it
        else:
            channel.basic_ack(method.delivery_tag)
        if len(seen) == 32:
            break
    channel.cancel()
    channel.basic_qos(prefetch_count=0)
    assert sorted(seen) == sorted([*range(31), 7])
    for at in range(3):
        mine = [number for number in seen if number % 3 == at and number < 30]
        assert sorted(mine) == mine
    assert channel.queue_declare(name, passive=True).method.message_count == 0
    channel.queue_delete(name)


def test_the_highest_level_comes_first_whoever_produced_it_and_whoever_consumes(
    weir: UpProcess, channel: Any, pulsar_client: pulsar.Client, name: str
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-max-priority": 5})
    topic = f"persistent://public/default/{name}"
    other = pulsar_client.subscribe(
        topic,
        "other",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=1,
    )
    other.close()
    publish(channel, name, b"amqp 1", delivery_mode=2, priority=1)
    producer = Producer({"bootstrap.servers": weir.addresses["kafka"]})
    producer.produce(name, b"kafka 4", headers=[("weir-priority", b"4")])
    assert producer.flush(60) == 0
    sender = pulsar_client.create_producer(topic)
    sender.send(b"pulsar 2", properties={"weir-priority": "2"})
    sender.send(b"pulsar none")
    sender.close()
    publish(channel, name, b"amqp 9", delivery_mode=2, priority=9)
    order = [b"amqp 9", b"kafka 4", b"pulsar 2", b"amqp 1", b"pulsar none"]
    assert [channel.basic_get(name, auto_ack=True)[2] for _ in order] == order
    other = pulsar_client.subscribe(
        topic, "other", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1
    )
    seen = []
    for _ in order:
        message = other.receive(60_000)
        seen.append(message.data())
        other.acknowledge(message)
    assert seen == order
    other.close()


def test_a_delayed_message_is_seen_by_kafka_and_pulsar_when_it_is_due(
    weir: UpProcess, channel: Any, pulsar_client: pulsar.Client, name: str
) -> None:
    channel.queue_declare(name, durable=True)
    channel.exchange_declare(name, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
    channel.queue_bind(name, name, "k")
    channel.basic_publish(name, "k", b"later", pika.BasicProperties(delivery_mode=2, headers={"x-delay": 300}))
    channel.basic_publish(name, "k", b"now", pika.BasicProperties(delivery_mode=2))
    reader = pulsar_client.create_reader(f"persistent://public/default/{name}", pulsar.MessageId.earliest)
    assert [reader.read_next(60_000).data() for _ in range(2)] == [b"now", b"later"]
    reader.close()


def test_every_gateway_counts_its_connections_requests_and_bytes(
    weir: UpProcess, channel: Any, pulsar_client: pulsar.Client, name: str
) -> None:
    channel.queue_declare(name, durable=True)
    publish(channel, name, b"x" * 1000)
    pulsar_client.create_producer(name).send(b"x" * 1000)
    read_by_kafka(weir, name)
    with urllib.request.urlopen(f"{weir.http_url}/metrics", timeout=60) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}

    def of(family: str, **labels: str) -> float:
        [sample] = [sample for sample in families[family].samples if sample.labels == labels]
        return sample.value

    apis = {
        "pulsar": ("CONNECT", "PRODUCER", "SEND"),
        "kafka": ("Fetch", "JoinGroup"),
        "amqp": ("connection.open", "queue.declare", "basic.publish"),
    }
    for protocol, requests in apis.items():
        for api in requests:
            assert of("weir_gateway_requests", protocol=protocol, api=api) > 0
        assert of("weir_gateway_received_bytes", protocol=protocol) > 100
        assert of("weir_gateway_sent_bytes", protocol=protocol) > 100
        assert of("weir_gateway_refused", protocol=protocol) == 0
    assert of("weir_gateway_connections", protocol="pulsar") >= 1
    assert of("weir_gateway_connections", protocol="amqp") == 1
