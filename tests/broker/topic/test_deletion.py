"""Deleting topics while clients come back, while steps of it fail, and while the broker dies in the middle."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from weir.broker.broker import Broker
from weir.broker.cluster.ownership import BundleOwnership
from weir.broker.cluster.registration import OwnershipSettings
from weir.broker.context import BrokerContext
from weir.broker.metadata.registry import Registry
from weir.broker.schemas.schema_registry import SchemaRegistry
from weir.broker.settings import BrokerSettings
from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.local import MemoryMeta
from weir.model.batch import Batch, BatchFormat
from weir.model.errors import MetaUnavailableError, StreamFencedError, TopicNotFoundError, WeirError
from weir.model.registry import BrokerInfo
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteBudget
from weir.runtime.interfaces import Runtime
from weir.stream.context import StreamContext
from weir.stream.holding.area import HoldingArea
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.stream.tail import TailCache
from weir.testing.world.meta import FaultyMeta, MetaFaults

NAME = TopicName.parse("t")
TTL_S = 2.0
SEEDS = 30


class FailingMeta(FaultyMeta):
    """Its n-th change from `fail_after` on fails, before or after it took effect."""

    left = -1
    takes_effect = False

    async def put(self, key: str, value: bytes, **more: Any) -> int:
        return await self._perhaps(lambda: super(FailingMeta, self).put(key, value, **more))

    async def delete(self, key: str, **more: Any) -> None:
        await self._perhaps(lambda: super(FailingMeta, self).delete(key, **more))

    async def _perhaps(self, work: Callable) -> Any:
        self.left -= 1
        fails = self.left == -1
        if fails and not self.takes_effect:
            raise MetaUnavailableError("not now")
        done = await work()
        if fails:
            raise MetaUnavailableError("who knows")
        return done


@dataclass
class Server:
    """A broker with registry, schemas and claims in the metadata store."""

    broker: Broker
    registry: Registry
    ownership: BundleOwnership
    schemas: SchemaRegistry
    meta: FailingMeta

    async def close(self) -> None:
        await self.broker.close()
        await self.ownership.close()
        await self.registry.close()

    async def parts(self, name: TopicName = NAME) -> list[TopicName]:
        partitions = await self.broker.partitions(name, role="r")
        return [name.at(n) for n in range(partitions)] if partitions else [name]

    async def texts(self) -> list[str]:
        """Everything in the topic, made if there is none."""
        found = []
        for part in await self.parts():
            topic = await self.broker.topic(part, role="r")
            offset = topic.start_offset
            while batches := await topic.read(offset, 1 << 20):
                found += [bytes(batch.payload).decode() for batch in batches]
                offset = batches[-1].end_offset
        return found


async def open_holding(context: StreamContext, stream: Stream, state: StateLog) -> HoldingArea:
    return await HoldingArea.open(context, stream.name, stream, state)


async def serve(bench: Any, runtime: Runtime, name: str = "b0", delay_s: float = 0.0) -> Server:
    meta = FailingMeta(MemoryMeta(bench.core, runtime), runtime, MetaFaults(delay_s=delay_s))
    ledgers = LedgerClient(runtime, meta, bench.bookies)
    await ledgers.start()
    registry = Registry(meta, runtime)
    await registry.start()
    info = BrokerInfo(name, f"{runtime.rng.getrandbits(64):016x}")
    ownership = BundleOwnership(meta, runtime, info, OwnershipSettings(ttl_s=TTL_S))
    await ownership.start()
    schemas = SchemaRegistry(meta, runtime, registry)
    settings = BrokerSettings()
    streams = StreamContext(runtime, meta, ledgers, TailCache(1 << 20), replace(bench.settings, roll_entries=2))
    context = BrokerContext(
        runtime,
        streams,
        settings,
        ByteBudget(settings.in_flight_bytes),
        schemas=schemas,
        open_holding=open_holding,
    )
    return Server(Broker(context, registry, ownership), registry, ownership, schemas, meta)


async def fill(bench: Any, server: Server, name: TopicName, partitions: int) -> list[str]:
    """A topic with messages, a cursor, and messages that are held back; the texts that can be read."""
    await server.registry.topics.create(name, partitions=partitions)
    sent = []
    for part in await server.parts(name):
        topic = await server.broker.topic(part, role="r")
        producer, consumer = await bench.producer(topic), await bench.consumer(topic)
        texts = [f"old {part.partition} {n}" for n in range(5)]
        await bench.publish(producer, *texts)
        sent += texts
        await producer.publish(bench.out("late", deliver_at_ms=bench.runtime.clock.wall_ms() + 3_600_000))
        consumer.ack([(0, 2)])
        await consumer.persisted()
    return sent


@dataclass
class Client:
    """Connects again and again, and sends to whatever is not the old topic."""

    bench: Any
    server: Server
    runtime: Runtime
    old: list[Any]
    acknowledged: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    async def run(self) -> None:
        number = 0
        while True:
            await self.runtime.clock.sleep(0.003)
            try:
                for part in await self.server.parts():
                    topic = await self.server.broker.topic(part, role="r")
                    if any(topic is old for old in self.old):
                        continue
                    producer = await self.bench.producer(topic)
                    number += 1
                    await self.bench.publish(producer, f"new {number}")
                    self.acknowledged.append(f"new {number}")
                    await producer.close()
            except WeirError as failed:
                self.failures.append(failed)


@contextmanager
def running(task: "asyncio.Task[None]") -> Iterator[None]:
    try:
        yield
    finally:
        task.cancel()


async def loaded(server: Server) -> list[Any]:
    return [await server.broker.topic(part, role="r") for part in await server.parts()]


@pytest.mark.parametrize("partitions", [0, 3])
def test_what_is_acknowledged_to_a_topic_made_again_during_its_deletion_is_kept(
    run: Callable, partitions: int
) -> None:
    async def scenario(bench: Any) -> None:
        server = await serve(bench, bench.runtime, delay_s=0.01)
        await fill(bench, server, NAME, partitions)
        client = Client(bench, server, bench.runtime, await loaded(server))
        with running(asyncio.ensure_future(client.run())):
            await server.broker.delete(NAME, force=True)
            while len(client.acknowledged) < 5:
                await bench.runtime.clock.sleep(0.01)
        await server.close()
        again = await serve(bench, bench.runtime)
        found = await again.texts()
        assert not [text for text in found if text.startswith("old")]
        assert not [text for text in client.acknowledged if text not in found]
        await again.close()

    run(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("takes_effect", [False, True])
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_deletion_that_fails_half_way_can_be_repeated_and_leaves_nothing(
    run: Callable, partitions: int, takes_effect: bool
) -> None:
    failed = []

    async def scenario(bench: Any) -> None:
        server = await serve(bench, bench.runtime)
        for step in range(100):
            await fill(bench, server, NAME, partitions)
            server.meta.left, server.meta.takes_effect = step, takes_effect
            try:
                await server.broker.delete(NAME, force=True)
            except WeirError:
                failed.append(step)
                server.meta.left = -1
                with suppress(TopicNotFoundError):
                    await server.broker.delete(NAME, force=True)
            over, server.meta.left = server.meta.left >= 0, -1
            # A bookie that was not told of a ledger's end finds out by itself, from the metadata.
            assert not (await server.meta.list(keys.LEDGERS)).items, step
            assert not (await server.meta.list("/weir/streams/")).items
            assert await server.texts() == []
            await server.broker.delete(NAME, force=True)
            if over:
                break
        else:
            pytest.fail("a deletion has fewer steps than that")
        await server.close()

    run(scenario)
    assert failed


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_crash_during_a_deletion_leaves_a_topic_whole_or_gone_and_nothing_acknowledged_is_lost(
    run: Callable, seed: int
) -> None:
    async def scenario(bench: Any) -> None:
        rng = Random(seed)
        partitions = rng.choice([0, 2])
        told: dict[str, Any] = {}
        started = asyncio.Event()

        async def first(runtime: Runtime) -> None:
            server = await serve(bench, runtime, delay_s=0.01)
            await fill(bench, server, TopicName.parse("twin"), partitions)
            before = runtime.clock.monotonic()
            await server.broker.delete(TopicName.parse("twin"), force=True)
            told["takes"] = runtime.clock.monotonic() - before
            told["old"] = await fill(bench, server, NAME, partitions)
            told["client"] = client = Client(bench, server, runtime, await loaded(server))
            running = asyncio.ensure_future(client.run())
            started.set()
            await server.broker.delete(NAME, force=True)
            await running

        node = bench.world.node("first")
        node.start(first)
        await started.wait()
        await bench.runtime.clock.sleep(told["takes"] * rng.choice([0.02, 1.0, 3.0]) * rng.random())
        node.kill()
        await bench.runtime.clock.sleep(2 * TTL_S)
        again = await serve(bench, bench.runtime, name="b1")
        found = await again.texts()
        old = [text for text in found if text.startswith("old")]
        acknowledged = told["client"].acknowledged
        assert old in ([], told["old"])
        assert not (old and acknowledged)
        assert not [text for text in acknowledged if text not in found]
        await again.broker.delete(NAME, force=True)
        assert await again.texts() == []
        await again.close()

    run(scenario, seed)


@pytest.mark.parametrize("partitions", [0, 2])
def test_what_a_crash_left_of_a_deletion_is_ended_by_the_next_broker_unasked(
    run: Callable, partitions: int
) -> None:
    async def scenario(bench: Any) -> None:
        server = await serve(bench, bench.runtime)
        await fill(bench, server, NAME, partitions)
        await fill(bench, server, TopicName.parse("other"), 0)
        failing = patch.object(Registry, "forget_topic", side_effect=MetaUnavailableError("not now"))
        with failing, pytest.raises(MetaUnavailableError):
            await server.broker.delete(NAME, force=True)
        await server.close()
        again = await serve(bench, bench.runtime)
        assert await again.registry.doomed_topics() == [NAME]
        again.broker.start()
        await bench.runtime.clock.sleep(2 * TTL_S)
        assert await again.registry.doomed_topics() == []
        assert [str(record.name) async for record in again.registry.topics.of(NAME.namespace)] == [
            "persistent://public/default/other"
        ]
        await again.broker.delete(TopicName.parse("other"), force=True)
        assert not (await again.meta.list(keys.LEDGERS)).items
        await again.close()

    run(scenario)


def test_a_stream_that_was_taken_over_is_not_deleted_by_its_former_holder(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        former = await Stream.open((await bench.context()).streams, "s", create_missing=True)
        await former.append(Batch(-1, 1, BatchFormat.PULSAR, 0, b"a"))
        holder = await Stream.open((await bench.context()).streams, "s")
        with pytest.raises(StreamFencedError):
            await former.delete()
        await holder.close()
        again = await Stream.open((await bench.context()).streams, "s")
        assert [bytes(batch.payload) for batch in await again.read(0, 100)] == [b"a"]

    run(scenario)
