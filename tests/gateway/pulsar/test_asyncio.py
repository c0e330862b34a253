"""The official client's asyncio interface."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pytest
from pulsar import asyncio as pulsar_asyncio


@pytest.fixture
async def client(weir_broker: Any, tmp_path: Any) -> AsyncIterator[Any]:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "client.log"))
    made = pulsar_asyncio.Client(weir_broker.url, operation_timeout_seconds=60, logger=quiet)
    yield made
    await made.close()


async def test_messages_go_through(client: Any, talk: Any, topic: str) -> None:
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic, batching_enabled=True)
    ids = await asyncio.gather(*(producer.send(payload) for payload in talk.numbered(200)))
    assert len({str(at) for at in ids}) == 200
    got = []
    for _ in range(200):
        message = await asyncio.wait_for(consumer.receive(), 60)
        got.append(message.data())
        await consumer.acknowledge(message)
    assert got == talk.numbered(200)


async def test_consumers_seek_nack_and_leave(client: Any, talk: Any, topic: str) -> None:
    producer = await client.create_producer(topic)
    consumer = await client.subscribe(topic, "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    await producer.send(b"x")
    message = await asyncio.wait_for(consumer.receive(), 60)
    await consumer.negative_acknowledge(message)
    again = await asyncio.wait_for(consumer.receive(), 60)
    assert again.redelivery_count() == 1
    await consumer.acknowledge(again)
    await consumer.seek(message.publish_timestamp() - 1000)
    last = await consumer.get_last_message_id()
    assert last.entry_id() == 0
    assert (await asyncio.wait_for(consumer.receive(), 60)).data() == b"x"
    await consumer.unsubscribe()


async def test_readers_read(client: Any, talk: Any, topic: str) -> None:
    producer = await client.create_producer(topic)
    for payload in talk.numbered(10):
        await producer.send(payload)
    reader = await client.create_reader(topic, pulsar.MessageId.earliest)
    got = [(await asyncio.wait_for(reader.read_next(), 60)).data() for _ in range(10)]
    assert got == talk.numbered(10)
    assert not await reader.has_message_available()


async def test_a_refusal_is_an_exception(client: Any, topic: str) -> None:
    first = await client.subscribe(topic, "s")
    with pytest.raises(pulsar_asyncio.PulsarException):
        await client.subscribe(topic, "s")
    await first.close()
