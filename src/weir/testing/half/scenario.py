"""Half messages, recalled messages and message groups, on brokers over bookies."""

import asyncio
from collections.abc import Sequence

from weir.runtime.interfaces import Runtime
from weir.testing.broker.nemesis import BrokerNemesis
from weir.testing.half.checkers import CHECKERS
from weir.testing.half.cluster import HalfCluster
from weir.testing.half.history import HalfOp, HalfOpKind
from weir.testing.half.mutations import HALF_MUTATIONS
from weir.testing.half.plan import HalfPlan, make_half_plan
from weir.testing.operations import FINAL
from weir.testing.scenario import Scenario, SeedRun
from weir.testing.storage.workload import Shared
from weir.testing.world.world import World

#: Leases end, and what is due is released.
_SETTLE_S = 10.0
_PATIENCE_S = 120.0


class _Run(SeedRun[HalfPlan, HalfCluster]):
    def __init__(self, world: World, plan: HalfPlan) -> None:
        cluster = HalfCluster(world, plan)
        shared = Shared(cluster.history, plan.storage)
        nemesis = BrokerNemesis(cluster, cluster, plan.storage, shared, world.rng("nemesis"))
        super().__init__(world, plan, plan.storage, cluster, nemesis)

    @property
    def ops(self) -> Sequence[HalfOp]:
        return self.cluster.story.ops()

    async def set_up(self) -> None:
        for _ in range(self.plan.brokers):
            self.cluster.add_broker()

    def add_clients(self) -> None:
        """They are the brokers' own."""

    async def final(self, runtime: Runtime) -> None:
        await runtime.clock.sleep(_SETTLE_S)
        self.cluster.empty()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self.cluster.emptied.wait()
        except TimeoutError as late:
            for topic in self.cluster.unread:
                self.cluster.story.begin(FINAL, HalfOpKind.MISSING, topic=topic.local).failed(late)


HALF = Scenario("half", "half", make_half_plan, _Run, CHECKERS, HALF_MUTATIONS)
