"""Brokers over bookies, and workers on queues: publishing, acknowledging, giving back, rejecting, being late."""

import asyncio
from collections.abc import Sequence

from weir.runtime.interfaces import Runtime
from weir.testing.broker.nemesis import BrokerNemesis
from weir.testing.operations import FINAL
from weir.testing.queues.checkers import CHECKERS
from weir.testing.queues.cluster import QueueCluster
from weir.testing.queues.history import QueueOp, QueueOpKind
from weir.testing.queues.mutations import QUEUE_MUTATIONS
from weir.testing.queues.plan import QueuePlan, make_queue_plan
from weir.testing.scenario import Scenario, SeedRun
from weir.testing.storage.workload import Shared
from weir.testing.world.world import World

#: Brokers give up on consumers of others that were not heard of for half a minute, and what is late goes on.
_SETTLE_S = 40.0
_PATIENCE_S = 120.0
_DECLARE_S = 60.0


class _Run(SeedRun[QueuePlan, QueueCluster]):
    def __init__(self, world: World, plan: QueuePlan) -> None:
        cluster = QueueCluster(world, plan)
        shared = Shared(cluster.history, plan.storage)
        nemesis = BrokerNemesis(cluster, cluster, plan.storage, shared, world.rng("nemesis"))
        super().__init__(world, plan, plan.storage, cluster, nemesis)

    @property
    def ops(self) -> Sequence[QueueOp]:
        return self.cluster.story.ops()

    async def set_up(self) -> None:
        for _ in range(self.plan.brokers):
            self.cluster.add_broker()
        async with asyncio.timeout(_DECLARE_S):
            await self.cluster.declared.wait()

    def add_clients(self) -> None:
        """They are the brokers' own."""

    async def final(self, runtime: Runtime) -> None:
        await runtime.clock.sleep(_SETTLE_S)
        self.cluster.empty()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self.cluster.emptied.wait()
        except TimeoutError as late:
            self.cluster.story.begin(FINAL, QueueOpKind.MISSING, queue="all").failed(late)


QUEUES = Scenario("queues", "queues", make_queue_plan, _Run, CHECKERS, QUEUE_MUTATIONS)
