"""Brokers over one metadata store in memory, in simulated time: what they own, and topics that only have names."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from weir.broker.cluster.bundle_handover import BundleMoves
from weir.broker.cluster.ownership import BundleOwnership
from weir.broker.cluster.registration import OwnershipSettings, number_of
from weir.broker.topics.lifecycle import PassOn
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.cluster import FEATURES, Boundaries, BundleName
from weir.model.errors import PeerUnavailableError
from weir.model.ids import LedgerId
from weir.model.policies import Isolation
from weir.model.registry import BrokerInfo
from weir.model.stream import Chain
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.stream.handover import Left
from weir.testing.world.meta import FaultyMeta
from weir.testing.world.world import World, simulate

TTL_S = 5.0
SPACE = NamespaceName.parse("public/default")
BUNDLES = Boundaries.even().bundles(SPACE)


@dataclass
class Names:
    """Fills `successor.Topics`: topics that are loaded by their names alone."""

    ownership: BundleOwnership
    names: list[TopicName] = field(default_factory=list)
    claims: dict[TopicName, object] = field(default_factory=dict)
    closing_s: float = 0.0
    reasons: list[str] = field(default_factory=list)
    prepared: list[TopicName] = field(default_factory=list)
    looked_at: list[TopicName] = field(default_factory=list)
    written_down: list[TopicName] = field(default_factory=list)
    made_ledgers: list[tuple[TopicName, LedgerId]] = field(default_factory=list)
    left: list[tuple[TopicName, int]] = field(default_factory=list)
    passed: int = 0
    passed_on: dict[TopicName, bool] = field(default_factory=dict)

    async def load(self, name: TopicName, *, create: bool = True) -> object:
        claim = self.claims[name] = await self.ownership.own(name)
        if name not in self.names:
            self.names.append(name)
        return claim

    @property
    def written(self) -> list[TopicName]:
        return self.names[:1]

    @property
    def last_ledger(self) -> LedgerId:
        return LedgerId(7)

    async def look_ahead(self, name: TopicName, *, above: LedgerId | None) -> None:
        self.looked_at.append(name)
        if above is not None:
            self.made_ledgers.append((name, above))

    def was_left(self, name: TopicName, left: Left, epoch: int) -> None:
        self.left.append((name, epoch))

    def all_passed(self) -> None:
        self.passed += 1

    async def load_ahead(self, name: TopicName, *, written: bool) -> None:
        await self.load(name, create=False)
        if written:
            self.prepared.append(name)

    async def write_down(self, name: TopicName) -> None:
        self.written_down.append(name)

    async def unload(self, name: TopicName, reason: str = "", pass_on: PassOn | None = None) -> None:
        await self.ownership.clock.sleep(self.closing_s)
        if pass_on is not None:
            self.passed_on[name] = await pass_on(Left(Chain(), 1, None, {}))
        self.reasons.append(reason)
        if name in self.names:
            self.names.remove(name)


@dataclass
class Member:
    """One broker."""

    ownership: BundleOwnership
    moves: BundleMoves
    topics: Names
    meta: FaultyMeta

    @property
    def name(self) -> str:
        return self.ownership.me.broker_id

    @property
    def held(self) -> list[BundleName]:
        return sorted(name for name, bundle in self.ownership.held.items() if bundle.held)


@dataclass
class Cluster:
    runtime: Runtime
    core: MemoryCore
    members: dict[str, Member] = field(default_factory=dict)
    isolation: dict[NamespaceName, Isolation] = field(default_factory=dict)
    told: list[tuple[str, BundleName, Sequence[TopicName]]] = field(default_factory=list)
    #: Brokers that do not listen.
    gone: dict[str, None] = field(default_factory=dict)

    async def listens(self, broker_id: str) -> bool:
        return broker_id not in self.gone

    async def broker(
        self, name: str, instance: str = "1", features: tuple[str, ...] = FEATURES, **listeners: str
    ) -> Member:
        meta = FaultyMeta(MemoryMeta(self.core, self.runtime), self.runtime)
        number = await number_of(meta, self.runtime, name)
        listeners = {"pulsar": f"pulsar://{name}:6650", **listeners}
        info = BrokerInfo(name, instance, listeners, number, features=features)
        ownership = BundleOwnership(
            meta, self.runtime, info, OwnershipSettings(ttl_s=TTL_S), isolation_of=self.isolation.get
        )
        moves, topics = BundleMoves(ownership), Names(ownership)
        moves.serve(topics, self)
        ownership.silent.reach = self
        await ownership.start()
        member = self.members[name] = Member(ownership, moves, topics, meta)
        return member

    async def brokers(self, names: str) -> list[Member]:
        made = [await self.broker(name) for name in names]
        await self.settle()
        return made

    async def get_ready(
        self,
        broker_id: str,
        bundle: BundleName,
        topics: Sequence[TopicName],
        written: Sequence[TopicName],
        last_ledger: LedgerId,
    ) -> None:
        self.told.append((broker_id, bundle, topics))
        await self.members[broker_id].moves.expect(bundle, topics, written, last_ledger)

    async def pass_on(self, broker_id: str, topic: TopicName, left: Left, epoch: int) -> None:
        if broker_id in self.gone:
            raise PeerUnavailableError(f"{broker_id} does not listen")
        await self.members[broker_id].moves.was_left(topic, left, epoch)

    async def settle(self) -> None:
        """Until watches have told everything."""
        await self.runtime.clock.sleep(1)

    def chosen(self, bundle: BundleName) -> Member:
        """Who takes it while nobody has it, and somebody else."""
        return self.members[next(iter(self.members.values())).ownership.chosen(bundle, None)]

    def other(self, member: Member) -> Member:
        return self.other_than(member)

    def other_than(self, *members: Member) -> Member:
        return next(found for found in self.members.values() if found not in members)


def topic_in(bundle: BundleName, number: int = 0) -> TopicName:
    """The so-manieth topic of the bundle."""
    found = (TopicName(bundle.namespace, f"t{n}") for n in range(100_000))
    inside = (topic for topic in found if bundle.holds(topic))
    for _ in range(number):
        next(inside)
    return next(inside)


@pytest.fixture
def in_cluster() -> Callable[..., None]:
    def run(scenario: Callable[[Cluster], Awaitable[None]], seed: int = 1) -> None:
        async def main(world: World) -> None:
            async def on_node(runtime: Runtime) -> None:
                await asyncio.wait_for(scenario(Cluster(runtime, MemoryCore(runtime.clock))), 600)

            await world.node("cluster").start(on_node)

        simulate(seed, main)

    return run
