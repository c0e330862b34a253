"""Connections that are closed while bytes are in flight: the last word arrives, and nothing is reset."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import aio_pika
import pytest
from pika.exceptions import AMQPError, ConnectionClosedByBroker

from weir.broker.queues.durable_queue import DurableQueue
from weir.gateway.amqp.session import Session
from weir.model.errors import TopicClosedError
from weir.wire.amqp.command_reader import Command, CommandReader
from weir.wire.amqp.content import publish
from weir.wire.amqp.frames import PROTOCOL_HEADER, Role
from weir.wire.amqp.methods import Method, basic, connection, encode_method, queue
from weir.wire.amqp.methods import channel as channels
from weir.wire.amqp.properties import Properties, encode_properties
from weir.wire.amqp.tables import Table

from .conftest import TIMEOUT_S, Node, until

#: More than the buffers of both sockets hold.
FLOOD = 400
BODY = bytes(100_000)
FRAME_MAX = 131_072


class Client:
    """One connection over a socket. Every failure of the socket is an error."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._reader = CommandReader(Role.CLIENT, frame_max=1 << 24)
        self._commands: list[Command] = []
        self.socket.sendall(PROTOCOL_HEADER)
        assert isinstance(self.read(), connection.Start)
        self.say(0, connection.StartOk(Table.of({}), "PLAIN", b"\0guest\0guest"))
        assert isinstance(self.read(), connection.Tune)
        self.say(0, connection.TuneOk(2047, FRAME_MAX, 0), connection.Open("/"))
        assert isinstance(self.read(), connection.OpenOk)
        for number in (1, 2):
            self.say(number, channels.Open())
            assert isinstance(self.read(), channels.OpenOk)

    def declare(self, name: str) -> None:
        self.say(1, queue.Declare(queue=name, durable=True))
        assert isinstance(self.read(), queue.DeclareOk)

    def say(self, number: int, *methods: Method) -> None:
        self.socket.sendall(b"".join(encode_method(number, method) for method in methods))

    def publish(self, number: int, name: str, count: int = 1) -> None:
        properties = encode_properties(Properties())
        parts = publish(number, basic.Publish(routing_key=name), properties, BODY, FRAME_MAX)
        data = b"".join(bytes(part) for part in parts)
        for _ in range(count):
            self.socket.sendall(data)

    def read(self) -> Method | None:
        """The next method; None at the end of the stream."""
        while not self._commands:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self._commands += self._reader.feed(data)
        return self._commands.pop(0).method


@pytest.fixture
def patient(start_weir: Callable[..., Node]) -> Node:
    """A node that waits for its clients' last words as long as a real one does."""
    return start_weir(linger_s=TIMEOUT_S, settle_s=TIMEOUT_S, max_publishes=8)


@pytest.fixture
def client(patient: Node) -> Iterator[Client]:
    found = Client(patient.port)
    yield found
    found.socket.close()


