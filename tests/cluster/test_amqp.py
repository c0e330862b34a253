"""RabbitMQ's client on a cluster: whichever broker it is connected to, it has all queues and exchanges."""

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from weir.model.queues import topic_of_queue
from weir.model.topics import DEFAULT_NAMESPACE
from weir.testing.many_brokers import ManyBrokers

NAMES = ("first", "second", "third")
DURABLE = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def channels(brokers: ManyBrokers) -> Iterator[list[Any]]:
    """One channel at each broker, with confirms."""
    connections = []
    for name in NAMES:
        host, _, port = brokers[name].listeners["amqp"].rpartition(":")
        connections.append(pika.BlockingConnection(pika.ConnectionParameters(host, int(port))))
    found = [connection.channel() for connection in connections]
    for channel in found:
        channel.confirm_delivery()
    yield found
    for connection in connections:
        if connection.is_open:
            connection.close()


def taken(channel: Any, queue: str, count: int) -> list[bytes]:
    """So many messages, acknowledged."""
    seen: list[bytes] = []
    for method, _, body in channel.consume(queue):
        channel.basic_ack(method.delivery_tag)
        seen.append(body)
        if len(seen) == count:
            break
    channel.cancel()
    return seen


def test_a_queue_is_declared_filled_and_emptied_through_any_broker(channels: list[Any], unique: str) -> None:
    for at, channel in enumerate(channels):
        channel.queue_declare(unique, durable=True)
        for number in range(10):
            channel.basic_publish("", unique, b"%d-%d" % (at, number), DURABLE, mandatory=True)
    for at, channel in enumerate(channels):
        found = [channel.basic_get(unique, auto_ack=True)[2] for _ in range(10)]
        assert found == [b"%d-%d" % (at, number) for number in range(10)]
    assert channels[1].queue_declare(unique, passive=True).method.message_count == 0


def test_what_is_bound_at_one_broker_is_routed_at_another(
    brokers: ManyBrokers, channels: list[Any], unique: str
) -> None:
    first, second, third = channels
    first.exchange_declare(unique, "fanout", durable=False)
    second.exchange_declare(unique, "fanout", durable=False)
    queues = [channel.queue_declare("", exclusive=True).method.queue for channel in channels]
    for channel, queue in zip(channels, queues, strict=True):
        channel.queue_bind(queue, unique)
    exchanges = [
        brokers.call(lambda at=name: brokers[at].composed.exchanges.open(DEFAULT_NAMESPACE)) for name in NAMES
    ]
    brokers.until(lambda: all(len(table.bindings(source=unique)) == 3 for table in exchanges))
    third.basic_publish(unique, "", b"to all")
    for channel, queue in zip(channels, queues, strict=True):
        assert taken(channel, queue, 1) == [b"to all"]


def test_what_is_delayed_at_any_broker_is_routed_once_when_it_is_due(
    brokers: ManyBrokers, channels: list[Any], unique: str
) -> None:
    kind = {"x-delayed-type": "fanout"}
    channels[0].exchange_declare(unique, "x-delayed-message", durable=True, arguments=kind)
    channels[0].queue_declare(unique, durable=True)
    channels[0].queue_bind(unique, unique)
    tables = [
        brokers.call(lambda at=name: brokers[at].composed.exchanges.open(DEFAULT_NAMESPACE)) for name in NAMES
    ]
    brokers.until(lambda: all(table.bindings(source=unique) for table in tables))
    for at, channel in enumerate(channels):
        channel.basic_publish(unique, "", b"%d" % at, pika.BasicProperties(headers={"x-delay": 50}))
    assert sorted(taken(channels[2], unique, 3)) == [b"0", b"1", b"2"]
    channels[1].exchange_delete(unique)
    assert channels[0].queue_declare(unique, passive=True).method.message_count == 0


def test_consumers_and_publishers_go_on_when_the_queue_moves(
    brokers: ManyBrokers, channels: list[Any], unique: str
) -> None:
    first, second, third = channels
    first.queue_declare(unique, durable=True)
    topic = topic_of_queue(DEFAULT_NAMESPACE, unique)
    seen: list[bytes] = []

    def take(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        seen.append(body)
        channel.basic_ack(method.delivery_tag)

    third.basic_consume(unique, take)
    sent = []
    for number, to in enumerate((*NAMES, *NAMES)):
        brokers.move(topic, to)
        body = b"%d" % number
        published(second, unique, body)
        sent.append(body)
        until(third, lambda body=body: body in seen)
    assert list(dict.fromkeys(seen)) == sent


def published(channel: Any, queue: str, body: bytes) -> None:
    """Until it is confirmed."""
    for _ in range(100):
        try:
            channel.basic_publish("", queue, body, DURABLE, mandatory=True)
        except (pika.exceptions.NackError, pika.exceptions.UnroutableError):
            continue
        return
    raise AssertionError("it is not taken")


def until(channel: Any, holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        channel.connection.process_data_events(time_limit=0.02)
    raise AssertionError("it did not come true")


def test_an_answer_goes_straight_to_who_asked_at_another_broker(channels: list[Any], unique: str) -> None:
    asking, answering, _ = channels
    answers: list[bytes] = []
    replies = "amq.rabbitmq.reply-to"
    asking.basic_consume(replies, lambda _c, _m, _p, body: answers.append(body), auto_ack=True)
    answering.queue_declare(unique, durable=True)
    asking.basic_publish("", unique, b"question", pika.BasicProperties(reply_to=replies), mandatory=True)
    for method, properties, _ in answering.consume(unique):
        answering.basic_ack(method.delivery_tag)
        address = properties.reply_to
        break
    answering.cancel()
    assert answering.queue_declare(address, passive=True).method.consumer_count == 1
    for number in range(3):
        answering.basic_publish("", address, b"answer %d" % number, mandatory=True)
    while len(answers) < 3:
        asking.connection.process_data_events(time_limit=None)
    assert answers == [b"answer 0", b"answer 1", b"answer 2"]
    asking.connection.close()
    with pytest.raises(pika.exceptions.UnroutableError):
        while True:  # until the end of the connection was heard of
            answering.basic_publish("", address, b"too late", mandatory=True)
