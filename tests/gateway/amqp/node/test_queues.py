"""Queues and exchanges as RabbitMQ's clients declare, bind, look at and delete them, with pika."""

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from .conftest import Node, until


def refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[int, str]:
    """What a call closes its channel with."""
    with pytest.raises(ChannelClosedByBroker) as closed:
        call(*arguments, **options)
    return closed.value.reply_code, closed.value.reply_text


def test_what_is_published_waits_in_its_queue_and_is_taken_one_by_one(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    for n in range(3):
        channel.basic_publish("", name, b"%d" % n)
    assert channel.queue_declare(name, passive=True).method.message_count == 3
    taken = [channel.basic_get(name, auto_ack=True) for _ in range(4)]
    assert [body for _, _, body in taken] == [b"0", b"1", b"2", None]
    assert [method.message_count for method, _, _ in taken[:3]] == [2, 1, 0]


def test_properties_and_headers_come_back_as_they_were(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    sent = pika.BasicProperties(
        "text/plain",
        "utf-8",
        {"n": 1, "s": "text", "t": True, "list": [1, "two"], "table": {"a": None}},
        2,
        5,
        "correlation",
        "reply",
        "60000",
        "id",
        1_700_000_000,
        "kind",
        "guest",
        "app",
    )
    channel.basic_publish("", name, b"body", sent)
    method, properties, body = channel.basic_get(name, auto_ack=True)
    assert (properties, body) == (sent, b"body")
    assert (method.exchange, method.routing_key, method.redelivered) == ("", name, False)


def test_a_queue_without_a_name_gets_one_and_stands_for_no_name(channel: BlockingChannel) -> None:
    made = channel.queue_declare("", exclusive=True).method.queue
    assert made.startswith("amq.gen-")
    channel.queue_bind("", "amq.fanout")
    channel.queue_bind("", "amq.direct")  # no key either: the name is the key
    channel.basic_publish("amq.fanout", "", b"1")
    channel.basic_publish("amq.direct", made, b"2")
    assert [channel.basic_get("", auto_ack=True)[2] for _ in range(2)] == [b"1", b"2"]
    again = channel.queue_declare(made, exclusive=True).method.queue
    assert again == made


def test_without_a_declared_queue_no_name_is_not_found(channel: BlockingChannel) -> None:
    assert refused(channel.queue_purge, "") == (404, "NOT_FOUND - no previously declared queue")


@pytest.mark.parametrize(
    "call",
    [
        lambda channel, name: channel.queue_declare(name, passive=True),
        lambda channel, name: channel.queue_bind(name, "amq.direct", "k"),
        lambda channel, name: channel.queue_purge(name),
        lambda channel, name: channel.basic_get(name),
        lambda channel, name: channel.basic_consume(name, print),
    ],
)
def test_a_queue_that_is_not_there_is_not_found(channel: BlockingChannel, name: str, call: Any) -> None:
    assert refused(call, channel, name) == (404, f"NOT_FOUND - no queue '{name}' in vhost '/'")
    assert channel.connection.is_open


def test_deleting_what_is_not_there_is_fine(channel: BlockingChannel, name: str) -> None:
    assert channel.queue_delete(name).method.message_count == 0
    channel.exchange_delete(name)


def test_an_exchange_that_is_not_there_is_not_found(connection: pika.BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    missing = f"NOT_FOUND - no exchange '{name}' in vhost '/'"
    assert refused(channel.queue_bind, name, name, "k") == (404, missing)
    assert refused(connection.channel().exchange_declare, name, passive=True) == (404, missing)
    assert refused(connection.channel().exchange_bind, "amq.fanout", name) == (404, missing)
    publisher = connection.channel()
    publisher.basic_publish(name, "k", b"x")
    assert refused(publisher.queue_declare, name, passive=True) == (404, missing)


def test_a_queue_that_is_declared_otherwise_is_inequivalent(
    connection: pika.BlockingConnection, name: str
) -> None:
    connection.channel().queue_declare(name, durable=True)
    code, text = refused(connection.channel().queue_declare, name)
    assert code == 406
    assert text == (
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{name}' in vhost '/': "
        "received 'false' but current is 'true'"
    )
    code, text = refused(connection.channel().queue_declare, name, durable=True, arguments={"x-message-ttl": 5})
    assert code == 406
    assert text == (
        f"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '{name}' in vhost '/': "
        "received the value '5' of type 'signedint' but current is none"
    )


def test_an_exchange_that_is_declared_otherwise_is_inequivalent(
    connection: pika.BlockingConnection, name: str
) -> None:
    connection.channel().exchange_declare(name, "fanout")
    code, text = refused(connection.channel().exchange_declare, name, "direct")
    assert code == 406
    assert text == (
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{name}' in vhost '/': "
        "received 'direct' but current is 'fanout'"
    )


def test_names_of_the_broker_are_refused(connection: pika.BlockingConnection) -> None:
    queue = refused(connection.channel().queue_declare, "amq.mine")
    assert queue == (403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'")
    exchange = refused(connection.channel().exchange_declare, "amq.mine", "fanout")
    assert exchange == (403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'")
    default = (403, "ACCESS_REFUSED - operation not permitted on the default exchange")
    assert refused(connection.channel().exchange_declare, "", "direct") == default
    assert refused(connection.channel().exchange_delete, "") == default


def test_an_unknown_type_of_exchange_ends_the_connection(connection: pika.BlockingConnection, name: str) -> None:
    channel, other = connection.channel(), connection.channel()
    with pytest.raises(ConnectionClosedByBroker) as closed:
        channel.exchange_declare(name, "nonsense")
    assert (closed.value.reply_code, closed.value.reply_text) == (
        503,
        "COMMAND_INVALID - invalid exchange type 'nonsense'",
    )
    assert not other.is_open


def test_an_exclusive_queue_is_its_connections_own_and_goes_with_it(weir: Node, name: str) -> None:
    first, second = weir.connect(), weir.connect()
    first.channel().queue_declare(name, exclusive=True)
    locked = (
        405,
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of the "
        "original declaration.",
    )
    assert refused(second.channel().queue_declare, name, exclusive=True) == locked
    assert refused(second.channel().basic_get, name) == locked
    # To publish to it everybody may.
    publisher = second.channel()
    publisher.confirm_delivery()
    publisher.basic_publish("", name, b"x", mandatory=True)
    assert first.channel().basic_get(name, auto_ack=True)[2] == b"x"
    first.close()
    code, _ = refused(second.channel().queue_declare, name, passive=True)
    assert code == 404
    second.close()


def test_an_auto_delete_queue_goes_with_its_last_consumer(connection: pika.BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, auto_delete=True)
    tags = [channel.basic_consume(name, print) for _ in range(2)]
    channel.basic_cancel(tags[0])
    assert channel.queue_declare(name, passive=True).method.consumer_count == 1
    channel.basic_cancel(tags[1])

    def gone() -> bool:
        try:
            connection.channel().queue_declare(name, passive=True)
        except ChannelClosedByBroker as closed:
            return bool(closed.reply_code == 404)
        return False

    until(gone)


def test_a_queue_is_deleted_only_if_unused_and_empty_if_so_asked(
    connection: pika.BlockingConnection, name: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(name)
    channel.basic_publish("", name, b"x")
    code, text = refused(connection.channel().queue_delete, name, if_empty=True)
    assert (code, text) == (406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty")
    tag = channel.basic_consume(name, print)
    code, text = refused(connection.channel().queue_delete, name, if_unused=True)
    assert (code, text) == (406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' in use")
    channel.basic_cancel(tag)
    assert channel.queue_delete(name, if_unused=True).method.message_count == 1


def test_purging_drops_what_is_ready_and_not_what_is_unacked(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    for _ in range(5):
        channel.basic_publish("", name, b"x")
    held, _, _ = channel.basic_get(name)
    assert channel.queue_purge(name).method.message_count == 4
    channel.basic_nack(held.delivery_tag)
    assert channel.queue_declare(name, passive=True).method.message_count == 1


def test_exchanges_are_bound_to_exchanges(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(f"{name}-a", "topic")
    channel.exchange_declare(f"{name}-b", "fanout", internal=True)
    channel.queue_declare(name)
    channel.exchange_bind(f"{name}-b", f"{name}-a", "logs.#")
    channel.queue_bind(name, f"{name}-b")
    channel.basic_publish(f"{name}-a", "logs.error", b"yes")
    channel.basic_publish(f"{name}-a", "other", b"no")
    assert channel.queue_purge(name).method.message_count == 1
    channel.exchange_unbind(f"{name}-b", f"{name}-a", "logs.#")
    channel.basic_publish(f"{name}-a", "logs.error", b"no")
    assert channel.queue_declare(name, passive=True).method.message_count == 0
    channel.basic_publish(f"{name}-b", "", b"x")
    code, text = refused(channel.queue_declare, name, passive=True)
    assert (code, text) == (403, f"ACCESS_REFUSED - cannot publish to internal exchange '{name}-b' in vhost '/'")


def test_an_exchange_in_use_is_not_deleted_if_unused(connection: pika.BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.exchange_declare(name, "fanout")
    channel.queue_declare(name)
    channel.queue_bind(name, name)
    code, text = refused(connection.channel().exchange_delete, name, if_unused=True)
    assert (code, text) == (406, f"PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use")
    channel.queue_unbind(name, name)
    channel.exchange_delete(name, if_unused=True)


def test_headers_route_by_all_or_any(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "headers")
    for match in ("all", "any"):
        channel.queue_declare(f"{name}-{match}")
        channel.queue_bind(f"{name}-{match}", name, arguments={"x-match": match, "a": 1, "b": "two"})
    channel.basic_publish(name, "", b"x", pika.BasicProperties(headers={"a": 1}))
    channel.basic_publish(name, "", b"x", pika.BasicProperties(headers={"a": 1, "b": "two", "c": 3}))
    counts = [
        channel.queue_declare(f"{name}-{match}", passive=True).method.message_count for match in ("all", "any")
    ]
    assert counts == [1, 2]


def test_an_alternate_exchange_gets_what_matches_nothing(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(f"{name}-other", "fanout")
    channel.exchange_declare(name, "direct", arguments={"alternate-exchange": f"{name}-other"})
    channel.queue_declare(name)
    channel.queue_bind(name, f"{name}-other")
    channel.basic_publish(name, "nobody", b"x")
    assert channel.basic_get(name, auto_ack=True)[2] == b"x"


def test_durable_queues_bindings_and_messages_survive_a_restart(
    start_weir: Callable[..., Node], name: str
) -> None:
    weir = start_weir()
    connection = weir.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare(name, "fanout", durable=True)
    channel.queue_declare(name, durable=True)
    channel.queue_declare(f"{name}-transient")
    for queue in (name, f"{name}-transient"):
        channel.queue_bind(queue, name)
    channel.basic_publish(name, "", b"kept", pika.BasicProperties(delivery_mode=2))
    delays, late = f"{name}-delays", f"{name}-late"
    channel.exchange_declare(delays, "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    channel.queue_declare(late, durable=True)
    channel.queue_bind(late, delays)
    channel.basic_publish(delays, "", b"late", pika.BasicProperties(headers={"x-delay": 500}))
    weir.restart()
    channel = weir.connect().channel()
    channel.basic_publish(name, "", b"later")
    got = [channel.basic_get(name, auto_ack=True)[2] for _ in range(3)]
    assert got == [b"kept", b"later", None]
    assert until(lambda: channel.basic_get(late, auto_ack=True)[2]) == b"late"
    assert channel.basic_get(late) == (None, None, None)
    code, _ = refused(channel.queue_declare, f"{name}-transient", passive=True)
    assert code == 404


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_requeued_waits_by_the_retry_schedule_of_its_queue(
    channel: BlockingChannel, name: str, durable: bool
) -> None:
    """One queue's schedule is longer than any test, another's shorter than any wait."""
    channel.confirm_delivery()
    for queue, schedule in ((name, "1h"), (f"{name}-soon", "1ms 5ms")):
        channel.queue_declare(queue, durable=durable, arguments={"x-retry-schedule": schedule})
        for body in (b"bad", b"good"):
            channel.basic_publish("", queue, body)
        method, _, body = channel.basic_get(queue)
        assert (body, method.redelivered) == (b"bad", False)
        channel.basic_nack(method.delivery_tag, requeue=True)
    assert channel.basic_get(name, auto_ack=True)[2] == b"good"
    assert channel.basic_get(name, auto_ack=True) == (None, None, None)
    came: dict[bytes, bool] = {}

    def both() -> bool:
        method, _, body = channel.basic_get(f"{name}-soon", auto_ack=True)
        if method is not None:
            came[body] = method.redelivered
        return len(came) == 2

    until(both)
    assert came == {b"bad": True, b"good": False}


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("wrong", ["soon", "1s..", "40d", 5])
def test_a_retry_schedule_that_is_none_is_refused(
    channel: BlockingChannel, name: str, durable: bool, wrong: object
) -> None:
    code, text = refused(channel.queue_declare, name, durable=durable, arguments={"x-retry-schedule": wrong})
    assert code == 406
    assert text.startswith(f"PRECONDITION_FAILED - invalid arg 'x-retry-schedule' for queue '{name}'")
