"""Brokers over bookies, and workers on a shared subscription that retries: failing, dying, being put back."""

import asyncio
from collections.abc import Sequence

from weir.runtime.interfaces import Runtime
from weir.testing.broker.nemesis import BrokerNemesis
from weir.testing.operations import FINAL
from weir.testing.retries.checkers import CHECKERS
from weir.testing.retries.cluster import RetryCluster
from weir.testing.retries.history import RetryOp, RetryOpKind
from weir.testing.retries.mutations import RETRY_MUTATIONS
from weir.testing.retries.plan import RetryPlan, make_retry_plan
from weir.testing.retries.workers import TASKS
from weir.testing.scenario import Scenario, SeedRun
from weir.testing.storage.workload import Shared
from weir.testing.world.world import World

_SETTLE_S = 20.0
_PATIENCE_S = 120.0
_DECLARE_S = 60.0


class _Run(SeedRun[RetryPlan, RetryCluster]):
    def __init__(self, world: World, plan: RetryPlan) -> None:
        cluster = RetryCluster(world, plan)
        shared = Shared(cluster.history, plan.storage)
        nemesis = BrokerNemesis(cluster, cluster, plan.storage, shared, world.rng("nemesis"))
        super().__init__(world, plan, plan.storage, cluster, nemesis)

    @property
    def ops(self) -> Sequence[RetryOp]:
        return self.cluster.retries.ops()

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
        story = self.cluster.retries
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self.cluster.emptied.wait()
        except TimeoutError as late:
            story.begin(FINAL, RetryOpKind.MISSING, place=TASKS).failed(late)
        else:
            story.note(FINAL, RetryOpKind.DRAINED, deliveries=self.plan.max_deliveries)


RETRIES = Scenario("retries", "retries", make_retry_plan, _Run, CHECKERS, RETRY_MUTATIONS)
