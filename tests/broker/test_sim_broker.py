"""Topics while brokers die and streams change hands: order, no loss, no duplicates, cursors that hold.

A whole cluster in simulation: bookies behind a network that crash now and then, brokers that are killed at any
moment or are still running when another takes their topic over, producers that send again what was not answered,
consumers of every type that acknowledge, give back, leave and come. What they saw is written down outside of all
nodes, where no crash forgets it.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from weir.broker.api.consumers import StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.producers import Outgoing, ProducerRequest
from weir.broker.context import BrokerContext
from weir.broker.settings import BrokerSettings
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.topics.topic import BrokerTopic
from weir.broker.upkeep.topic_upkeep import maintain
from weir.model.batch import Batch, BatchFormat
from weir.model.errors import ConsumerClosedError, TopicClosedError, WeirError
from weir.model.ledger import Quorum
from weir.model.policies import DEFAULT_POLICIES, Policies, Retention
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteBudget
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.stream.context import StreamContext
from weir.stream.settings import StreamSettings
from weir.stream.tail import TailCache
from weir.testing.storage.cluster import Cluster, sound_cluster
from weir.testing.world.world import World, simulate
from weir.wire.formats.pulsar import PulsarFormat
from weir.wire.formats.table import FORMATS

SEEDS = int(os.environ.get("WEIR_BROKER_SEEDS", "8"))
_CHUNK = 5
PRODUCERS = ("p0", "p1")
KINDS = {kind.value: kind for kind in SubscriptionType}
NAME = TopicName.parse("t")
STREAMS = StreamSettings(
    quorum=Quorum(3, 2, 2), roll_entries=25, state_pause_s=0.2, retry_pause_s=0.05, state_roll_bytes=3000
)
POLICIES = Policies(deduplication=True, retention=Retention(-1, -1), max_unacked_per_consumer=40)


class KeyedTexts(PulsarFormat):
    """Batches are texts."""

    def keys(self, batch: Batch) -> "bytes | Sequence[bytes | None] | None":
        return bytes(batch.payload).partition(b":")[0]


@dataclass
class Seen:
    """What one subscription's consumers saw and did."""

    delivered: dict[int, str] = field(default_factory=dict)  # offset to payload
    first_order: list[int] = field(default_factory=list)  # offsets in the order of their first delivery
    acked: dict[int, None] = field(default_factory=dict)  # in this term
    persisted: dict[int, None] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)  # in this term: who has it
    wrong: list[str] = field(default_factory=list)


@dataclass
class Outside:
    """What no crash forgets."""

    term: int = 0

    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PRODUCERS, 0))
    answered: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in PRODUCERS})
    seen: dict[str, Seen] = field(default_factory=lambda: {name: Seen() for name in KINDS})


