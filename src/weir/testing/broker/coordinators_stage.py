"""Brokers with coordinators over fake bookies in one process, and who has what is said by the test.

A broker that is `lost` does not know it: it believes in what it had, and nobody hears it. Whatever it then makes
durable, or sends once it is heard again, is what a broker would that was stopped for a while and goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from weir.broker.api.broker import Owner
from weir.broker.api.consumers import StartAt
from weir.broker.api.transactions import ProducerIdentity
from weir.broker.broker import Broker
from weir.broker.coordination.shards import CoordinatorShards, ShardCount
from weir.broker.groups.group_coordinator import GroupCoordinator
from weir.broker.groups.group_offsets import GroupOffsets
from weir.broker.peers.peer_calls import PeerHandlers
from weir.broker.ports import Claim
from weir.broker.standalone import PlainRegistry
from weir.broker.topics.topic import BrokerTopic
from weir.broker.transactions.transaction_coordinator import Transactions
from weir.model.batch import Stamp
from weir.model.errors import NotOwnerError
from weir.model.registry import BrokerInfo
from weir.model.topics import TopicName
from weir.server.compose.broker import compose_parts, compose_transactions
from weir.testing.in_process_peers import InProcessPeers


class Assignments:
    """Which broker has which topic, for all who know it."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.given: dict[TopicName, str] = {}

    def owner(self, topic: TopicName) -> str:
        return self.given.get(topic) or self.names[crc32(str(topic).encode()) % len(self.names)]


@dataclass
class _Claim:
    owners: "AssignedOwners"
    topic: TopicName
    epoch: int = 0

    @property
    def held(self) -> bool:
        return self.owners.name_of(self.topic) == self.owners.me


class AssignedOwners:
    """Fills `ports.Ownership`. One that is `lost` goes by what it knew last."""

    def __init__(self, me: str, assignments: Assignments) -> None:
        self.me = me
        self._true = assignments
        self._assignments = assignments

    def lose_touch(self) -> None:
        known = Assignments(self._assignments.names)
        known.given = dict(self._assignments.given)
        self._assignments = known

    def name_of(self, topic: TopicName) -> str:
        return self._assignments.owner(topic)

    async def own(self, topic: TopicName) -> Claim:
        """Taking something is done in the metadata, where everybody sees the same."""
        if self._true.owner(topic) != self.me:
            raise NotOwnerError(f"{topic} is held by {self._true.owner(topic)}")
        return _Claim(self, topic)

    async def release(self, topic: TopicName, claim: Claim | None = None) -> None:
        pass

    async def owner(self, topic: TopicName) -> Owner:
        return self.owner_now(topic)

    def owner_now(self, topic: TopicName) -> Owner:
        name = self.name_of(topic)
        return Owner(name == self.me, {}, name)

    def owners_now(self, topic: TopicName, partitions: Sequence[int]) -> list[Owner]:
        return [self.owner_now(topic.at(index)) for index in partitions]

    def brokers(self) -> list[BrokerInfo]:
        return [BrokerInfo(name, "") for name in self._assignments.names]

    def former_brokers(self) -> list[BrokerInfo]:
        return []


@dataclass
class CoordinatingBroker:
    name: str
    broker: Broker
    owners: AssignedOwners
    shards: CoordinatorShards
    offsets: GroupOffsets
    groups: GroupCoordinator
    transactions: Transactions
    handlers: PeerHandlers


