"""What connections cost and how they are held back: floods, slow readers, blocked publishers, queues that move."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from weir.broker.queues.durable_queue import DurableQueue
from weir.model.queues import topic_of_queue
from weir.model.topics import DEFAULT_NAMESPACE
from weir.wire.amqp.frames import PROTOCOL_HEADER

from .conftest import Node, until


@pytest.fixture
def small(start_weir: Callable[..., Node]) -> Node:
    """One whose connections may cost little."""
    return start_weir(
        "limits.message_bytes=100000",
        max_publishes=8,
        max_waiting=4,
        max_unacked=10,
        max_consumers=3,
        max_transaction=5,
        blocked_after_s=0.0,
    )


def refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[int, str]:
    with pytest.raises(ChannelClosedByBroker) as closed:
        call(*arguments, **options)
    return closed.value.reply_code, closed.value.reply_text


def test_everything_goes_through_whatever_the_limits_are(small: Node, name: str) -> None:
    connection = small.connect()
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for n in range(100):  # more than may be under way
        channel.basic_publish("", name, b"%d" % n, pika.BasicProperties(delivery_mode=n % 3))
    got: list[bytes] = []
    for method, _, body in channel.consume(name, inactivity_timeout=60):
        got.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(got) == 100:
            break
    assert got == [b"%d" % n for n in range(100)]
    connection.close()


def test_no_more_is_unacknowledged_than_a_channel_may_have(small: Node, name: str) -> None:
    connection = small.connect()
    channel = connection.channel()
    channel.queue_declare(name)
    for n in range(30):
        channel.basic_publish("", name, b"%d" % n)
    got: list[int] = []
    channel.basic_consume(name, lambda _c, method, _p, _b: got.append(method.delivery_tag))
    until(lambda: len(got) == 10, connection)
    assert channel.queue_declare(name, passive=True).method.message_count == 20
    channel.basic_ack(got[-1], multiple=True)
    until(lambda: len(got) == 20, connection)
    fetching = connection.channel()
    held = [fetching.basic_get(name) for _ in range(10)]
    assert all(method for method, _, _ in held)
    assert refused(fetching.basic_get, name)[0] == 406
    connection.close()


def test_too_many_consumers_and_too_large_transactions_are_refused(small: Node, name: str) -> None:
    connection = small.connect()
    channel = connection.channel()
    channel.queue_declare(name)
    for _ in range(3):
        channel.basic_consume(name, print)
    assert refused(connection.channel().basic_consume, name, print)[0] == 406
    large = connection.channel()
    large.tx_select()
    for _ in range(6):
        large.basic_publish("", name, b"x")
    assert refused(large.tx_commit) == (406, "PRECONDITION_FAILED - the transaction is too large")
    connection.close()


def test_a_message_that_is_too_large_closes_its_channel_alone(small: Node, name: str) -> None:
    connection = small.connect()
    other, channel = connection.channel(), connection.channel()
    channel.queue_declare(name)
    channel.basic_publish("", name, bytes(100_001))
    assert refused(channel.queue_declare, name, passive=True) == (
        406,
        "PRECONDITION_FAILED - message size 100001 is larger than configured max size 100000",
    )
    other.basic_publish("", name, bytes(100_000))
    assert len(other.basic_get(name, auto_ack=True)[2]) == 100_000
    connection.close()


def test_a_client_that_never_opens_its_connection_is_dropped(start_weir: Callable[..., Node]) -> None:
    node = start_weir(connect_timeout_s=0.2)
    with socket.create_connection(("127.0.0.1", node.port), 60) as silent:
        silent.sendall(PROTOCOL_HEADER[:5])
        with suppress(ConnectionResetError):
            assert silent.recv(100) == b""


def test_who_does_not_read_holds_back_nobody_and_costs_little(weir: Node, name: str) -> None:
    filling = weir.connect()
    channel = filling.channel()
    channel.queue_declare(name)
    for _ in range(300):
        channel.basic_publish("", name, bytes(100_000))
    slow = weir.connect()
    # Its deliveries are not read: the client only reads when it is asked to.
    slow.channel().basic_consume(name, lambda *_: None, auto_ack=True)

    def used() -> int:
        return max(session.delivery_share.used_bytes for session in weir.sessions())

    until(used)
    assert used() <= 16 * 1024 * 1024
    left = channel.queue_declare(name, passive=True).method.message_count
    assert left > 0
    channel.queue_purge(name)
    filling.close()
    weir.call(lambda: _abort(weir))


async def _abort(weir: Node) -> None:
    for session in weir.sessions():
        session.abort()


@pytest.fixture
def no_capacity(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Queues say that they have none, until the event is set."""
    free = threading.Event()

    async def wait_capacity(_queue: DurableQueue) -> None:
        while not free.is_set():
            await asyncio.sleep(0.005)

    monkeypatch.setattr(DurableQueue, "wait_capacity", wait_capacity)
    monkeypatch.setattr(DurableQueue, "has_capacity", property(lambda _queue: free.is_set()))
    yield free
    free.set()


