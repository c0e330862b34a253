"""Brokers with listeners for RocketMQ's clients over a simulated storage cluster; clients have their own nodes."""

from contextlib import AsyncExitStack
from dataclasses import replace

from weir.gateway.rocketmq.settings import RocketmqSettings, SessionLimits
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.compose.composed import ComposedBroker, Composition
from weir.testing.broker.moved import MovedBrokers
from weir.testing.rocketmq.client import PORT
from weir.testing.rocketmq.history import RocketmqHistory
from weir.testing.rocketmq.plan import RocketmqPlan
from weir.testing.rocketmq.workers import TOPIC
from weir.testing.storage.cluster import Cluster
from weir.testing.world.world import World

_LIMITS = SessionLimits(connect_timeout_s=2.0, stall_timeout_s=3.0, idle_timeout_s=10.0, settle_s=0.5)


class RocketmqCluster(MovedBrokers):
    moved_names = (TOPIC,)

    def __init__(self, world: World, plan: RocketmqPlan) -> None:
        super().__init__(world, plan, moves=plan.moves)
        self.story = RocketmqHistory(lambda: world.now)

    def stop_clients(self) -> None:
        """Clients end for good; brokers go on, and move nothing any more."""
        self._calm = True
        self.client_names = [name for name in self.client_names if name not in self.broker_names]
        Cluster.stop_clients(self)
        self.client_names = list(self.broker_names)

    def crash_brokers(self) -> None:
        """All of them; they are started again."""
        for name in self.broker_names:
            self.world.node(name).crash()

    async def _compose(self, runtime: Runtime, name: str, stack: AsyncExitStack) -> ComposedBroker:
        composed = await super()._compose(runtime, name, stack)
        settings = RocketmqSettings(name, PORT, limits=_LIMITS, sweep_interval_s=0.5, close_grace_s=1.0)
        await composed.serve_rocketmq(settings)
        return composed

    def _composition(self, name: str) -> Composition:
        how = super()._composition(name)
        return replace(how, listeners={**how.listeners, "rocketmq": f"{name}:{PORT}"})

    async def _work(self, runtime: Runtime, name: str, composed: ComposedBroker, workers: TaskScope) -> None:
        """Clients work, on nodes of their own."""
