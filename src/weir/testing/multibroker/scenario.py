"""Kafka's and Pulsar's clients on several brokers over bookies, with bundles that move."""

from random import Random

from weir.runtime.interfaces import Runtime
from weir.testing.kafka.checkers import every
from weir.testing.kafka.cluster import KafkaCluster
from weir.testing.kafka.plan import KafkaPlan
from weir.testing.kafka.scenario import KafkaRun, few_epochs
from weir.testing.leading import claims_told
from weir.testing.log_history import LogOpKind
from weir.testing.multibroker.checkers import CHECKERS
from weir.testing.multibroker.cluster import MultiBrokerCluster
from weir.testing.multibroker.follower import ClusterFollower
from weir.testing.multibroker.mutations import MULTIBROKER_MUTATIONS
from weir.testing.multibroker.nemesis import MultiBrokerNemesis
from weir.testing.multibroker.plan import MultiBrokerPlan, make_multibroker_plan
from weir.testing.scenario import Scenario
from weir.testing.storage.nemesis import Nemesis
from weir.testing.world.world import World


class _Run(KafkaRun):
    follower = ClusterFollower

    async def set_up(self) -> None:
        self.world.node("claims").start(self._watch_claims)
        await super().set_up()

    async def _watch_claims(self, runtime: Runtime) -> None:
        """Write down who has which bundle, as the metadata tells it, for ever."""
        async for led in claims_told(self.cluster.core, runtime):
            self.cluster.story.note("metadata", LogOpKind.LED, part=led.bundle, host=led.start, offset=led.epoch)

    def make_cluster(self, world: World, plan: KafkaPlan) -> KafkaCluster:
        if not isinstance(plan, MultiBrokerPlan):
            raise TypeError("a plan of another scenario")
        return MultiBrokerCluster(world, plan)

    def make_nemesis(self, cluster: KafkaCluster, rng: Random) -> Nemesis:
        if not isinstance(cluster, MultiBrokerCluster):
            raise TypeError("a cluster of another scenario")
        return MultiBrokerNemesis(cluster, self.shared, rng)


MULTIBROKER = Scenario(
    "multibroker",
    "multibroker",
    make_multibroker_plan,
    _Run,
    CHECKERS,
    MULTIBROKER_MUTATIONS,
    shown_elsewhere=every.CHECKERS,
    around=few_epochs,
)
