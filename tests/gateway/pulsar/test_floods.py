"""Floods over the whole broker: of deliveries that nobody reads, of what nobody acknowledges, of tiny messages, of
connections. Memory stays bounded, and others are served meanwhile."""

import asyncio
import socket
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from weir.model.errors import NetworkError
from weir.model.policies import Policies
from weir.wire.pulsar import pulsar_api_pb2 as api

KIB = 1024
MIB = 1024 * KIB


def served(client: pulsar.Client, talk: Any, topic: str) -> None:
    """A client that has nothing to do with the flood gets what it sends."""
    consumer = client.subscribe(f"{topic}-calm", "s")
    producer = client.create_producer(f"{topic}-calm")
    for payload in talk.numbered(30):
        producer.send(payload)
    assert talk.receive(consumer, 30) == talk.numbered(30)


async def begin(node: Any) -> tuple[Any, Any]:
    """A peer that is connected, and its session."""
    peer = await node.peer()
    name = f"peer {uuid4()}"
    await peer.greet(client_version=name)
    (session,) = [session for session in node.sessions() if session.client_version == name]
    return peer, session


@pytest.mark.slow
def test_many_consumers_of_a_client_that_does_not_read_share_one_bound(
    start_broker: Any, connect: Any, talk: Any, topic: str
) -> None:
    node = start_broker(max_delivery_bytes=MIB)
    client = connect(node)
    topics = [f"{topic}-{at}" for at in range(40)]
    large = bytes(300 * KIB)
    for name in topics:
        talk.send(client.create_producer(name), [large] * 2)
    most: list[int] = []

    async def stall() -> tuple[Any, Any]:
        peer, session = await begin(node)
        subscribes = [
            api.CommandSubscribe(
                topic=name,
                subscription="s",
                subType=api.CommandSubscribe.Exclusive,
                consumer_id=at,
                request_id=at,
                durable=False,
                initialPosition=api.CommandSubscribe.Earliest,
            )
            for at, name in enumerate(topics)
        ]
        peer.say(*subscribes)
        for _ in topics:
            await peer.hear(api.CommandSuccess)
        peer.say(*(api.CommandFlow(consumer_id=at, messagePermits=1000) for at in range(len(topics))))
        async with asyncio.timeout(60):
            while session.outbox.stalled_at is None or session.delivery_share.used_bytes < MIB:
                most.append(session.delivery_share.used_bytes)
                await asyncio.sleep(0.001)
        most.append(session.delivery_share.used_bytes)
        return peer, session

    peer, session = node.call(stall)
    assert max(most) < MIB + 400 * KIB
    served(client, talk, topic)
    assert session.delivery_share.used_bytes < MIB + 400 * KIB

    async def read() -> int:
        return len([await peer.message() for _ in range(2 * len(topics))])

    assert node.call(read) == 2 * len(topics)  # nothing is forgotten because there was no room
    talk.until(lambda: session.delivery_share.used_bytes == 0)


@pytest.mark.slow
def test_a_consumer_that_acknowledges_nothing_gets_only_so_much(
    weir_broker: Any, client: pulsar.Client, talk: Any, topic: str
) -> None:
    weir_broker.set_policies(topic, Policies(max_unacked_per_consumer=200))
    producer = client.create_producer(topic)

    async def take() -> tuple[Any, Any]:
        peer, session = await begin(weir_broker)
        await peer.subscribe(topic, subType=api.CommandSubscribe.Shared)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=2**31 - 1))
        return peer, session

    peer, session = weir_broker.call(take)
    talk.send(producer, talk.numbered(1000))

    async def count() -> int:
        for _ in range(200):
            await peer.message()
        peer.say(api.CommandPing())
        await peer.hear(api.CommandPong)  # and not one more before it
        return session.consumers.live(1).unacked.messages

    assert weir_broker.call(count) == 200
    other = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    assert len(talk.receive(other, 800)) == 800
    served(client, talk, topic)
    weir_broker.call(lambda: hang_up(peer))
    assert len(talk.receive(other, 200)) == 200


async def hang_up(*peers: Any) -> None:
    for peer in peers:
        peer.connection.abort()


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 100])
def test_a_flood_of_tiny_messages(start_broker: Any, connect: Any, talk: Any, topic: str, batch: int) -> None:
    node = start_broker("storage.cache_bytes=1000000", "broker.in_flight_bytes=100000", max_publishes=500)
    client = connect(node)
    sends, more = 4000, ({"num_messages_in_batch": batch} if batch > 1 else {})
    context = node.broker._context
    most: dict[str, int] = {"publishes": 0, "cache": 0, "in flight": 0}

    async def flood(number: int) -> list[int]:
        peer, session = await begin(node)
        await peer.produce(f"{topic}-{number}")

        async def read() -> list[int]:
            return [(await peer.hear(api.CommandSendReceipt)).sequence_id for _ in range(sends)]

        reading = asyncio.ensure_future(read())
        for sequence in range(sends):
            peer.send(1, sequence, b"x", **more)
            if not sequence % 100:
                await peer.connection.drain()
                most["publishes"] = max(most["publishes"], session.load.publishes)
                most["cache"] = max(most["cache"], context.streams.tails.size_bytes)
                most["in flight"] = max(most["in flight"], context.publish_budget.used_bytes)
        return await reading

    async def all_at_once() -> list[list[int]]:
        return await asyncio.gather(*(flood(number) for number in range(3)))

    flooding = node.begin(all_at_once)
    served(client, talk, topic)
    assert flooding.result(120) == [list(range(sends))] * 3
    assert most["publishes"] <= 500
    assert most["cache"] <= 1_000_000 + 1000
    assert most["in flight"] <= 2 * 100_000


@pytest.mark.slow
def test_more_connections_than_there_may_be_are_turned_away(
    start_broker: Any, connect: Any, talk: Any, topic: str
) -> None:
    node = start_broker("limits.connections=20")
    client = connect(node)
    client.create_producer(topic).send(b"in before the flood")
    address = node.up.addresses["pulsar"]
    strangers = []
    for _ in range(300):
        with suppress(OSError):
            strangers.append(socket.create_connection((address.host, address.port), timeout=60))
    assert len(node.sessions()) <= 20 + 64  # a few more are told why
    served(client, talk, topic)
    for stranger in strangers:
        stranger.close()

    async def comes_in() -> bool:
        try:
            peer, _ = await begin(node)
        except (NetworkError, AssertionError, ValueError):
            return False
        await hang_up(peer)
        return True

    talk.until(lambda: node.call(comes_in))
