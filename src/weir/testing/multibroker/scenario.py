"""Kafka's and Pulsar's clients on several brokers over bookies, with bundles that move."""

from random import Random

from weir.testing.broker.nemesis import BrokerNemesis
from weir.testing.kafka.checkers import every
from weir.testing.kafka.cluster import KafkaCluster
from weir.testing.kafka.plan import KafkaPlan
from weir.testing.kafka.scenario import KafkaRun, few_epochs
from weir.testing.multibroker.checkers import CHECKERS
from weir.testing.multibroker.cluster import MultiBrokerCluster
from weir.testing.multibroker.mutations import MULTIBROKER_MUTATIONS
from weir.testing.multibroker.plan import MultiBrokerPlan, make_multibroker_plan
from weir.testing.scenario import Scenario
from weir.testing.storage.nemesis import Nemesis
from weir.testing.world.world import World


class _Run(KafkaRun):
    def make_cluster(self, world: World, plan: KafkaPlan) -> KafkaCluster:
        if not isinstance(plan, MultiBrokerPlan):
            raise TypeError("a plan of another scenario")
        return MultiBrokerCluster(world, plan)

    def make_nemesis(self, cluster: KafkaCluster, rng: Random) -> Nemesis:
        return BrokerNemesis(cluster, cluster, cluster.kafka_plan.storage, self.shared, rng)


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
