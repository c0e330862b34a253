"""Bad input: the broker answers or closes, and stays well."""

import asyncio
import http.client
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pulsar
import pytest

from weir.model.errors import NetworkError
from weir.testing.codecs.fuzzing import mutate
from weir.testing.codecs.pulsar_samples import any_command
from weir.testing.kinds import rounds
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.commands import COMMANDS, Command, Role, Type
from weir.wire.pulsar.frames import encode_command, encode_with_message
from weir.wire.pulsar.message import seal_message
from weir.wire.pulsar.proto import Message

TOPIC = "persistent://public/default/t"
FROM_CLIENTS = [command for command in COMMANDS.values() if Role.CLIENT in command.sender]
EVERY_COMMAND = pytest.mark.parametrize("command", FROM_CLIENTS, ids=lambda command: command.name)
ROUNDS = rounds(150)
Peers = Callable[[], Awaitable[Any]]


def sample(kind: type[Message], dice: Random) -> bytes:
    """A frame of this kind, with anything in it."""
    command = any_command(kind, dice)
    if not isinstance(command, api.CommandSend):
        return encode_command(command)
    head = any_command(api.MessageMetadata, dice)
    if dice.random() < 0.5:
        head.ClearField("num_messages_in_batch")
    if dice.random() < 0.5:
        head.ClearField("deliver_at_time")
    return b"".join(encode_with_message(command, seal_message(head, dice.randbytes(dice.randrange(50)))))


def resized(data: bytes) -> bytes:
    """With a right total length in front, so that what is wrong lies deeper."""
    return (len(data) - 4).to_bytes(4, "big") + data[4:] if len(data) > 4 else data


async def abuse(peers: Peers, command: Command, rounds: int) -> None:
    """Say mutated and whole frames of a kind to a broker that has a producer, a consumer and messages."""
    dice = Random(f"abuse {command.name}")
    peer = None
    for _ in range(rounds):
        if peer is None:
            peer = await peers()
            await prepare(peer)
        data = sample(command.kind, dice)
        framed = True
        if dice.random() < 0.6:
            data = mutate(data, dice, sample(command.kind, dice))
            framed = dice.random() < 0.7
            if framed:
                data = resized(data)
        peer.connection.write([data])
        if not framed:  # it may wait for more for ever
            await peer.connection.drain()
            peer.connection.close()
            peer = None
        elif dice.random() < 0.2 and not await still_answers(peer):
            peer = None
    if peer is not None:
        await still_answers(peer)


async def prepare(peer: Any) -> None:
    await peer.greet()
    peer.say(api.CommandProducer(topic=TOPIC, producer_id=1, request_id=1))
    peer.say(
        api.CommandSubscribe(
            topic=TOPIC,
            subscription="abuse",
            subType=api.CommandSubscribe.Shared,
            consumer_id=1,
            request_id=2,
            durable=False,
        )
    )
    for _ in range(2):
        frame = await peer.frame()
        assert isinstance(frame.command, api.CommandProducerSuccess | api.CommandSuccess), frame.command
    for sequence in range(3):
        peer.send(1, sequence, num_messages_in_batch=2)
    peer.say(api.CommandFlow(consumer_id=1, messagePermits=1000))


async def still_answers(peer: Any) -> bool:
    """Whether the session lives: it says pong before it hangs up, however much else it says."""
    try:
        async with asyncio.timeout(60):
            peer.say(api.CommandPing())
            while (frame := await peer.frame()) is not None:
                if isinstance(frame.command, api.CommandPong):
                    return True
    except (NetworkError, TimeoutError):
        peer.connection.abort()
    return False


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{r.getMessage()}: {r.exc_info}" for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.slow
@EVERY_COMMAND
def test_mutated_commands_over_the_fake_broker(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture, command: Command
) -> None:
    async def conversation(stage: Any) -> None:
        witness = await stage.peer()
        await abuse(stage.stranger, command, ROUNDS)
        await stage.later(1)
        assert await still_answers(witness)

    play(conversation, max_requests=50, idle_timeout_s=10_000)
    assert errors(caplog) == []


