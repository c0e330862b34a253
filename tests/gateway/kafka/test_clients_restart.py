"""A broker that stops, or is killed, under Kafka's own clients: they go on, and nothing acknowledged is lost."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from weir.testing.processes.up import UpProcess


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_producer_and_a_consumer_go_on_after_the_broker_came_back(
    start_weir: Callable[..., UpProcess], topic: str, end: str
) -> None:
    up = start_weir()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": up.kafka, "enable.idempotence": True, "reconnect.backoff.max.ms": 100}
    )
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": up.kafka, "group.id": "none", "reconnect.backoff.max.ms": 100}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    told: list[Any] = []

    def send(first: int, end: int) -> None:
        for at in range(first, end):
            producer.produce(topic, b"%d" % at, on_delivery=lambda error, _: told.append(error))
            producer.poll(0)

    def received(count: int) -> list[bytes]:
        found = []
        for _ in range(count):
            message = consumer.poll(60)
            while message is not None and message.error() is not None:  # that the broker is away
                message = consumer.poll(60)
            assert message is not None
            found.append(message.value())
        return found

    send(0, 100)
    assert producer.flush(60) == 0
    assert received(100) == [b"%d" % at for at in range(100)]
    send(100, 200)  # some of it on its way when the broker goes
    if end == "stop":
        assert up.stop() == 0
    else:
        up.kill()
    send(200, 300)
    up.start()
    assert producer.flush(60) == 0
    assert told == [None] * 300
    assert received(200) == [b"%d" % at for at in range(100, 300)]
    consumer.close()


def test_aiokafka_goes_on_after_the_broker_came_back(start_weir: Callable[..., UpProcess], topic: str) -> None:
    up = start_weir()

    async def scenario() -> list[bytes]:
        loop = asyncio.get_running_loop()
        consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=up.kafka, auto_offset_reset="earliest")
        patient = {"enable_idempotence": True, "request_timeout_ms": 180_000}  # starting may take long
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=up.kafka, **patient) as producer:
            await producer.send_and_wait(topic, b"before")
            await consumer.start()
            found = [(await consumer.getone()).value]
            await loop.run_in_executor(None, up.stop)
            late = await producer.send(topic, b"after")
            await loop.run_in_executor(None, up.start)
            await asyncio.wait_for(late, 60)
            found.append((await asyncio.wait_for(consumer.getone(), 60)).value)
            await consumer.stop()
            return found

    assert asyncio.run(scenario()) == [b"before", b"after"]