def test_a_publisher_is_told_that_it_is_blocked_and_when_it_is_not(
    small: Node, no_capacity: threading.Event, name: str
) -> None:
    connection = small.connect(blocked_connection_timeout=60)
    told: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda _, __: told.append("unblocked"))
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    channel.basic_publish("", name, b"1")
    until(lambda: told, connection)
    assert told == ["the broker cannot store more for now"]
    (listed,) = small.up.composed.connections.all()
    assert listed.traffic.state == "blocked"
    no_capacity.set()
    until(lambda: len(told) == 2, connection)
    assert channel.queue_declare(name, passive=True).method.message_count == 1
    connection.close()


def test_a_consumer_goes_on_when_its_queue_is_opened_anew(weir: Node, name: str) -> None:
    connection = weir.connect()
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    channel.basic_publish("", name, b"1")
    got: list[tuple[bytes, bool]] = []
    tags: list[int] = []

    def take(_channel: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
        got.append((body, method.redelivered))
        tags.append(method.delivery_tag)

    channel.basic_consume(name, take)
    until(lambda: got, connection)
    topic = topic_of_queue(DEFAULT_NAMESPACE, name)
    weir.call(lambda: weir.up.composed.broker.unload(topic))
    until(lambda: len(got) == 2, connection)
    channel.basic_ack(tags[0])  # of what was requeued meanwhile: no error
    channel.basic_ack(tags[1])
    channel.basic_publish("", name, b"2")
    until(lambda: len(got) == 3, connection)
    assert [body for body, _ in got] == [b"1", b"1", b"2"]
    channel.basic_ack(tags[2])
    assert channel.queue_declare(name, passive=True).method.message_count == 0
    connection.close()


def before_it_is_due(attempt: Callable[[int], Any]) -> Any:
    """What came of an attempt that got a delay, in milliseconds, and ended in time: a slow machine gets a longer
    one."""
    for delay_ms in (500, 2_000, 10_000, 60_000):
        began = time.monotonic()
        found = attempt(delay_ms)
        if time.monotonic() - began < delay_ms / 2000:
            return found
    raise AssertionError("the machine is too slow")


def test_delayed_messages_come_when_they_are_due(weir: Node, name: str) -> None:
    connection = weir.connect()
    channel = connection.channel()
    channel.confirm_delivery()

    def attempt(delay_ms: int) -> tuple[str, int]:
        queue = f"{name}-{delay_ms}"
        channel.exchange_declare(queue, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, queue, "k")
        for delay in (delay_ms, 0, -5, "nonsense"):
            said = pika.BasicProperties(headers={"x-delay": delay})
            channel.basic_publish(queue, "k", str(delay).encode(), said)
        return queue, delay_ms

    queue, delay_ms = before_it_is_due(attempt)
    got: list[tuple[bytes, Any]] = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=60):
        got.append((body, properties.headers["x-delay"]))
        channel.basic_ack(method.delivery_tag)
        if len(got) == 4:
            break
    late = (str(delay_ms).encode(), -delay_ms)
    assert got == [(b"0", 0), (b"-5", -5), (b"nonsense", "nonsense"), late]
    channel.basic_publish(queue, "k", b"far", pika.BasicProperties(headers={"x-delay": 1 << 62}))
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    connection.close()