@pytest.mark.slow
@EVERY_COMMAND
def test_mutated_commands_over_the_whole_broker(
    weir_broker: Any, caplog: pytest.LogCaptureFixture, command: Command
) -> None:
    weir_broker.call(lambda: abuse(weir_broker.peer, command, ROUNDS // 3), timeout_s=200)
    assert errors(caplog) == []


def test_the_broker_is_well_after_all_that(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    talk.send(client.create_producer(topic), talk.numbered(100))
    assert talk.receive(consumer, 100) == talk.numbered(100)
    consumer = client.subscribe(TOPIC, "another")
    client.create_producer(TOPIC).send(b"still there")
    assert consumer.receive(60_000).data() == b"still there"


@pytest.mark.parametrize(
    "data",
    [
        b"HELO example.org\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x04\x00\x00\x00\x00",
        b"\x00\x00\x00\x05\x00\x00\x00\xff\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x04\x08\x02\x12\x00",
        bytes(range(256)) * 100,
    ],
    ids=["smtp", "huge", "empty", "no command", "beyond the frame", "an empty connect", "noise"],
)
def test_strange_first_bytes_end_the_connection(weir_broker: Any, data: bytes) -> None:
    async def say() -> None:
        peer = await weir_broker.peer()
        peer.connection.write([data])
        with suppress(NetworkError):
            while (frame := await peer.frame()) is not None:
                assert isinstance(frame.command, api.CommandError)

    weir_broker.call(say)


CLIMBING = [
    "..",
    "../x",
    "..%2fx",
    "%2e%2e",
    "%2e%2e/%2e%2e/x",
    "persistent://../../x",
    "persistent://public/../x",
    "persistent://public/default/..",
    "persistent://public/default/../../../x",
    "persistent://public/default/..%2f..%2fx",
    "persistent://public/default/%2e%2e%2f%2e%2e%2fx",
    "persistent://public/default/x\x00y",
    "persistent:///etc/passwd",
    "/etc/passwd",
    "..\\..\\x",
]


@pytest.mark.slow
def test_names_that_try_to_leave_the_data_folder(start_broker: Any, tmp_path: Path) -> None:
    """Refused, or the name of a topic like any other: nothing is written outside of the folder."""
    node = start_broker()
    beside = sorted(tmp_path.parent.iterdir())

    async def say() -> None:
        peer = await node.peer()
        await peer.greet()
        for at, name in enumerate(CLIMBING):
            await climb(peer, name, at)

    node.call(say)
    address = node.up.addresses["http"]
    for name in CLIMBING:
        for where in ("", "persistent/public/default/", "tenants/", "namespaces/public/"):
            asked = http.client.HTTPConnection(address.host, address.port, timeout=60)
            with suppress(ValueError, http.client.InvalidURL):  # what the client itself refuses to send
                asked.request("PUT", f"/admin/v2/{where}{name}", "{}", {"content-type": "application/json"})
                assert asked.getresponse().status < 500, (where, name)
            asked.close()
    node.restart()
    assert sorted(tmp_path.parent.iterdir()) == beside
    assert list(tmp_path.iterdir()) == [tmp_path / "node0"]


async def climb(peer: Any, name: str, at: int) -> None:
    """Use the name for everything that has one."""
    peer.say(api.CommandProducer(topic=name, producer_id=at, request_id=at))
    made = (await peer.frame()).command
    assert isinstance(made, api.CommandProducerSuccess | api.CommandError)
    if isinstance(made, api.CommandProducerSuccess):
        peer.send(at, 0)
        await peer.hear(api.CommandSendReceipt)
    shared = api.CommandSubscribe.Shared
    for topic, subscription in (("t", name), (name, "s")):
        peer.say(
            api.CommandSubscribe(
                topic=topic, subscription=subscription, subType=shared, consumer_id=at, request_id=at
            )
        )
        assert isinstance((await peer.frame()).command, api.CommandSuccess | api.CommandError)
        peer.say(api.CommandCloseConsumer(consumer_id=at, request_id=at))
        await peer.hear(api.CommandSuccess)
    peer.say(api.CommandGetTopicsOfNamespace(request_id=at, namespace=name))
    await peer.hear(api.CommandError)


def test_a_frame_over_the_limit_is_refused_before_it_is_read(weir_broker: Any) -> None:
    async def say() -> None:
        peer = await weir_broker.peer()
        await peer.greet()
        peer.connection.write([(17 * 1024 * 1024).to_bytes(4, "big")])
        assert (await peer.hear(api.CommandError)).error == api.ServerError.NotAllowedError
        assert await peer.hangs_up()

    weir_broker.call(say)


@pytest.mark.slow
def test_many_connections_come_and_go(weir_broker: Any, client: pulsar.Client, talk: Any, topic: str) -> None:
    """Some hundreds that say nothing, half of a connect, or hang up at once; a client beside them is served."""
    address = weir_broker.up.addresses["pulsar"]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    strangers = []
    for at in range(400):
        stranger = socket.create_connection((address.host, address.port))
        if at % 3 == 1:
            stranger.sendall(encode_command(api.CommandConnect(client_version="x"))[: at % 17])
        if at % 3 == 2:
            stranger.close()
        else:
            strangers.append(stranger)
    talk.send(producer, talk.numbered(50))
    assert talk.receive(consumer, 50) == talk.numbered(50)
    for stranger in strangers:
        stranger.close()


@pytest.mark.slow
def test_a_flood_from_one_client_does_not_stop_another(weir_broker: Any, client: pulsar.Client, talk: Any) -> None:
    """Sends without end on one connection, never reading a receipt; the other goes on, and memory is bounded."""

    loads: list[int] = []

    async def flood() -> None:
        peer = await weir_broker.peer()
        await peer.greet(client_version="a flood")
        (session,) = [each for each in weir_broker.sessions() if each.client_version == "a flood"]
        await peer.produce(TOPIC + "-flood")
        with suppress(TimeoutError):
            for burst in range(200):
                for at in range(100):
                    peer.send(1, 100 * burst + at, bytes(1000))
                loads.append(session.load.publishes)
                async with asyncio.timeout(1):  # it is not read any more: that is how the flood ends
                    await peer.connection.drain()
        peer.connection.abort()

    flooding = weir_broker.begin(flood)
    consumer = client.subscribe(TOPIC + "-calm", "s")
    producer = client.create_producer(TOPIC + "-calm")
    for payload in talk.numbered(50):
        producer.send(payload)
    assert talk.receive(consumer, 50) == talk.numbered(50)
    flooding.result(120)
    assert max(loads) <= 4096


def test_acknowledging_what_was_never_delivered(weir_broker: Any) -> None:
    async def say() -> None:
        peer = await weir_broker.peer()
        await prepare(peer)
        ids = [api.MessageIdData(ledgerId=at % 5, entryId=at) for at in range(5000)]
        peer.say(api.CommandAck(consumer_id=1, ack_type=api.CommandAck.Individual, message_id=ids))
        big = api.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1, ack_set=[-1] * 10_000)
        peer.say(api.CommandAck(consumer_id=1, ack_type=api.CommandAck.Cumulative, message_id=[big]))
        assert await still_answers(peer)

    weir_broker.call(say)


def test_a_batch_that_claims_too_much_is_refused(weir_broker: Any) -> None:
    async def say() -> None:
        peer = await weir_broker.peer()
        await peer.greet()
        await peer.produce(TOPIC)
        for claim in (2**31 - 1, 100_001, 0, -5):
            peer.send(1, 0, num_messages_in_batch=claim)
            assert (await peer.hear(api.CommandSendError)).error == api.ServerError.NotAllowedError

    weir_broker.call(say)


def test_every_command_of_a_client_has_a_handler() -> None:
    from weir.gateway.pulsar.command_table import HANDLERS, load_handlers

    load_handlers()
    later = {Type.CONNECTED}
    assert {command.number for command in FROM_CLIENTS} - set(HANDLERS) - later == set()
