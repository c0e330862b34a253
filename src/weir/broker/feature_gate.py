"""Which features the cluster uses: those that every registered broker has, followed as brokers come and go."""

from collections.abc import Callable, Mapping

from weir.model.features import common_features
from weir.model.registry import BrokerInfo


class FeatureGate:
    """Fills `FeaturesInUse`. `live` answers the same object until a broker comes, goes or says something else."""

    def __init__(self, live: Callable[[], Mapping[str, BrokerInfo]]) -> None:
        self._live = live
        self._as_of: Mapping[str, BrokerInfo] | None = None
        self._common: frozenset[str] = frozenset()

    def uses(self, feature: str) -> bool:
        live = self._live()
        if live is not self._as_of:
            self._as_of, self._common = live, common_features(live.values())
        return feature in self._common
