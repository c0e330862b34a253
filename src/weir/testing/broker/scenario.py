"""Brokers over bookies, and Pulsar's clients: producers, and consumers of every kind of subscription."""

from collections.abc import Sequence
from functools import partial
from random import Random

from weir.client.pulsar.client import PulsarClient
from weir.model.errors import InvariantError, WeirError
from weir.runtime.interfaces import Runtime
from weir.testing.broker.checkers import CHECKERS
from weir.testing.broker.cluster import BrokerCluster
from weir.testing.broker.consumers import Handle, Receiver
from weir.testing.broker.final import FinalReader
from weir.testing.broker.history import BrokerOp
from weir.testing.broker.mutations import BROKER_MUTATIONS
from weir.testing.broker.nemesis import BrokerNemesis
from weir.testing.broker.plan import BrokerPlan, make_broker_plan
from weir.testing.broker.producers import Sender, make_errand
from weir.testing.broker.workload import CLIENT, BrokerShared, full_name
from weir.testing.scenario import Scenario, SeedRun
from weir.testing.world.world import World


class _Run(SeedRun[BrokerPlan, BrokerCluster]):
    def __init__(self, world: World, plan: BrokerPlan) -> None:
        cluster = BrokerCluster(world, plan)
        self.shared = BrokerShared(cluster)
        nemesis = BrokerNemesis(cluster, cluster, plan.storage, self.shared, world.rng("nemesis"))
        super().__init__(world, plan, plan.storage, cluster, nemesis)
        self._topics = [f"t{number}" for number in range(plan.topics)]

    @property
    def ops(self) -> Sequence[BrokerOp]:
        return self.cluster.story.ops()

    async def set_up(self) -> None:
        """Make every subscription before anything is published, so that each is owed everything."""
        self.world.node("claims").start(self.cluster.watch_claims)
        for _ in range(self.plan.brokers):
            self.cluster.add_broker()
        rng = self.world.rng("operator")
        await self.operate(
            *(
                partial(self._made, rng, topic, subscription)
                for topic in self._topics
                for subscription in self.plan.subscriptions
            )
        )

    async def _made(self, rng: Random, topic: str, subscription: str, runtime: Runtime) -> bool:
        try:
            async with PulsarClient(runtime, self.shared.some_url(rng), CLIENT) as client:
                handle = Handle(self.shared.next_handle("operator"), topic, subscription, self.shared)
                await handle.open(await client._owner(full_name(topic)), queue=1, label="operator")
                if handle.consumer is not None:
                    await handle.consumer.close()
        except InvariantError:
            raise
        except WeirError:
            return False
        return True

    def add_clients(self) -> None:
        for topic in self._topics:
            for number in range(self.plan.producers):
                self._add_producer(f"p{number}{topic}", topic)
            for subscription in self.plan.subscriptions:
                for number in range(self.plan.consumers):
                    self._add_consumer(f"{subscription[0]}{number}{topic}", topic, subscription)

    def _add_producer(self, name: str, topic: str) -> None:
        errand = make_errand(name, topic, self.world.rng(f"errand/{name}"), self.shared)

        async def produce(runtime: Runtime, rng: Random) -> None:
            await Sender(errand, runtime, rng, self.shared).run()

        self.client(name, produce)

    def _add_consumer(self, name: str, topic: str, subscription: str) -> None:
        async def consume(runtime: Runtime, rng: Random) -> None:
            await Receiver(name, topic, subscription, runtime, rng=rng, shared=self.shared).run()

        self.client(name, consume)

    async def final(self, runtime: Runtime) -> None:
        await FinalReader(runtime, self.shared, dict.fromkeys(self._topics, self.plan.subscriptions)).run()


BROKER = Scenario("broker", "broker", make_broker_plan, _Run, CHECKERS, BROKER_MUTATIONS)