class Node:
    """A broker with its clients, until it dies or loses the topic."""

    def __init__(self, cluster: Cluster, name: str, outside: Outside, settings: BrokerSettings) -> None:
        self._cluster = cluster
        self._name = name
        self._outside = outside
        self._settings = settings
        self._term = 0

    async def open(self, runtime: Runtime) -> BrokerTopic:
        client = await self._cluster.ledger_client(runtime, self._name)
        streams = StreamContext(runtime, client.context.meta, client, TailCache(20_000), STREAMS)
        context = BrokerContext(
            runtime,
            streams,
            self._settings,
            ByteBudget(self._settings.in_flight_bytes),
            formats={**FORMATS, BatchFormat.PULSAR: KeyedTexts()},
        )
        topic = await BrokerTopic.open(context, NAME, POLICIES.over(DEFAULT_POLICIES))
        self._outside.term += 1
        self._term = self._outside.term
        for seen in self._outside.seen.values():
            seen.holders, seen.acked = {}, {}
        return topic

    def _check_term(self) -> None:
        """A broker that lost its topic and has not noticed yet may still deliver: nobody counts on that."""
        if self._term != self._outside.term:
            raise TopicClosedError("another broker has the topic")

    async def run(self, runtime: Runtime) -> None:
        topic = await self.open(runtime)
        for name in KINDS:
            if name not in topic.subscriptions:
                await topic.stored.create_subscription(name, StartAt())
        tasks = TaskScope(self._name)
        for name in PRODUCERS:
            tasks.spawn(self._produce(runtime, topic, name), name)
        for name, kind in KINDS.items():
            for number in range(1 if kind is SubscriptionType.EXCLUSIVE else 2):
                tasks.spawn(self._consume(runtime, topic, name, f"c{number}"), f"{name}/{number}")
        while topic.alive:
            await runtime.clock.sleep(0.5)
            with suppress(WeirError):
                await maintain(topic, runtime.clock.wall_ms())
        await tasks.close()
        await topic.close()

    # --- producing --------------------------------------------------------------------------------------

    async def _produce(self, runtime: Runtime, topic: BrokerTopic, name: str, *, rounds: int = 1 << 30) -> None:
        """Connect, send what was not answered and then more, in order; connect anew after an error."""
        while topic.alive and rounds > 0:
            try:
                producer = await topic.produce(ProducerRequest("r", name=name))
                while rounds > 0:
                    rounds -= 1
                    await producer.wait_capacity()
                    await self._send(runtime, producer, name)
                    await runtime.clock.sleep(runtime.rng.uniform(0, 0.05))
            except WeirError:
                await runtime.clock.sleep(runtime.rng.uniform(0, 0.3))

    async def _send(self, runtime: Runtime, producer, name: str) -> None:
        outside, rng = self._outside, runtime.rng
        answered = outside.answered[name]
        first = len(answered)
        outside.sent[name] = max(outside.sent[name], first + rng.randint(1, 6))
        receipts = []
        for number in range(first, outside.sent[name]):
            text = f"k{number % 7}:{name}-{number}"
            receipts.append(producer.publish(Outgoing(text.encode(), 1, BatchFormat.PULSAR, sequence=number)))
        results = await asyncio.gather(*receipts, return_exceptions=True)
        for number, result in enumerate(results, first):
            if isinstance(result, BaseException):
                raise result
            assert len(answered) == number
            answered.append(number)

    # --- consuming --------------------------------------------------------------------------------------

    async def _consume(self, runtime: Runtime, topic: BrokerTopic, name: str, who: str) -> None:
        rng = runtime.rng
        while topic.alive:
            try:
                consumer = await topic.subscribe(SubscribeRequest("r", name, KINDS[name], who))
                for _ in range(rng.randint(3, 60)):
                    await self._step(runtime, consumer, name, who)
                await self._leave(consumer, name, who)
            except WeirError:
                self._forget(name, who)
            await runtime.clock.sleep(rng.uniform(0, 0.3))

    async def _step(self, runtime: Runtime, consumer: BrokerConsumer, name: str, who: str) -> None:
        rng, seen = runtime.rng, self._outside.seen[name]
        deliveries = []
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.choice((0.001, 0.1, 0.5))):
                deliveries = await consumer.next(rng.randint(1, 10))
        self._check_term()
        for delivery in deliveries:
            self._note(seen, delivery.batch, name, who)
        await runtime.clock.sleep(rng.choice((0, 0, 0.02, 0.1)))
        self._check_term()
        mine = [offset for offset, holder in seen.holders.items() if holder == who]
        roll = rng.random()
        if roll < 0.1:
            for offset in mine:
                del seen.holders[offset]
            consumer.redeliver(None)
        elif roll < 0.8:
            chosen = [offset for offset in mine if rng.random() < 0.8]
            for offset in chosen:
                seen.acked[offset] = None
                del seen.holders[offset]
            consumer.ack([(offset, offset + 1) for offset in chosen])
            if rng.random() < 0.2:
                before = list(seen.acked)
                await consumer.persisted()
                self._check_term()
                seen.persisted.update(dict.fromkeys(before))

    def _note(self, seen: Seen, batch: Batch, name: str, who: str) -> None:
        offset, text = batch.base_offset, bytes(batch.payload).decode()
        if offset in seen.persisted:
            seen.wrong.append(f"{offset} was acknowledged for good, and delivered again")
        if offset not in seen.delivered:
            seen.first_order.append(offset)
        if seen.delivered.setdefault(offset, text) != text:
            seen.wrong.append(f"{offset} changed from {seen.delivered[offset]} to {text}")
        single = name in ("exclusive", "failover")
        holder = seen.holders.get(offset)
        if not single and holder is not None:
            seen.wrong.append(f"{offset} went to {who} while {holder} had it")
        seen.holders[offset] = who
        if name == "key-shared":
            key = text.partition(":")[0]
            for other, theirs in seen.holders.items():
                if theirs != who and seen.delivered[other].partition(":")[0] == key:
                    seen.wrong.append(f"{offset} of {key} went to {who} while {theirs} had {other}")

    async def _leave(self, consumer: BrokerConsumer, name: str, who: str) -> None:
        self._forget(name, who)
        await consumer.close()

    def _forget(self, name: str, who: str) -> None:
        seen = self._outside.seen[name]
        if self._term == self._outside.term:
            seen.holders = {offset: holder for offset, holder in seen.holders.items() if holder != who}

    # --- the end ----------------------------------------------------------------------------------------

    async def finish(self, runtime: Runtime) -> list[Batch]:
        """The last one: everyone sends and receives what is left."""
        topic = await self.open(runtime)
        for name in PRODUCERS:
            await self._produce(runtime, topic, name, rounds=3)
        for name, kind in KINDS.items():
            if name not in topic.subscriptions:
                await topic.stored.create_subscription(name, StartAt())
            consumer = await topic.subscribe(SubscribeRequest("r", name, kind, "last"))
            while consumer.backlog:
                async with asyncio.timeout(30):
                    deliveries = await consumer.next(100)
                for delivery in deliveries:
                    self._note(self._outside.seen[name], delivery.batch, name, "last")
                consumer.ack([(d.batch.base_offset, d.batch.end_offset) for d in deliveries])
                for delivery in deliveries:
                    self._outside.seen[name].holders.pop(delivery.batch.base_offset, None)
            await consumer.close()
            with pytest.raises(ConsumerClosedError):
                await consumer.next(1)
        batches: list[Batch] = []
        offset = 0
        while read := await topic.read(offset, 100_000):
            batches += read
            offset = read[-1].end_offset
        await topic.close()
        return batches


