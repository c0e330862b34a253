"""`weir up` for Kafka's own clients."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiokafka
import confluent_kafka
import pytest

from weir.testing.processes.up import UpProcess

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One `weir up` for all tests of a module."""
    up = UpProcess(tmp_path_factory.mktemp("weir"))
    up.start()
    yield up
    up.close()


@pytest.fixture(scope="module")
def bootstrap(weir: UpProcess) -> str:
    """What Kafka's clients are told to begin with."""
    return weir.kafka


@pytest.fixture
def start_weir(tmp_path: Path) -> Iterator[Callable[..., UpProcess]]:
    """Starts a `weir up` for one test alone, with settings as for `--set`."""
    started: list[UpProcess] = []

    def start(*settings: str) -> UpProcess:
        folder = tmp_path / f"weir{len(started)}"
        folder.mkdir()
        up = UpProcess(folder, *settings)
        started.append(up)
        return up.start()

    yield start
    for up in started:
        up.close()


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"t-{uuid4().hex}"


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], Any]], None]:
    """Waits for something, however slow the machine is; not for ever."""

    def wait(true: Callable[[], Any]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not true():
            assert time.monotonic() < deadline, "it did not come true"
            time.sleep(0.005)

    return wait


# --- the three clients, by the same few verbs -----------------------------------------------------------


class ConfluentKafka:
    """confluent-kafka, which is librdkafka."""

    max_request = "message_max_bytes"

    def send(
        self, bootstrap: str, topic: str, values: list[bytes], *, partition: int | None = None, **options: Any
    ) -> list[tuple[int, int]]:
        """Send values; the partition and offset of each. Options in Kafka's words, with `_` for `.`."""
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **_dotted(options)})
        told: dict[int, Any] = {}
        for at, value in enumerate(values):
            where = {} if partition is None else {"partition": partition}
            producer.produce(topic, value, on_delivery=lambda e, r, at=at: told.__setitem__(at, (e, r)), **where)
        assert producer.flush(TIMEOUT_S) == 0
        for error, _ in told.values():
            if error is not None:
                raise confluent_kafka.KafkaException(error)
        return [(told[at][1].partition(), told[at][1].offset()) for at in range(len(values))]

    def read(
        self, bootstrap: str, topic: str, starts: dict[int, int], count: int, **options: Any
    ) -> list[tuple[int, int, bytes]]:
        """Partition, offset and value of so many records, from these offsets on."""
        common = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer({**common, **_dotted(options)})
        consumer.assign([confluent_kafka.TopicPartition(topic, at, start) for at, start in starts.items()])
        found: list[tuple[int, int, bytes]] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(found), 1.0):
                assert message.error() is None, message.error()
                found.append((message.partition(), message.offset(), message.value()))
        consumer.close()
        return found


class AioKafka:
    """aiokafka, which speaks older versions."""

    max_request = "max_request_size"

    def send(
        self, bootstrap: str, topic: str, values: list[bytes], *, partition: int | None = None, **options: Any
    ) -> list[tuple[int, int]]:
        async def send() -> list[tuple[int, int]]:
            async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **options) as producer:
                sent = [await producer.send(topic, value, partition=partition) for value in values]
                told = await asyncio.wait_for(asyncio.gather(*sent), TIMEOUT_S)
                return [(-1, -1) if each is None else (each.partition, each.offset) for each in told]

        return asyncio.run(send())

    def read(
        self, bootstrap: str, topic: str, starts: dict[int, int], count: int, **options: Any
    ) -> list[tuple[int, int, bytes]]:
        async def read() -> list[tuple[int, int, bytes]]:
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, **options)
            await consumer.start()
            try:
                parts = {at: aiokafka.TopicPartition(topic, at) for at in starts}
                consumer.assign(list(parts.values()))
                for at, start in starts.items():
                    consumer.seek(parts[at], start)
                found: list[tuple[int, int, bytes]] = []
                async with asyncio.timeout(TIMEOUT_S):
                    while len(found) < count:
                        got = await consumer.getone()
                        found.append((got.partition, got.offset, got.value))
                return found
            finally:
                await consumer.stop()

        return asyncio.run(read())


class KafkaPython:
    """kafka-python."""

    max_request = "max_request_size"

    def send(
        self, bootstrap: str, topic: str, values: list[bytes], *, partition: int | None = None, **options: Any
    ) -> list[tuple[int, int]]:
        import kafka  # takes a while, for which tests without it need not wait

        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **options)
        try:
            sent = [producer.send(topic, value, partition=partition) for value in values]
            told = [each.get(TIMEOUT_S) for each in sent]
            return [(each.partition, each.offset) for each in told]
        finally:
            producer.close(TIMEOUT_S)

    def read(
        self, bootstrap: str, topic: str, starts: dict[int, int], count: int, **options: Any
    ) -> list[tuple[int, int, bytes]]:
        import kafka

        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, **options)
        parts = {at: kafka.TopicPartition(topic, at) for at in starts}
        consumer.assign(list(parts.values()))
        for at, start in starts.items():
            consumer.seek(parts[at], start)
        found: list[tuple[int, int, bytes]] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            for got in consumer.poll(1000, max_records=count - len(found)).values():
                found += [(each.partition, each.offset, each.value) for each in got]
        consumer.close()
        return found


CLIENTS = {"confluent-kafka": ConfluentKafka, "aiokafka": AioKafka, "kafka-python": KafkaPython}


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> Any:
    """Each of the clients in turn."""
    return CLIENTS[request.param]()


def _dotted(options: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in options.items()}