@dataclass
class CoordinatorCluster:
    bench: Any
    assignments: Assignments
    peers: InProcessPeers = field(default_factory=InProcessPeers)
    registry: PlainRegistry = field(default_factory=PlainRegistry)
    brokers: dict[str, CoordinatingBroker] = field(default_factory=dict)
    sequences: dict[tuple[int, int, TopicName], int] = field(default_factory=dict)

    @classmethod
    async def make(cls, bench: Any, *names: str, shards: int = 4) -> "CoordinatorCluster":
        cluster = cls(bench, Assignments(list(names)))
        for name in names:
            await cluster.add(name, shards)
        return cluster

    async def add(self, name: str, shards_wanted: int) -> None:
        clock, context = self.bench.runtime.clock, await self.bench.context()
        owners, handlers = AssignedOwners(name, self.assignments), PeerHandlers()
        peers = self.peers.join(name, handlers)
        broker = Broker(context, self.registry, owners)
        count = ShardCount(context.streams.meta, shards_wanted)
        shards = CoordinatorShards(broker, count, several_brokers=True)
        parts = compose_parts(broker, clock, peers, handlers)
        offsets = GroupOffsets(parts, shards, clock)
        groups = GroupCoordinator(self.bench.runtime, shards, offsets, context.members)
        groups.start()
        transactions = compose_transactions(
            context, parts, shards, offsets, ids_at_once=10, peers=peers, handlers=handlers
        )
        transactions.start()
        self.brokers[name] = CoordinatingBroker(
            name, broker, owners, shards, offsets, groups, transactions, handlers
        )

    # --- who has what -----------------------------------------------------------------------------------

    async def shard(self, key: str) -> TopicName:
        shards = next(iter(self.brokers.values())).shards
        return (await shards.names())[await shards.number_of(key)]

    async def give(self, topic: TopicName, name: str) -> None:
        """Another broker has it from now on; the one that had it lets go of it, unless it is lost."""
        before = self.brokers[self.assignments.owner(topic)]
        self.assignments.given[topic] = name
        if before.name != name and before.owners.name_of(topic) == name:
            await before.broker.unload(topic)

    async def give_key(self, key: str, name: str) -> None:
        """The shard of a group or a transactional id."""
        await self.give(await self.shard(key), name)

    async def at(self, key: str) -> CoordinatingBroker:
        """The broker that coordinates a group or a transactional id."""
        return self.brokers[self.assignments.owner(await self.shard(key))]

    def lose(self, name: str) -> CoordinatingBroker:
        """Nobody hears it any more, nor does it hear that others have what it had."""
        self.brokers[name].owners.lose_touch()
        for other in self.brokers:
            self.peers.cut |= {(name, other), (other, name)} if other != name else set()
        return self.brokers[name]

    def find(self, name: str) -> None:
        """It is heard again, and does not know yet."""
        self.peers.cut = {pair for pair in self.peers.cut if name not in pair}

    # --- a client's end ---------------------------------------------------------------------------------

    async def topic(self, part: TopicName) -> BrokerTopic:
        broker = self.brokers[self.assignments.owner(part)].broker
        topic = await broker.load(part)
        assert isinstance(topic, BrokerTopic)
        return topic

    async def write(self, who: ProducerIdentity, part: TopicName, text: str) -> int:
        producer = await self.bench.producer(await self.topic(part))
        key = who.producer_id, who.epoch, part
        sequence = self.sequences.get(key, 0)
        stamp = Stamp(who.producer_id, who.epoch, sequence)
        receipt = await producer.publish(self.bench.out(text, stamp=stamp, transactional=True))
        self.sequences[key] = sequence + 1
        return int(receipt.offset)

    async def begin(self, name: str, who: ProducerIdentity, *parts: TopicName, text: str = "m") -> None:
        for part in parts:
            await self.topic(part)
        await (await self.at(name)).transactions.add_partitions(name, who, parts)
        for part in parts:
            await self.write(who, part, text)

    async def seen(self, part: TopicName) -> list[str]:
        """What a consumer that wants decided messages only gets, once everything is decided."""
        topic = await self.topic(part)
        while topic.stable_offset < topic.end_offset:
            await self.bench.runtime.clock.sleep(0.2)
        subscription = await topic.stored.create_subscription("look", StartAt(offset=0))
        wanted = subscription.backlog
        consumer = await self.bench.consumer(topic, "look")
        texts: list[str] = await self.bench.receive(consumer, wanted) if wanted else []
        await consumer.unsubscribe()
        return texts
