"""Transactional producers among failing bookies and crashing brokers: all or nothing, once, in order."""

import asyncio
import logging
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import pytest

from weir.broker.api.consumers import StartAt
from weir.broker.api.producers import ProducerRequest
from weir.broker.api.transactions import ProducerIdentity
from weir.broker.broker import Broker
from weir.broker.coordination.partition_ops import LocalParts
from weir.broker.coordination.shards import CoordinatorShards
from weir.broker.groups.group_offsets import GroupOffsets
from weir.broker.settings import BrokerSettings
from weir.broker.standalone import PlainRegistry, SoleOwner
from weir.broker.topics.topic import BrokerTopic
from weir.broker.transactions.remote_transactions import TransactionParticipants
from weir.broker.transactions.transaction import TransactionSettings
from weir.broker.transactions.transaction_coordinator import Transactions
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.meta.update import IdBlocks
from weir.model.batch import Stamp
from weir.model.errors import (
    BookieUnavailableError,
    InvariantError,
    OutOfOrderSequenceError,
    StaleEpochError,
    WeirError,
)
from weir.model.ids import BookieId
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset
from weir.runtime.interfaces import Runtime
from weir.testing.storage.fakes import FakeBookiePool
from weir.testing.world.errors import NodeCrashedError
from weir.testing.world.world import World, simulate
from weir.wire.metadata import BookieInfo, encode_bookie_info

SEEDS = 12
_CHUNK = 4
PARTS = [TopicName.parse(f"t{number}") for number in range(3)]
POSITIONS = TopicName.parse("positions")
T = TypeVar("T")


@dataclass
class Writer:
    """What one client remembers, whatever happens to brokers."""

    name: str
    identity: ProducerIdentity | None = None
    number: int = 0
    sequences: dict[TopicName, int] = field(default_factory=dict)
    #: What is left to do of the transaction at hand; a step that was not answered is done again.
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    #: Of each transaction: what was acknowledged, and whether the client was told that it committed.
    sent: dict[int, list[tuple[TopicName, str]]] = field(default_factory=dict)
    told: dict[int, bool] = field(default_factory=dict)


@dataclass
class Liveness:
    """One broker's."""

    bench: Any
    broker: Broker
    offsets: GroupOffsets
    transactions: Transactions
    dice: Random

    async def again(self, what: Callable[[], Awaitable[T]]) -> T:
        """As clients do: once more after what may pass. A gap, or a bug, does not."""
        while True:
            await self.bench.runtime.clock.sleep(self.dice.uniform(0.0, 0.05))
            try:
                return await what()
            except (OutOfOrderSequenceError, InvariantError, StaleEpochError):
                raise
            except WeirError:
                await self.bench.runtime.clock.sleep(self.dice.uniform(0.05, 0.5))

    async def topic(self, part: TopicName) -> BrokerTopic:
        topic = await self.broker.topic(part, role="r")
        assert isinstance(topic, BrokerTopic)
        return topic

    async def produce(self, writer: Writer) -> None:
        """Transactions for ever. One that the last broker left behind is given up or gone on with."""
        if self.dice.random() < 0.3:
            writer.identity = None
        while True:
            try:
                if writer.identity is None:
                    await self.init(writer)
                if not writer.steps:
                    self.plan(writer)
                while writer.steps:
                    await self.again(lambda: self.step(writer, *writer.steps[0]))
                    del writer.steps[0]
            except StaleEpochError:  # it took too long
                writer.identity = None

    async def init(self, writer: Writer) -> None:
        writer.steps, writer.sequences = [], {}
        writer.identity = await self.again(lambda: self.transactions.init(writer.name, timeout_ms=20_000))

    def plan(self, writer: Writer) -> None:
        writer.number += 1
        number = writer.number
        writer.sent[number] = []
        parts = self.dice.sample(PARTS, self.dice.randint(1, len(PARTS)))
        writer.steps = [
            ("add", parts),
            *(("write", self.dice.choice(parts), f"{number}:{at}") for at in range(self.dice.randint(1, 4))),
            *([("write over", self.dice.choice(parts))] if self.dice.random() < 0.5 else []),
            ("offsets",),
            ("positions",),
            ("end", self.dice.random() < 0.6),
        ]

    async def step(self, writer: Writer, kind: str, *more: Any) -> None:
        transactions, name, who = self.transactions, writer.name, writer.identity
        assert who is not None
        match kind:
            case "add":
                await transactions.add_partitions(name, who, more[0])
            case "write":
                await self.write(writer, who, more[0], f"{name}:{more[1]}")
            case "write over":
                await self.write_over(writer, who, more[0])
            case "offsets":
                await transactions.add_offsets(name, who, name)
            case "positions":
                await transactions.commit_offsets(name, who, name, {POSITIONS: CommittedOffset(writer.number)})
            case _:
                await transactions.end(name, who, commit=more[0])
                writer.told[writer.number] = more[0]

    async def write(self, writer: Writer, who: ProducerIdentity, part: TopicName, text: str) -> None:
        sequence = writer.sequences.get(part, 0)
        producer = await (await self.topic(part)).produce(ProducerRequest("r"))
        stamp = Stamp(who.producer_id, who.epoch, sequence, zlib.crc32(text.encode()))
        async with asyncio.timeout(30):
            await producer.publish(self.bench.out(text, stamp=stamp, transactional=True))
        writer.sequences[part] = sequence + 1
        writer.sent[writer.number].append((part, text))

    async def write_over(self, writer: Writer, who: ProducerIdentity, part: TopicName) -> None:
        """Something else with a number that was used, in this transaction or an earlier one: never taken for what
        had the number, nor stored."""
        used = writer.sequences.get(part, 0)
        if not used:
            return
        producer = await (await self.topic(part)).produce(ProducerRequest("r"))
        stamp = Stamp(who.producer_id, who.epoch, self.dice.randrange(used), 1)
        with suppress(OutOfOrderSequenceError):
            async with asyncio.timeout(30):
                await producer.publish(self.bench.out("over", stamp=stamp, transactional=True))
            raise InvariantError(f"{stamp} was taken for what had its number")

    async def check(self, writers: list[Writer]) -> None:
        for writer in writers:
            await self.again(lambda writer=writer: self.transactions.init(writer.name))  # type: ignore[misc]
        seen: list[tuple[TopicName, str]] = []
        for part in PARTS:
            topic = await self.topic(part)
            assert topic.stable_offset == topic.end_offset, f"{part} has something undecided"
            subscription = await topic.stored.create_subscription("look", StartAt(offset=0))
            wanted = subscription.backlog
            consumer = await self.bench.consumer(topic, "look")
            texts = await self.bench.receive(consumer, wanted) if wanted else []
            seen += [(part, text) for text in texts]
            for writer in writers:
                mine = [tuple(map(int, t.split(":")[1:])) for t in texts if t.startswith(f"{writer.name}:")]
                assert mine == sorted(mine), f"{part}: {mine}"
        doubles = [what for what, times in Counter(seen).items() if times > 1]
        assert not doubles
        for writer in writers:
            await self.check_writer(writer, dict.fromkeys(seen))

    async def check_writer(self, writer: Writer, seen: dict[tuple[TopicName, str], None]) -> None:
        last = 0
        for number, sent in writer.sent.items():
            there = [what in seen for what in sent]
            committed = any(text.startswith(f"{writer.name}:{number}:") for _, text in seen)
            assert all(there) == committed or not sent, f"{writer.name}:{number} is there in part: {there}"
            if number in writer.told and sent:
                assert committed == writer.told[number], f"{writer.name}:{number}: told otherwise"
            last = number if committed else last
        found = (await self.offsets.fetch(writer.name, [POSITIONS], stable=True)).get(POSITIONS)
        assert (found.offset if isinstance(found, CommittedOffset) else 0) == last