@pytest.fixture
def no_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues have no capacity: connections that publish are not read any more."""
    never = threading.Event()

    async def wait_capacity(_queue: DurableQueue) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(DurableQueue, "wait_capacity", wait_capacity)
    monkeypatch.setattr(DurableQueue, "has_capacity", property(lambda _queue: never.is_set()))


def the_session(node: Node) -> Session:
    found: Session = until(node.sessions)[0]
    return found


def end_it(node: Node) -> None:
    """The broker closes the connections of its clients, as at a shutdown."""

    async def end() -> None:
        for session in node.sessions():
            session.end(TopicClosedError("shutdown"))

    node.call(end)


def test_publishes_that_follow_the_close_are_discarded_until_the_client_closes_the_socket(
    patient: Node, client: Client, name: str
) -> None:
    client.declare(name)
    client.publish(1, name, 20)
    client.say(0, connection.Close(200, "bye", 0, 0))
    client.publish(2, name, FLOOD)
    assert isinstance(client.read(), connection.CloseOk)
    client.publish(2, name, FLOOD)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read() is None
    other = patient.connect()
    assert other.channel().queue_declare(name, passive=True).method.message_count == 20
    other.close()


def test_a_client_that_never_closes_the_socket_is_let_go_of(start_weir: Callable[..., Node], name: str) -> None:
    node = start_weir(linger_s=0.1)
    client = Client(node.port)
    client.say(0, connection.Close(200, "bye", 0, 0))
    assert isinstance(client.read(), connection.CloseOk)
    until(lambda: not node.sessions())
    client.socket.close()


def test_a_message_that_is_half_sent_when_the_connection_closes_keeps_no_memory(
    patient: Node, client: Client, name: str
) -> None:
    client.declare(name)
    large = publish(1, basic.Publish(routing_key=name), encode_properties(Properties()), bytes(4 << 20), FRAME_MAX)
    half = b"".join(bytes(part) for part in large)[: 2 << 20]
    session = the_session(patient)
    whole = _whole_frames(half)  # no other frame may lie inside one
    client.socket.sendall(whole)
    until(lambda: session.receiving._reader.held_bytes)
    client.say(0, connection.Close(200, "bye", 0, 0))
    assert isinstance(client.read(), connection.CloseOk)
    assert session.receiving._reader.held_bytes == 0
    assert session.receiving._request_share.arriving == 0
    client.socket.sendall(b"".join(bytes(part) for part in large)[len(whole) :])
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read() is None


def _whole_frames(data: bytes) -> bytes:
    at = 0
    while at + 7 <= len(data):
        end = at + 8 + int.from_bytes(data[at + 3 : at + 7], "big")
        if end > len(data):
            break
        at = end
    return data[:at]


def test_a_server_that_closes_while_its_client_floods_it_is_heard(
    patient: Node, client: Client, no_capacity: None, name: str
) -> None:
    client.declare(name)
    flood = threading.Thread(target=client.publish, args=(1, name, FLOOD))
    flood.start()
    session = the_session(patient)
    until(lambda: session.receiving.held_back)
    end_it(patient)
    closing = client.read()
    assert isinstance(closing, connection.Close)
    assert closing.reply_code == 320
    flood.join(TIMEOUT_S)
    assert not flood.is_alive()
    client.publish(2, name, FLOOD)  # whoever has not read the close goes on
    client.say(0, connection.CloseOk())
    assert client.read() is None


def test_commands_behind_a_held_back_publish_do_not_hide_the_servers_close(
    patient: Node, client: Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    client.declare(name)
    session = the_session(patient)
    full = threading.Event()
    full.set()
    monkeypatch.setattr(type(session.load), "full", property(lambda _load: full.is_set()))
    client.publish(1, name, 5)
    client.say(1, queue.Declare(queue=name, passive=True))
    until(lambda: session.receiving.held_back)
    end_it(patient)
    full.clear()
    assert isinstance(client.read(), connection.Close)
    client.say(0, connection.CloseOk())
    assert client.read() is None


def test_what_follows_a_frame_error_does_not_reset_the_connection(
    patient: Node, client: Client, name: str
) -> None:
    client.declare(name)
    client.socket.sendall(b"\x01\x00\x01\x00\x00\x00\x04\xff\xff\xff\xff\xce")
    client.publish(1, name, FLOOD)
    closing = client.read()
    assert isinstance(closing, connection.Close)
    client.publish(1, name, FLOOD)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read() is None


def test_pika_closes_channel_and_connection_behind_publishes_that_wait(patient: Node, name: str) -> None:
    made = patient.connect()
    channel = made.channel()
    channel.queue_declare(name, durable=True)
    for number in range(FLOOD):
        channel.basic_publish("", name, b"%d" % number)
    channel.close()
    made.channel()
    made.close()
    other = patient.connect()
    assert other.channel().queue_declare(name, passive=True).method.message_count == FLOOD
    other.close()


def test_pika_learns_why_the_server_closes_while_it_publishes(patient: Node, no_capacity: None, name: str) -> None:
    made = patient.connect()
    channel = made.channel()
    channel.queue_declare(name, durable=True)

    ends: list[BaseException] = []

    def flood() -> None:
        try:
            while True:
                channel.basic_publish("", name, BODY)
        except AMQPError as end:
            ends.append(end)

    publisher = threading.Thread(target=flood)
    publisher.start()
    until(lambda: the_session(patient).receiving.held_back)
    end_it(patient)
    publisher.join(TIMEOUT_S)
    assert not publisher.is_alive()
    (end,) = ends
    assert isinstance(end, ConnectionClosedByBroker)
    assert end.reply_code == 320


async def test_aio_pika_closes_with_publishes_under_way(patient: Node, name: str) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{patient.port}/"
    made = await aio_pika.connect(url)
    first, second = [await made.channel(publisher_confirms=False) for _ in range(2)]
    await first.declare_queue(name, durable=True)
    await asyncio.gather(
        *(
            each.default_exchange.publish(aio_pika.Message(BODY), name)
            for _ in range(FLOOD // 4)
            for each in (first, second)
        )
    )
    async with asyncio.timeout(TIMEOUT_S):
        await first.close()
        await made.close()
