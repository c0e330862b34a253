"""What this build of Weir can do that others must know of: a mixed cluster uses what all of its brokers have.

A broker registers the names (`BrokerInfo.features`). Whatever changes bytes that other brokers read gets a name
here, and is used only while `common_features` has it. Wire versions are names, too: `peer/1`.
"""

from collections.abc import Iterable

from weir.model.registry import BrokerInfo

#: Ownership by bundle, with epochs; calls between brokers; coordinators in shards; transactions over brokers.
FEATURES: tuple[str, ...] = ("bundles/1", "peer/1", "coordinators/1", "transactions/1")


def common_features(brokers: Iterable[BrokerInfo]) -> frozenset[str]:
    """What every one of them has; nothing if there are none. A broker that says nothing has nothing."""
    every = [frozenset(broker.features) for broker in brokers]
    return frozenset.intersection(*every) if every else frozenset()
