"""What a mixed cluster may use."""

from weir.model.cluster import FEATURES, common_features
from weir.model.registry import BrokerInfo


def _broker(name: str, *features: str) -> BrokerInfo:
    return BrokerInfo(name, "1", features=features)


def test_a_mixed_cluster_uses_what_all_of_its_brokers_have() -> None:
    assert common_features([_broker("a", "x", "y"), _broker("b", "y", "z")]) == {"y"}
    assert common_features([_broker("a", *FEATURES), _broker("b", *FEATURES)]) == set(FEATURES)


def test_a_broker_of_before_that_says_nothing_has_nothing() -> None:
    assert common_features([_broker("a", "x"), _broker("old")]) == frozenset()
    assert common_features([]) == frozenset()