def test_what_is_delayed_is_routed_by_the_bindings_of_the_moment_when_it_is_due(weir: Node, name: str) -> None:
    connection = weir.connect()
    channel = connection.channel()
    channel.confirm_delivery()

    def attempt(delay_ms: int) -> tuple[str, list[str]]:
        """Who was bound when it was published is not any more, and others are."""
        exchange = f"{name}-{delay_ms}"
        queues = [f"{exchange}-{key}" for key in ("a.b", "cc", "bcc")]
        kind = {"x-delayed-type": "topic"}
        channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments=kind)
        for queue in (exchange, *queues):
            channel.queue_declare(queue, durable="cc" in queue)
        channel.queue_bind(exchange, exchange, "a.#")
        said = pika.BasicProperties(
            headers={"x-delay": delay_ms, "CC": ["cc"], "BCC": ["bcc"], "x": 1}, delivery_mode=2, message_id="m"
        )
        channel.basic_publish(exchange, "a.b", b"1", said)
        channel.queue_unbind(exchange, exchange, "a.#")
        for queue in queues:
            channel.queue_bind(queue, exchange, queue.removeprefix(f"{exchange}-"))
        return exchange, queues

    exchange, queues = before_it_is_due(attempt)
    for queue in queues:
        method, properties, body = until(lambda q=queue: (got := channel.basic_get(q, True))[0] and got)
        assert (method.exchange, method.routing_key, method.redelivered, body) == (exchange, "a.b", False, b"1")
        delay_ms = properties.headers.pop("x-delay")
        assert delay_ms == -int(exchange.rpartition("-")[2])
        assert properties.headers == {"CC": ["cc"], "x": 1}
        assert (properties.message_id, properties.delivery_mode) == ("m", 2)
    assert channel.basic_get(exchange) == (None, None, None)
    assert f"amq.delayed.{exchange}" not in weir.call(lambda: _names(weir))
    connection.close()


async def _names(weir: Node) -> Sequence[str]:
    return await (await weir.up.composed.queues.open(DEFAULT_NAMESPACE)).names()


def test_what_waits_for_an_exchange_goes_with_it(weir: Node, name: str) -> None:
    connection = weir.connect()
    channel = connection.channel()
    channel.confirm_delivery()

    def attempt(delay_ms: int) -> str:
        exchange, kind = f"{name}-{delay_ms}", {"x-delayed-type": "fanout"}
        channel.queue_declare(exchange, durable=True)
        said = pika.BasicProperties(headers={"x-delay": delay_ms})
        channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments=kind)
        channel.queue_bind(exchange, exchange)
        channel.basic_publish(exchange, "", b"1", said)
        channel.exchange_delete(exchange)
        channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments=kind)
        channel.queue_bind(exchange, exchange)
        channel.basic_publish(exchange, "", b"2", said)
        return exchange

    exchange = before_it_is_due(attempt)
    assert until(lambda: channel.basic_get(exchange, True)[2]) == b"2"
    connection.close()


