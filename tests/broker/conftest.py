"""Topics among fake bookies, in simulated time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from weir.broker.api.consumers import Delivery, StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.producers import Outgoing, ProducerRequest
from weir.broker.broker import Broker
from weir.broker.context import BrokerContext
from weir.broker.publish.producers import BrokerProducer
from weir.broker.settings import BrokerSettings
from weir.broker.standalone import PlainRegistry, SoleOwner
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.topics.topic import BrokerTopic
from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.batch import Batch, BatchFormat
from weir.model.ids import BookieId
from weir.model.ledger import Quorum
from weir.model.policies import DEFAULT_POLICIES, Policies, Retention
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteBudget
from weir.runtime.interfaces import Runtime
from weir.stream.context import StreamContext
from weir.stream.holding.area import HoldingArea
from weir.stream.log import Stream
from weir.stream.settings import StreamSettings
from weir.stream.state_log import StateLog
from weir.stream.tail import TailCache
from weir.testing.storage.fakes import FakeBookiePool
from weir.testing.world.world import World, simulate
from weir.wire.formats.pulsar import PulsarFormat
from weir.wire.formats.table import FORMATS
from weir.wire.metadata import BookieInfo, encode_bookie_info

#: Where a test says nothing, what is acknowledged goes at once.
UNRETAINED = Policies(retention=Retention()).over(DEFAULT_POLICIES)


class TextFormat(PulsarFormat):
    """The tests' batches are texts."""

    def keys(self, batch: Batch) -> Any:
        """What stands before a colon is the key, words with several are several keys."""
        words = bytes(batch.payload).split()
        found = [word.partition(b":")[0] if b":" in word else None for word in words]
        return found[0] if len(found) == 1 or len(found) != batch.count else found

    def keyed(self, batch: Batch) -> list[tuple[bytes | None, bool]]:
        """For compaction: words are `key:value`, or `key:` for one that is gone."""
        parts = [word.partition(b":") for word in bytes(batch.payload).split()]
        return [(key if colon else None, bool(value)) for key, colon, value in parts]

    def delay_id(self, batch: Batch) -> str | None:
        """For cancelling: what stands behind a hash sign."""
        return bytes(batch.payload).decode().partition("#")[2] or None


async def open_holding(context: StreamContext, stream: Stream, state: StateLog) -> HoldingArea:
    return await HoldingArea.open(context, stream.name, stream, state)


@dataclass
class Bench:
    """Brokers that share bookies and metadata."""

    runtime: Runtime
    core: MemoryCore
    bookies: FakeBookiePool
    world: World
    settings: StreamSettings = field(default_factory=lambda: StreamSettings(quorum=Quorum(3, 2, 2)))

    async def context(
        self, *, tail_bytes: int = 1 << 20, broker: BrokerSettings | None = None, **changes: Any
    ) -> BrokerContext:
        meta = MemoryMeta(self.core, self.runtime)
        client = LedgerClient(self.runtime, meta, self.bookies)
        await client.start()
        settings = broker or BrokerSettings()
        streams = StreamContext(
            self.runtime, meta, client, TailCache(tail_bytes), replace(self.settings, **changes)
        )
        budget = ByteBudget(settings.in_flight_bytes)
        return BrokerContext(
            self.runtime,
            streams,
            settings,
            budget,
            formats={**FORMATS, BatchFormat.PULSAR: TextFormat()},
            open_holding=open_holding,
        )

    async def topic(
        self,
        name: str = "t",
        *,
        policies: Policies | None = None,
        tail_bytes: int = 1 << 20,
        broker: BrokerSettings | None = None,
        **changes: Any,
    ) -> BrokerTopic:
        """The topic, on one more broker."""
        context = await self.context(tail_bytes=tail_bytes, broker=broker, **changes)
        return await BrokerTopic.open(context, TopicName.parse(name), (policies or Policies()).over(UNRETAINED))

    async def broker(self, **changes: Any) -> Broker:
        return Broker(await self.context(**changes), PlainRegistry(UNRETAINED), SoleOwner())

    @staticmethod
    async def consumer(
        topic: Any,
        subscription: str = "s",
        type: SubscriptionType = SubscriptionType.EXCLUSIVE,  # noqa: A002
        name: str = "c",
        **more: Any,
    ) -> BrokerConsumer:
        more.setdefault("start", StartAt(offset=0))
        delivery_share = more.pop("delivery_share", None)
        request = SubscribeRequest("r", subscription, type=type, consumer_name=name, **more)
        return await topic.subscribe(request, delivery_share=delivery_share)

    @staticmethod
    async def producer(topic: Any, name: str | None = None, **more: Any) -> BrokerProducer:
        return await topic.produce(ProducerRequest("r", name=name, **more))

    @staticmethod
    def out(text: str, count: int = 1, **more: Any) -> Outgoing:
        return Outgoing(text.encode(), count, BatchFormat.PULSAR, **more)

    async def publish(self, producer: Any, *texts: str, count: int = 1) -> list[int]:
        receipts = [producer.publish(self.out(text, count)) for text in texts]
        return [(await receipt).offset for receipt in receipts]

    @staticmethod
    def texts(deliveries: Sequence[Delivery]) -> list[str]:
        return [bytes(delivery.batch.payload).decode() for delivery in deliveries]

    async def receive(self, consumer: Any, count: int, credit: int = 1000, *, ack: bool = False) -> list[str]:
        """Exactly so many batches, in as many turns as it takes."""
        found: list[str] = []
        while len(found) < count:
            deliveries = await consumer.next(credit)
            found += self.texts(deliveries)
            if ack:
                consumer.ack([(d.batch.base_offset, d.batch.end_offset) for d in deliveries])
        assert len(found) == count, found
        return found

    async def nothing(self, consumer: Any, credit: int = 1000) -> bool:
        """Whether nothing is delivered for a while."""
        try:
            async with asyncio.timeout(5):
                await consumer.next(credit)
        except TimeoutError:
            return True
        return False


@pytest.fixture
def bench_type() -> type[Bench]:
    """For tests that make worlds of their own."""
    return Bench


Scenario = Callable[[Bench], Awaitable[None]]


@pytest.fixture
def run() -> Callable[..., None]:
    """Run a scenario on a node of a simulated world."""

    def run_it(scenario: Scenario, seed: int = 1) -> None:
        async def main(world: World) -> None:
            async def on_node(runtime: Runtime) -> None:
                core = MemoryCore(runtime.clock)
                meta = MemoryMeta(core, runtime)
                for number in range(4):
                    info = BookieInfo(BookieId(f"b{number}"), "nowhere", 1)
                    await meta.put(keys.bookie_writable(info.bookie_id), encode_bookie_info(info))
                await scenario(Bench(runtime, core, FakeBookiePool(), world))

            await world.node("broker").start(on_node)

        simulate(seed, main)

    return run_it
