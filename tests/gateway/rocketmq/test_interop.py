"""One topic, every client: what RocketMQ and the others call the same thing is the same thing."""

from collections.abc import Iterator
from typing import Any

import pika
import pulsar
import pytest
from confluent_kafka import Consumer, Producer
from rocketmq.grpc_protocol import definition_pb2 as d
from rocketmq.grpc_protocol import service_pb2 as s
from tests.gateway.rocketmq.behaviour.questions import Broker, message

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def pulsar_client(weir: UpProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pulsar.Client]:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path_factory.mktemp("pulsar") / "log"))
    client = pulsar.Client(f"pulsar://{weir.addresses['pulsar']}", logger=quiet, operation_timeout_seconds=60)
    yield client
    client.close()


def test_what_rocketmq_sends_others_read(
    weir: UpProcess, clients: Any, pulsar_client: pulsar.Client, name: str, make: Any
) -> None:
    sent = make(name, b"value", tag="new", keys="k", properties={"colour": "green"})
    clients.producer(name).send(sent)

    consumer = Consumer({"bootstrap.servers": weir.kafka, "group.id": "k", "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    record = consumer.poll(60)
    assert record is not None
    assert (record.key(), record.value()) == (b"k", b"value")
    assert {("colour", b"green"), ("TAGS", b"new")} <= set(record.headers())
    consumer.close()

    reader = pulsar_client.subscribe(name, "p", initial_position=pulsar.InitialPosition.Earliest)
    message = reader.receive(60_000)
    assert (message.partition_key(), message.data()) == ("k", b"value")
    assert message.properties() == {"colour": "green", "TAGS": "new"}
    reader.close()

    host, _, port = weir.amqp.rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    method, properties, body = connection.channel().basic_get(name, auto_ack=True)
    assert method is not None
    assert (body, properties.headers["colour"], properties.headers["key"]) == (b"value", "green", "k")
    connection.close()


def test_a_trace_context_is_w3cs_traceparent_to_others_and_comes_back_as_it_was(
    weir: UpProcess, pulsar_client: pulsar.Client, name: str
) -> None:
    """Clients that trace say it in a field of the protocol."""
    broker = Broker(weir.rocketmq)
    context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for said in (context, "another system's"):
        request = s.SendMessageRequest(messages=[message(name)])
        request.messages[0].system_properties.trace_context = said
        assert broker.ask("SendMessage", request).status.code == d.Code.OK
    reader = pulsar_client.subscribe(name, "p", initial_position=pulsar.InitialPosition.Earliest)
    assert [reader.receive(60_000).properties() for _ in range(2)] == [{"traceparent": context}, {}]
    found = [one.message for one in broker.receive(name, "g") if one.HasField("message")]
    assert [one.system_properties.trace_context for one in found] == [context, "another system's"]
    assert [dict(one.user_properties) for one in found] == [{}, {}]
    broker.close()
    reader.close()


def test_what_others_send_rocketmq_reads(
    weir: UpProcess, clients: Any, pulsar_client: pulsar.Client, name: str, make: Any
) -> None:
    consumer = clients.consumer("g", name)

    def next_one() -> Any:
        (found,) = consumer.receive(1, 60)
        consumer.ack(found)
        return found

    producer = Producer({"bootstrap.servers": weir.kafka})
    producer.produce(name, b"by kafka", b"k", headers=[("colour", b"red"), ("TAGS", b"t"), ("raw", b"\xff")])
    producer.flush(60)
    found = next_one()
    assert (found.body, found.keys, found.tag, found.properties["colour"]) == (b"by kafka", {"k"}, "t", "red")
    assert found.properties["weir-base64-headers"] == '["raw"]'
    assert len(found.message_id) == 34

    sender = pulsar_client.create_producer(name)
    sender.send(b"by pulsar", partition_key="p", ordering_key="o", properties={"a": "b"})
    sender.close()
    found = next_one()
    assert (found.body, found.keys, found.message_group, found.properties) == (
        b"by pulsar",
        {"p"},
        "o",
        {"a": "b", "__SHARDINGKEY": "o"},
    )

    host, _, port = weir.amqp.rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    properties = pika.BasicProperties(headers={"colour": "blue", "key": "a"}, priority=3)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", name, b"by amqp", properties)
    connection.close()
    found = next_one()
    assert (found.body, found.keys, found.priority, found.properties["colour"]) == (b"by amqp", {"a"}, 3, "blue")
