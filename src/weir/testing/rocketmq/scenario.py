"""RocketMQ's clients on simulated sockets: sending, receiving, acknowledging and deciding while brokers crash."""

import asyncio
from collections.abc import Sequence
from random import Random

from weir.gateway.rocketmq.call import load_handlers
from weir.runtime.interfaces import Runtime
from weir.testing.broker.nemesis import BrokerNemesis
from weir.testing.operations import FINAL
from weir.testing.rocketmq.checkers import CHECKERS
from weir.testing.rocketmq.cluster import RocketmqCluster
from weir.testing.rocketmq.history import RocketmqOp
from weir.testing.rocketmq.history import RocketmqOpKind as Kind
from weir.testing.rocketmq.mutations import ROCKETMQ_MUTATIONS
from weir.testing.rocketmq.plan import RocketmqPlan, make_rocketmq_plan
from weir.testing.rocketmq.workers import Worker
from weir.testing.scenario import Scenario, SeedRun
from weir.testing.storage.workload import Shared
from weir.testing.world.world import World

load_handlers()  # before the world's clock is looked at

_SETTLE_S = 15.0
_PATIENCE_S = 90.0
#: Longer than anybody has a message, and than a half message that nobody decides is kept.
_QUIET_S = 4.0
#: Longer than the state of a subscription is in memory alone.
_DURABLE_S = 10.0


class _Run(SeedRun[RocketmqPlan, RocketmqCluster]):
    def __init__(self, world: World, plan: RocketmqPlan) -> None:
        cluster = RocketmqCluster(world, plan)
        shared = Shared(cluster.history, plan.storage)
        nemesis = BrokerNemesis(cluster, cluster, plan.storage, shared, world.rng("nemesis"))
        super().__init__(world, plan, plan.storage, cluster, nemesis)
        self._numbers = [0]

    @property
    def ops(self) -> Sequence[RocketmqOp]:
        return self.cluster.story.ops()

    async def set_up(self) -> None:
        for _ in range(self.plan.brokers):
            self.cluster.add_broker()

    def add_clients(self) -> None:
        for number in range(2):
            self.client(
                f"producer{number}", lambda runtime, rng: self._worker(runtime, rng).produce(self._numbers)
            )
            self.client(f"checker{number}", lambda runtime, rng: self._worker(runtime, rng).answer_checks())
            self.client(f"consumer{number}", lambda runtime, rng: self._worker(runtime, rng).consume())

    def _worker(self, runtime: Runtime, rng: Random) -> Worker:
        """Another client each time that it starts."""
        name = f"client{self.cluster.story.step}-{rng.getrandbits(32):x}"
        return Worker(name, runtime, self.cluster.broker_names, self.plan, rng=rng, story=self.cluster.story)

    async def final(self, runtime: Runtime) -> None:
        story = self.cluster.story
        worker = self._worker(runtime, self.world.rng(FINAL))
        await runtime.clock.sleep(_SETTLE_S)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await worker.drain(Kind.CONTENT, _QUIET_S)
            story.note(FINAL, Kind.DRAINED)
            await runtime.clock.sleep(_DURABLE_S)
            self.cluster.crash_brokers()
            async with asyncio.timeout(_PATIENCE_S):
                await worker.drain(Kind.AGAIN, _QUIET_S)
        except TimeoutError as late:
            story.begin(FINAL, Kind.MISSING).failed(late)


ROCKETMQ = Scenario("rocketmq", "rocketmq", make_rocketmq_plan, _Run, CHECKERS, ROCKETMQ_MUTATIONS)