async def scenario(world: World) -> tuple[Outside, list[Batch]]:
    dice = world.rng("scenario")
    cluster = await sound_cluster(world)
    outside = Outside()
    settings = BrokerSettings(
        dedup_snapshot_every=dice.choice((1, 5, 1000)),
        look_ahead=dice.choice((3, 20, 1000)),
        read_bytes=dice.choice((100, 5000)),
        delivery_bytes=dice.choice((50, 5000)),
        read_pause_s=0.05,
    )
    calm = dice.random() < 0.5
    for change in range(dice.randint(2, 5)):
        node = world.node(f"broker{change % 2}")
        main = node.start(Node(cluster, node.name, outside, settings).run)
        main.add_done_callback(lambda main: main.cancelled() or main.exception())
        await world.sleep(dice.uniform(0.3, 3.0))
        if not calm and dice.random() < 0.7:
            world.node(dice.choice(cluster.bookie_names)).crash()  # it comes back by itself
            await world.sleep(dice.uniform(0.0, 1.5))
        if dice.random() < 0.6:
            node.crash()
            await world.sleep(dice.choice((0.0, 0.05, 1.0)))
    for name in ("broker0", "broker1"):
        world.node(name).crash()
    while True:
        try:
            batches = await world.node("broker9").start(Node(cluster, "broker9", outside, settings).finish)
            break
        except WeirError:
            if calm:  # nothing but brokers failed: an error here is a bug
                raise
            await world.sleep(1.0)
    assert not cluster.bugs
    return outside, batches


def check(outside: Outside, batches: list[Batch]) -> None:
    texts = [bytes(batch.payload).decode().partition(":")[2] for batch in batches]
    for name in PRODUCERS:
        stored = [int(text.partition("-")[2]) for text in texts if text.startswith(name)]
        assert stored == list(range(len(stored))), f"{name}: {stored}"
        assert len(stored) >= len(outside.answered[name]), f"{name} lost what was answered"
    ends = {batch.base_offset for batch in batches}
    for name, seen in outside.seen.items():
        assert not seen.wrong, f"{name}: {seen.wrong[:3]}"
        missing = sorted(ends - seen.delivered.keys())
        assert not missing, f"{name} never saw {missing[:5]}"
        for batch in batches:
            assert seen.delivered[batch.base_offset] == bytes(batch.payload).decode()
        if name in ("exclusive", "failover"):
            assert seen.first_order == sorted(seen.first_order), f"{name}: out of order"
        if name == "key-shared":
            for key in range(7):
                mine = [o for o in seen.first_order if seen.delivered[o].startswith(f"k{key}:")]
                assert mine == sorted(mine), f"key {key} out of order: {mine}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _CHUNK))
def test_order_loss_duplicates_and_cursors_in_seeds_from(first: int) -> None:
    logging.disable(logging.ERROR)
    try:
        for seed in range(first, first + _CHUNK):
            outside, batches = simulate(seed, scenario)
            assert len(batches) > 20
            try:
                check(outside, batches)
            except AssertionError as wrong:
                raise AssertionError(f"seed {seed}: {wrong}") from wrong
    finally:
        logging.disable(logging.NOTSET)
