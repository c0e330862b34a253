"""Small data folders with messages, and what can be read of them."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.consumer import Subscribing
from weir.client.pulsar.messages import Outgoing
from weir.runtime.interfaces import Runtime
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load

TOPICS, COUNT, ACKED = ("a", "b", "c"), 40, 20


def node_on(folder: Path, runtime: Runtime | None = None) -> BrokerNode:
    settings = [f"listeners.{name}=127.0.0.1:0" for name in ("pulsar", "http")]
    settings += [f"data={folder}", "storage.low_water_bytes=0", "storage.high_water_bytes=0"]
    settings += [
        "listeners.kafka=",
        "listeners.amqp=",
        "listeners.rocketmq=",
        "storage.journal_file_bytes=1048576",
    ]
    return BrokerNode(runtime or real_runtime(), load(assignments=settings).config)


async def fill(folder: Path, crashed: Path) -> None:
    """Messages, one entry each, and a subscription that has acknowledged half of them; as a crash and as an
    ordered end leave them."""
    node = node_on(folder)
    await node.start()
    async with PulsarClient(real_runtime(), f"pulsar://{node.addresses['pulsar']}") as client:
        for topic in TOPICS:
            consumer = await client.consumer(topic, Subscribing("s", earliest=True))
            producer = await client.producer(topic)
            for number in range(COUNT):
                await producer.send(Outgoing(b"%s %d" % (topic.encode(), number)))
            for _ in range(ACKED):
                message = await consumer.receive()
                assert message is not None
                await consumer.ack(message)
    shutil.copytree(folder, crashed)
    await node.close()


async def left(
    folder: Path, topics: Sequence[str] = TOPICS, runtime: Runtime | None = None, *, positions: bool = True
) -> dict[str, list[int]]:
    """What a new subscription gets of each topic, up to a message that is sent now."""
    node = node_on(folder, runtime)
    await node.start()
    try:
        async with (
            asyncio.timeout(60),
            PulsarClient(runtime or real_runtime(), f"pulsar://{node.addresses['pulsar']}") as client,
        ):
            found = {}
            for topic in topics:
                await (await client.producer(topic)).send(Outgoing(b"end"))
                found[topic] = await _numbers(client, topic, "new")
                if positions and topic in TOPICS:
                    found[f"{topic}/s"] = await _numbers(client, topic, "s")
            return found
    finally:
        await node.close()


async def _numbers(client: PulsarClient, topic: str, subscription: str) -> list[int]:
    consumer = await client.consumer(topic, Subscribing(subscription, earliest=True))
    found: list[int] = []
    while (message := await consumer.receive()) is not None:
        await consumer.ack(message)
        if bytes(message.payload) == b"end":
            break
        found.append(int(bytes(message.payload).split()[1]))
    return found