def test_what_is_delayed_expires_as_any_other_once_it_is_due(weir: Node, name: str) -> None:
    connection = weir.connect()
    channel = connection.channel()
    channel.exchange_declare(name, "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    letters = f"{name}-letters"
    channel.queue_declare(letters, durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_bind(name, name)
    said = pika.BasicProperties(headers={"x-delay": 1}, expiration="1", delivery_mode=2)
    channel.basic_publish(name, "", b"x", said)
    _, properties, _ = until(lambda: (got := channel.basic_get(letters, True))[0] and got)
    (death,) = properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["exchange"], death["original-expiration"]) == (
        name,
        "expired",
        name,
        "1",
    )
    connection.close()


def test_cc_and_bcc_are_routing_keys_and_bcc_is_not_seen(channel: BlockingChannel, name: str) -> None:
    names = [f"{name}-{n}" for n in range(3)]
    for one in names:
        channel.queue_declare(one)
    headers = {"CC": [names[1]], "BCC": [names[2]], "x": 1}
    channel.basic_publish("", names[0], b"x", pika.BasicProperties(headers=headers))
    for one in names:
        _, properties, _ = channel.basic_get(one, auto_ack=True)
        assert properties.headers == {"CC": [names[1]], "x": 1}


def test_a_session_is_listed_with_its_channels_and_consumers(weir: Node, name: str) -> None:
    connection = weir.connect(client_properties={"connection_name": name})
    channel = connection.channel(7)
    channel.queue_declare(name)
    channel.basic_qos(prefetch_count=5)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"x")
    channel.basic_consume(name, print, consumer_tag="mine")
    (listed,) = [
        one
        for one in weir.up.composed.connections.all()
        if one.info.client_properties.get("connection_name") == name
    ]
    assert (listed.info.user, listed.info.vhost, listed.traffic.state) == ("guest", "/", "running")
    assert listed.info.name.endswith(f" -> 127.0.0.1:{weir.port}")
    until(lambda: listed.channels()[0].delivered, connection)
    (info,) = listed.channels()
    assert (info.number, info.confirm, info.prefetch, info.published, info.unacked) == (7, True, 5, 1, 1)
    assert [(one.tag, one.queue, one.prefetch) for one in info.consumers] == [("mine", name, 5)]

    async def close() -> None:
        listed.close("Closed via management plugin")

    weir.call(close)
    with pytest.raises(ConnectionClosedByBroker) as closed:
        until(lambda: False, connection)
    assert (closed.value.reply_code, closed.value.reply_text) == (
        320,
        "CONNECTION_FORCED - Closed via management plugin",
    )
    until(lambda: listed not in weir.up.composed.connections.all())


def test_a_stop_tells_its_clients_and_keeps_what_they_published(
    start_weir: Callable[..., Node], name: str
) -> None:
    weir = start_weir()
    connection = weir.connect()
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2))
    channel.queue_declare(name, passive=True, durable=True)
    weir.restart()
    with pytest.raises(ConnectionClosedByBroker) as closed:
        until(lambda: False, connection)
    assert (closed.value.reply_code, closed.value.reply_text) == (
        320,
        "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
    )
    again = weir.connect()
    assert again.channel().basic_get(name, auto_ack=True)[2] == b"x"
    again.close()


def test_what_one_says_in_many_pieces_is_the_same(weir: Node, name: str) -> None:
    """Bodies of many frames, frames of many reads, and many that are alike: all come in order."""
    connection = weir.connect(frame_max=4096)
    channel = connection.channel()
    channel.queue_declare(name)
    bodies = [(b"%d-" % n) * size for n, size in enumerate([1, 5, 3000, 1, 1, 0, 1, 20_000, *([2] * 200), 0, 7])]
    for body in bodies:
        channel.basic_publish("", name, body)
    got = []
    for _, _, body in channel.consume(name, auto_ack=True, inactivity_timeout=60):
        got.append(body)
        if len(got) == len(bodies):
            break
    assert got == bodies
    connection.close()


def test_publishes_to_many_queues_are_confirmed_when_all_have_them(weir: Node, name: str) -> None:
    connection = weir.connect()
    channel = connection.channel()
    channel.exchange_declare(name, "fanout")
    names = [f"{name}-{n}" for n in range(4)]
    for n, one in enumerate(names):
        channel.queue_declare(one, durable=n % 2 == 0)
        channel.queue_bind(one, name)
    publisher = connection.channel()
    publisher.confirm_delivery()
    for n in range(50):
        publisher.basic_publish(name, "", b"%d" % n, pika.BasicProperties(delivery_mode=2), mandatory=True)
    for one in names:
        got = [channel.basic_get(one, auto_ack=True)[2] for _ in range(51)]
        assert got == [*(b"%d" % n for n in range(50)), None]
    connection.close()
