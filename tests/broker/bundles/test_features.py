"""What a cluster uses is what all of its brokers have."""

from collections.abc import Callable

from tests.broker.bundles.conftest import Cluster

from weir.broker.cluster.registration import FeatureGate
from weir.model.cluster import DEFLATED_STATE, FEATURES, held_back


def test_a_feature_is_used_while_every_broker_that_is_there_has_it(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.brokers("ab")
        registration = cluster.members["a"].ownership.registration
        gate = FeatureGate(lambda: registration.live)
        assert all(gate.uses(feature) for feature in FEATURES)
        assert not gate.uses("of another release")
        old = await cluster.broker("c", features=tuple(name for name in FEATURES if name != DEFLATED_STATE))
        await cluster.settle()
        assert [name for name in FEATURES if not gate.uses(name)] == [DEFLATED_STATE]
        assert held_back(registration.live.values()) == {DEFLATED_STATE: ["c"]}
        await old.ownership.close()
        await cluster.settle()
        assert gate.uses(DEFLATED_STATE)
        await cluster.broker("c", instance="2", features=())
        await cluster.settle()
        assert not any(gate.uses(feature) for feature in FEATURES)

    in_cluster(scenario)
