"""Several brokers over a simulated storage cluster, which share topics, groups and transactions among them.

Each speaks with the others over the peer protocol. Nothing else is shared but the metadata and the bookies.
Bundles are moved and split now and then, as an operator or a leader would.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random

from weir.broker.cluster.bundle_handover import BundleMoves
from weir.broker.cluster.registration import OwnershipSettings
from weir.broker.peers.peer_calls import LISTENER, PeerClientSettings, PeerLinks, PeerServerSettings
from weir.model.cluster import BundleName
from weir.model.errors import InvariantError, WeirError
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.compose.composed import ComposedBroker, Composition
from weir.testing.kafka.clients.calls import Part
from weir.testing.kafka.clients.client import Link
from weir.testing.kafka.clients.table import TABLE
from weir.testing.kafka.clients.workload import IN, OUT
from weir.testing.kafka.cluster import KafkaCluster
from weir.testing.log_history import LogOpKind
from weir.testing.multibroker.plan import MultiBrokerPlan
from weir.testing.multibroker.routing import Leader, RoutedLink
from weir.testing.world.world import World

_PEER_PORT = 6660
#: Splits go on until a namespace has so many.
_MOST_BUNDLES = 12
_OWNERSHIP = OwnershipSettings(ttl_s=0.9, retry_s=0.1, close_timeout_s=1.0)
_PEERS = PeerLinks(client=PeerClientSettings(connect_timeout_s=0.5, request_timeout_s=2.0, ping_interval_s=0.5))


class MultiBrokerCluster(KafkaCluster):
    """Bookies and brokers of one run."""

    def __init__(self, world: World, plan: MultiBrokerPlan) -> None:
        super().__init__(world, plan)
        self.shape = plan
        self.broker_names = tuple(f"broker{n}" for n in range(plan.brokers))
        self._dice = world.rng("moves")
        self._calm = False

    def add_brokers(self) -> None:
        for name in self.broker_names:
            self.add_client(name, self._broker(name))

    def stop_clients(self) -> None:
        self._calm = True
        super().stop_clients()

    @property
    def some_address(self) -> str:
        return self._dice.choice(self.broker_names)

    def some_broker(self, rng: Random) -> str:
        return rng.choice(self.broker_names)

    async def connect(self, runtime: Runtime, name: str) -> Link:
        topics = [IN, OUT, *([TABLE.topic] if self.kafka_plan.table else [])]

        def told(part: Part, leader: Leader) -> None:
            self.story.note(name, LogOpKind.LEADER, part=str(part), offset=leader.epoch, host=leader.host)

        dice = self.world.rng(f"routes/{name}")
        return RoutedLink(runtime, name, dice, brokers=self.broker_names, topics=topics, told=told)

    # --- a broker's program ----------------------------------------------------------------------------------

    async def _run_broker(self, runtime: Runtime, name: str) -> None:
        ending = self._ending[name] = asyncio.Event()
        async with AsyncExitStack() as stack:
            composed = await self.compose(runtime, name, stack)
            tasks = TaskScope(f"{name} harness")
            stack.push_async_callback(tasks.close)
            tasks.spawn(self._move_bundles(runtime, name, composed), "moves")
            await ending.wait()

    def composition(self, name: str) -> Composition:
        how = super().composition(name)
        return replace(
            how,
            listeners={**how.listeners, LISTENER: f"{name}:{_PEER_PORT}"},
            ownership=_OWNERSHIP,
            peers=_PEERS,
            coordinator_shards=self.shape.shards,
        )

    async def compose(self, runtime: Runtime, name: str, stack: AsyncExitStack) -> ComposedBroker:
        composed = await super().compose(runtime, name, stack)
        await composed.serve_peers(PeerServerSettings(name, _PEER_PORT, close_grace_s=0.5))
        return composed

    async def _move_bundles(self, runtime: Runtime, name: str, composed: ComposedBroker) -> None:
        """Hand a bundle over, or split it, now and then."""
        while self.shape.moves:
            await runtime.clock.sleep(self._dice.uniform(0.2, 1.8) * self.shape.move_every_s)
            if self._calm:
                continue
            bundles = composed.bundles
            mine = [info.name for info in bundles.all() if info.owner == name] if bundles else []
            others = [other for other in self.broker_names if other != name]
            if bundles is None or not mine or not others:
                continue
            bundle, to = self._dice.choice(mine), self._dice.choice(others)
            die = self._dice.random()
            if die < self.shape.splits and len(bundles.of(bundle.namespace)) < _MOST_BUNDLES:
                await self._try(bundles.split(bundle), "split")
            elif die < 0.8:
                await self._try(bundles.hand_over(bundle, to), "hand over")
            elif die < 0.9:
                await self._try(bundles.let_go(bundle), "let go")
            else:
                await self._fight(bundles, bundle, to)

    async def _fight(self, bundles: BundleMoves, bundle: BundleName, to: str) -> None:
        """Several want it, or something of it, at the same time; who has got hold of it loses that again."""
        await asyncio.gather(
            self._try(bundles.hand_over(bundle, to), "hand over"),
            self._try(bundles.let_go(bundle), "let go"),
            self._try(bundles.hand_over(bundle, self._dice.choice(self.broker_names)), "hand over"),
        )
        self.end_leases(to)

    async def _try(self, work: Awaitable[object], what: str) -> None:
        try:
            await work
        except InvariantError:
            raise
        except WeirError as failure:
            self.world.note(what, type(failure).__name__)