async def scenario(world: World, bench_type: Any) -> list[Writer]:
    dice = world.rng("scenario")
    pool, registry = FakeBookiePool(), PlainRegistry()
    writers = [Writer(f"x{number}") for number in range(3)]
    cores: list[MemoryCore] = []

    async def prepare(runtime: Runtime) -> None:
        cores.append(MemoryCore(runtime.clock))
        for number in range(4):
            info = BookieInfo(BookieId(f"b{number}"), "nowhere", 1)
            await MemoryMeta(cores[0], runtime).put(keys.bookie_writable(info.bookie_id), encode_bookie_info(info))

    async def live(runtime: Runtime) -> Liveness:
        bench = bench_type(runtime, cores[0], pool, world)
        settings = BrokerSettings(stamps_snapshot_every=dice.choice((1, 7, 1000)), read_pause_s=0.05)
        context = await bench.context(broker=settings, roll_entries=dice.choice((3, 50)))
        broker = Broker(context, registry, SoleOwner())
        shards, clock = CoordinatorShards(broker), runtime.clock
        offsets = GroupOffsets(LocalParts(broker, clock), shards, clock)
        transactions = Transactions(
            clock,
            shards,
            takes_part=TransactionParticipants(LocalParts(broker, clock), offsets, shards),
            positions=offsets,
            ids=IdBlocks(clock, MemoryMeta(cores[0], runtime), size=5, counter=keys.PRODUCER_COUNTER),
            gate=context.transactions,
            settings=TransactionSettings(end_wait_s=dice.choice((0.0, 0.05, 5.0))),
        )
        transactions.start()
        life = Liveness(bench, broker, offsets, transactions, Random(dice.random()))
        await life.again(lambda: life.topic(POSITIONS))
        return life

    async def work(runtime: Runtime) -> None:
        life = await live(runtime)
        await asyncio.gather(*map(life.produce, writers))

    async def finish(runtime: Runtime) -> None:
        await (await live(runtime)).check(writers)

    await world.node("store").start(prepare)
    for number in range(dice.randint(2, 4)):
        running = world.node(f"broker{number}").start(work)
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        for _ in range(dice.randint(1, 4)):
            await world.sleep(dice.uniform(0.1, 2.0))
            await trouble(world, dice, pool)
        world.node(f"broker{number}").crash()
        with suppress(NodeCrashedError):
            await running
    await world.node("last").start(finish)
    return writers


async def trouble(world: World, dice: Random, pool: FakeBookiePool) -> None:
    """Some bookies fail, or answer late, for a moment."""
    some = dice.sample(sorted(pool.bookies.values(), key=lambda bookie: bookie.bookie_id), 2)
    kind = dice.choice(("none", "fails", "late", "late then fails"))
    for bookie in some:
        if "late" in kind:
            bookie.hold()
    await world.sleep(dice.uniform(0.0, 0.3))
    for bookie in some:
        if "fails" in kind:
            bookie.failure = BookieUnavailableError("down")
    await world.sleep(dice.uniform(0.0, 0.5))
    for bookie in some:
        bookie.failure = None
        bookie.release()


@contextmanager
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _CHUNK))
def test_all_or_nothing_once_and_in_order_in_seeds_from(bench_type: Any, first: int) -> None:
    decided = 0
    with quiet():
        for seed in range(first, first + _CHUNK):
            try:
                writers = simulate(seed, lambda world: scenario(world, bench_type))
            except BaseException as wrong:
                wrong.add_note(f"seed {seed}")
                raise
            decided += sum(len(writer.told) for writer in writers)
    assert decided > 30
