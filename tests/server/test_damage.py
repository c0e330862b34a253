"""Single bytes flipped all over the folder of a Weir in the test's own process: what clients get over sockets."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.consumer import Subscribing
from weir.client.pulsar.messages import Outgoing
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load

TOPICS, COUNT = ("a", "b", "c"), 40


def _weir(folder: Path) -> BrokerNode:
    settings = [f"listeners.{name}=127.0.0.1:0" for name in ("pulsar", "kafka", "amqp", "rocketmq", "http")]
    settings += [f"data={folder}", "storage.low_water_bytes=0", "storage.high_water_bytes=0"]
    return BrokerNode(real_runtime(), load(assignments=settings).config)


async def _fill(folder: Path) -> None:
    """Messages, one entry each, and a subscription that has acknowledged some of them."""
    node = _weir(folder)
    await node.start()
    async with PulsarClient(real_runtime(), f"pulsar://{node.addresses['pulsar']}") as client:
        for topic in TOPICS:
            consumer = await client.consumer(topic, Subscribing("s", earliest=True))
            producer = await client.producer(topic)
            for number in range(COUNT):
                await producer.send(Outgoing(b"%s %d" % (topic.encode(), number)))
            for _ in range(COUNT // 2):
                message = await consumer.receive()
                assert message is not None
                await consumer.ack(message)
    await node.close()


async def _left(folder: Path) -> tuple[dict[str, list[int]], dict[str, list[int]], int]:
    """What each topic's old subscription and a new one get, and how many entries are left out."""
    node = _weir(folder)
    await node.start()
    try:
        async with (
            asyncio.timeout(60),
            PulsarClient(real_runtime(), f"pulsar://{node.addresses['pulsar']}") as client,
        ):
            for topic in TOPICS:
                await (await client.producer(topic)).send(Outgoing(b"%s end" % topic.encode()))
            old = {topic: await _numbers(client, topic, "s") for topic in TOPICS}
            new = {topic: await _numbers(client, topic, "new") for topic in TOPICS}
        return old, new, node._storage.ledgers.context.losses.entries
    finally:
        await node.close()


async def _numbers(client: PulsarClient, topic: str, subscription: str) -> list[int]:
    consumer = await client.consumer(topic, Subscribing(subscription, earliest=True))
    found: list[int] = []
    while (message := await consumer.receive()) is not None:
        await consumer.ack(message)
        name, _, text = bytes(message.payload).partition(b" ")
        assert name == topic.encode(), "what is damaged is never served"
        if text == b"end":
            break
        found.append(int(text))
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled") / "data"
    asyncio.run(_fill(folder))
    return folder


def _places(folder: Path) -> Iterator[tuple[str, int]]:
    """One of each kind of file, and random ones: entry logs weigh more, indexes are mostly zeros."""
    rng = Random(11)
    for pattern, count in (("*.log", 8), ("*.idx", 4)):
        files = [path for path in sorted((folder / "bookie" / "logs").glob(pattern)) if path.stat().st_size]
        for _ in range(count):
            path = rng.choice(files)
            yield str(path.relative_to(folder)), rng.randrange(path.stat().st_size)


@pytest.mark.slow
def test_a_flipped_byte_anywhere_costs_one_message_at_the_most(filled: Path, tmp_path: Path) -> None:
    for turn, (name, offset) in enumerate(_places(filled)):
        folder = tmp_path / str(turn)
        shutil.copytree(filled, folder)
        data = bytearray((folder / name).read_bytes())
        data[offset] ^= 1 << turn % 8
        (folder / name).write_bytes(data)
        old, new, lost = asyncio.run(_left(folder))
        missing = [(topic, n) for topic in TOPICS for n in range(COUNT) if n not in new[topic]]
        assert len(missing) <= lost <= 1, (name, offset)
        for topic in TOPICS:
            assert new[topic] == sorted(new[topic])
            unacked = [n for n in range(COUNT // 2, COUNT) if (topic, n) not in missing]
            assert [n for n in old[topic] if n >= COUNT // 2] == unacked, (name, offset)
