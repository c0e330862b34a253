"""Abuse over sockets: frames that lie, floods of channels, messages that nobody acknowledges, clients that do not
read. What it costs is bounded, and others are served meanwhile."""

import os
import socket
from collections.abc import Callable, Iterator
from struct import pack
from typing import Any

import pytest

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process

KIB = 1024
MIB = 1024 * KIB
Until = Callable[[Callable[[], Any]], Any]


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One `weir up` with a small cache, so that memory shows what connections cost."""
    up = UpProcess(tmp_path_factory.mktemp("weir"), "storage.cache_bytes=8MiB")
    up.start()
    yield up
    up.close()


@pytest.fixture
def raw(amqp: str) -> Iterator[Callable[..., Any]]:
    """Opens connections of a client that hides nothing."""
    from tests.gateway.amqp.behaviour.raw import Raw

    opened: list[Raw] = []

    def open_one(*, bare: bool = False, **options: Any) -> Raw:
        client = Raw(amqp)
        opened.append(client)
        if not bare:
            client.open(**options)
            client.channel()
        return client

    yield open_one
    for client in opened:
        client.close()


@pytest.fixture
def talk(amqp: str) -> Iterator[Any]:
    from tests.gateway.amqp.behaviour.talk import Talk

    talk = Talk(amqp)
    yield talk
    talk.close()


def rss(weir: UpProcess) -> int:
    """Bytes of memory that the broker holds."""
    with open(f"/proc/{weir.pid}/statm") as told:
        return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def served(talk: Any, name: str) -> None:
    """Others are: a message goes in and comes out."""
    channel = talk.channel()
    other = channel.queue(f"{name}-other", exclusive=True)
    channel.put(other, "body")
    assert channel.take(other) == ["body"]


def frame(kind: int, number: int, payload: bytes, size: int | None = None) -> bytes:
    return pack(">BHI", kind, number, len(payload) if size is None else size) + payload + b"\xce"


_PUBLISH = pack(">HHH", 60, 40, 0) + b"\0\4none\0"


def test_a_frame_that_announces_gigabytes_is_refused_before_they_come(
    raw: Any, talk: Any, weir: UpProcess, name: str
) -> None:
    before = rss(weir)
    for _ in range(20):
        client = raw()
        client.send_bytes(frame(3, 1, b"", size=(1 << 31) - 1))
        assert client.hear().startswith("connection 501")
    assert rss(weir) - before < 16 * MIB
    served(talk, name)


def test_a_body_over_all_limits_ends_the_connection_and_one_over_the_brokers_its_channel(
    raw: Any, talk: Any, name: str
) -> None:
    client = raw()
    client.send_bytes(frame(1, 1, _PUBLISH) + frame(2, 1, pack(">HHQ", 60, 0, 1 << 40) + b"\0\0"))
    assert client.hear().startswith("connection 501")

    client = raw()
    size = 17 * MIB
    client.send_bytes(frame(1, 1, _PUBLISH) + frame(2, 1, pack(">HHQ", 60, 0, size) + b"\0\0"))
    most = 128 * KIB - 8
    for _ in range(size // most):  # it is read, and not kept
        client.send_bytes(frame(3, 1, bytes(most)))
    client.send_bytes(frame(3, 1, bytes(size % most)))
    assert client.hear().startswith("channel 406")
    assert client.channel(2) == {"on": 2, "is": "channel.open-ok"}
    served(talk, name)


def test_as_many_channels_as_agreed_are_opened_again_and_again(
    raw: Any, talk: Any, weir: UpProcess, name: str
) -> None:
    from weir.wire.amqp.methods import channel, encode_method

    client = raw()
    before = 0
    for turn in range(3):
        numbers = range(2, 2048)
        client.send_bytes(b"".join(encode_method(number, channel.Open()) for number in numbers))
        assert {client.hear()["is"] for _ in numbers} == {"channel.open-ok"}
        if turn == 0:
            before = rss(weir)
        client.send_bytes(b"".join(encode_method(number, channel.Close(200, "bye")) for number in numbers))
        assert {client.hear()["is"] for _ in numbers} == {"channel.close-ok"}
    assert rss(weir) - before < 40 * MIB
    served(talk, name)


def test_what_nobody_acknowledges_comes_back_and_costs_little(
    raw: Any, talk: Any, weir: UpProcess, name: str
) -> None:
    from weir.wire.amqp.methods import basic, confirm, queue

    count = 3000
    client = raw()
    client.ask(1, queue.Declare(name, durable=True))
    client.ask(1, confirm.Select())
    for _ in range(count):
        client.publish(1, basic.Publish("", name), b"x" * 100)
    last = 0
    while last < count:
        last = client.hear()["delivery_tag"]
    before = rss(weir)
    for _ in range(3):
        hoarder = raw()
        hoarder.send(1, basic.Consume(name, "mine"))
        for _ in range(count + 1):
            hoarder.hear()
        served(talk, name)
        hoarder.hang_up()
        assert talk.channel().until_count(name, count) == count
    assert rss(weir) - before < 32 * MIB
    assert talk.channel().delete(name) == count


def test_a_consumer_that_does_not_read_holds_little_and_nobody_up(
    raw: Any, talk: Any, weir: UpProcess, until: Until, name: str
) -> None:
    from weir.wire.amqp.methods import basic, queue

    count = 60
    made = talk.channel()
    made.queue(name, durable=True)
    for _ in range(count):
        made.put(name, "x" * MIB)
    before = rss(weir)
    slow = raw()
    slow.ask(1, queue.Declare(name, durable=True))
    slow.send(1, basic.Consume(name, "slow"))
    left = until(lambda: 0 < (found := made.count(name)) < count and found)
    served(talk, name)
    assert rss(weir) - before < 48 * MIB
    slow.hang_up()
    assert made.until_count(name, count) == count, left
    assert made.delete(name) == count


def test_a_publisher_that_does_not_read_what_is_returned_is_read_no_further(
    raw: Any, talk: Any, weir: UpProcess, name: str
) -> None:
    from weir.wire.amqp.methods import basic

    client = raw()
    before = rss(weir)
    client._socket.settimeout(0.5)
    message = _publish(basic.Publish("", f"{name}-none", mandatory=True), b"x" * 100_000)
    with pytest.raises(TimeoutError):
        for _ in range(3000):  # 300 MB
            client._socket.sendall(message)
    served(talk, name)
    assert rss(weir) - before < 64 * MIB


def test_a_transaction_without_end_is_refused(raw: Any, talk: Any, name: str) -> None:
    from weir.wire.amqp.methods import basic, queue, tx

    client = raw()
    client.ask(1, queue.Declare(name, exclusive=True))
    client.ask(1, tx.Select())
    message = _publish(basic.Publish("", name), b"x" * MIB)
    for _ in range(66):
        client.send_bytes(message)
    assert client.hear().startswith("channel 406")
    served(talk, name)


def test_connections_that_come_and_go_leave_nothing_behind(
    amqp: str, raw: Any, talk: Any, weir: UpProcess, until: Until, name: str
) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{weir.pid}/fd"))

    served(talk, name)
    before = descriptors()
    host, _, port = amqp.rpartition(":")
    for number in range(100):
        with socket.create_connection((host, int(port))) as opened:
            if number % 2:
                opened.sendall(b"AMQP\0\0\x09\1")
    for _ in range(50):
        raw().hang_up()
    until(lambda: descriptors() <= before)
    served(talk, f"{name}-again")


def _publish(method: Any, body: bytes) -> bytes:
    from weir.wire.amqp.content import publish

    return b"".join(bytes(part) for part in publish(1, method, b"\0\0", body, 131_072))
