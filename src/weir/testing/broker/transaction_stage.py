"""A coordinator of transactions on a broker of fake bookies, and a client of it that survives any crash."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weir.broker.api.consumers import StartAt
from weir.broker.api.transactions import ProducerIdentity
from weir.broker.broker import Broker
from weir.broker.coordination.partition_ops import LocalParts
from weir.broker.coordination.shards import CoordinatorShards, ShardCount
from weir.broker.groups.group_offsets import GroupOffsets
from weir.broker.standalone import PlainRegistry, SoleOwner
from weir.broker.topics.topic import BrokerTopic
from weir.broker.transactions.transaction import TransactionSettings
from weir.broker.transactions.transaction_coordinator import Transactions
from weir.model.batch import Stamp
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.server.compose.broker import compose_transactions
from weir.testing.broker.crashing import Liveness, crashing_lives

T0, T1, T2 = (TopicName.parse(name) for name in ("t0", "t1", "t2"))


@dataclass
class Coordinator:
    """A broker with a coordinator on it, and a producer's end."""

    bench: Any
    broker: Broker
    offsets: GroupOffsets
    transactions: Transactions
    sequences: dict[tuple[int, int, TopicName], int] = field(default_factory=dict)

    @classmethod
    async def make(
        cls,
        bench: Any,
        settings: TransactionSettings | None = None,
        registry: PlainRegistry | None = None,
        shards_wanted: int = 1,
        **more: Any,
    ) -> "Coordinator":
        clock = bench.runtime.clock
        context = await bench.context()
        broker = Broker(context, registry or PlainRegistry(), SoleOwner())
        shards = CoordinatorShards(broker, ShardCount(context.streams.meta, shards_wanted))
        parts = LocalParts(broker, clock)
        offsets = GroupOffsets(parts, shards, clock)
        transactions = compose_transactions(
            context, parts, shards, offsets, settings=settings, ids_at_once=10, **more
        )
        transactions.start()
        return cls(bench, broker, offsets, transactions)

    async def topic(self, name: TopicName) -> BrokerTopic:
        topic = await self.broker.topic(name, role="r")
        assert isinstance(topic, BrokerTopic)
        return topic

    async def write(self, who: ProducerIdentity, part: TopicName, *texts: str) -> list[int]:
        producer = await self.bench.producer(await self.topic(part))
        found = []
        for text in texts:
            sequence = self.sequences.get((who.producer_id, who.epoch, part), 0)
            stamp = Stamp(who.producer_id, who.epoch, sequence)
            receipt = await producer.publish(self.bench.out(text, stamp=stamp, transactional=True))
            self.sequences[who.producer_id, who.epoch, part] = sequence + 1
            found.append(receipt.offset)
        return found

    async def begin(self, who: ProducerIdentity, *parts: TopicName, name: str = "x", text: str = "m") -> None:
        await self.transactions.add_partitions(name, who, parts)
        for part in parts:
            await self.write(who, part, text)

    async def seen(self, part: TopicName) -> list[str]:
        """What a consumer that wants decided messages only gets."""
        topic = await self.topic(part)
        subscription = await topic.stored.create_subscription("look", StartAt(offset=0))
        wanted = subscription.backlog
        consumer = await self.bench.consumer(topic, "look")
        texts: list[str] = await self.bench.receive(consumer, wanted) if wanted else []
        await consumer.unsubscribe()
        return texts

    async def settled(self) -> None:
        """Wait until nothing is open or being ended."""
        while any(info.started_ms >= 0 for info in await self.transactions.all()):
            await self.bench.runtime.clock.sleep(0.5)


# --- crashes --------------------------------------------------------------------------------------------------


@dataclass
class Outside:
    """What the client knows: which transactions it began, and what it was told of their ends."""

    began: list[int] = field(default_factory=list)
    told: dict[int, bool] = field(default_factory=dict)
    last: ProducerIdentity | None = None
    #: The number of a transaction whose end was not answered, and whether it is to commit.
    asked: tuple[int, bool] | None = None
    finished: bool = False


class CrashingClient:
    """One that goes on with the next broker when the one that it talked to has crashed."""

    async def work(self, coordinator: Coordinator, outside: Outside, first: int, plan: Sequence[bool]) -> None:
        """Transactions over two partitions and a group, numbered from the first; each is to commit or to abort."""
        raise NotImplementedError

    async def resume(self, coordinator: Coordinator, outside: Outside) -> None:
        """Ask again for what was not answered, if it wants to know."""

    async def check_fenced(self, coordinator: Coordinator, before: ProducerIdentity, outside: Outside) -> None:
        """Whoever it was before the last transactions can do nothing more."""
        raise NotImplementedError


async def check(coordinator: Coordinator, outside: Outside) -> None:
    """After a crash: everything is decided, the same way everywhere, and as the client was told."""
    await coordinator.settled()
    for part in (T0, T1, T2):
        topic = await coordinator.topic(part)
        assert topic.stable_offset == topic.end_offset, f"{part} has something undecided"
    one, other = await coordinator.seen(T0), await coordinator.seen(T1)
    assert one == other
    for number, commit in outside.told.items():
        assert (str(number) in one) == commit, f"{number}: the client was told otherwise"
    assert one == sorted(one, key=int)
    found = (await coordinator.offsets.fetch("g", [T2], stable=True)).get(T2)
    assert not isinstance(found, WeirError)
    assert (found.offset if found is not None else 0) == (int(one[-1]) * 10 if one else 0)


def crash_run(bench_type: Any, at: int, stored: bool, client: CrashingClient) -> bool:
    """One run with a crash at the add of this number, and at the same distance once more while the next broker
    recovers; answers whether the first client had finished before."""

    outside, registry = Outside(), PlainRegistry()

    def on(work: Callable[[Coordinator], Awaitable[None]]) -> Liveness:
        async def life(bench: Any) -> None:
            await work(await Coordinator.make(bench, registry=registry))

        return life

    async def first(coordinator: Coordinator) -> None:
        await client.work(coordinator, outside, 1, [True, False, True])
        outside.finished = True

    async def second(coordinator: Coordinator) -> None:
        await client.resume(coordinator, outside)
        await check(coordinator, outside)

    async def last(coordinator: Coordinator) -> None:
        await client.resume(coordinator, outside)
        await check(coordinator, outside)
        before = outside.last
        await client.work(coordinator, outside, 8, [True])
        await check(coordinator, outside)
        if before is not None:
            await client.check_fenced(coordinator, before, outside)

    crashing_lives(bench_type, at, stored, [on(first), on(second), on(last)])
    return outside.finished
