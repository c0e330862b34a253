"""What this build of Weir can do that others must know of: a mixed cluster uses what all of its brokers have.

A broker registers the names (`BrokerInfo.features`). Whatever changes bytes that other brokers read gets a name
here, and whoever writes them asks `FeaturesInUse` each time. Wire versions are names, too: `peer/1`.
"""

from collections.abc import Iterable
from typing import Protocol

from weir.model.registry import BrokerInfo

#: Entries of topics' state are deflated (`weir.wire.state`).
DEFLATED_STATE = "state/2"
#: Topics are found by their ids, and by being deleted, without looking at all of them.
TOPIC_INDEX = "topic-index/1"
#: Messages of queues that are in memory only have offsets, and the log has gaps in their places (`memory/end`).
UNWRITTEN = "unwritten/1"
#: Half messages in the holding area (`Batch.origin` is `Prepared`).
HALF_MESSAGES = "half-messages/1"
#: Topics are passed on as they were left: a ledger may be open that its chain says is closed (`weir.stream.left`).
LEFT = "left/1"
#: Ledgers may be gone whose copy in the lake is read instead (`Span.segment`).
TIERED = "tiered/1"

#: Batches for one subscription alone (`Batch.origin` is `Addressed`).
ADDRESSED = "addressed/1"
#: Ownership by bundle, with epochs; calls between brokers; coordinators in shards; transactions over brokers.
FEATURES: tuple[str, ...] = (
    *("bundles/1", "peer/1", "coordinators/1", "transactions/1"),
    DEFLATED_STATE,
    TOPIC_INDEX,
    UNWRITTEN,
    HALF_MESSAGES,
    LEFT,
    TIERED,
    ADDRESSED,
)


class FeaturesInUse(Protocol):
    def uses(self, feature: str) -> bool:
        """Whether every broker has it now, as far as this one knows."""


class EveryFeature:
    """Fills `FeaturesInUse` where nobody else reads."""

    def uses(self, feature: str) -> bool:
        return feature in FEATURES


def common_features(brokers: Iterable[BrokerInfo]) -> frozenset[str]:
    """What every one of them has; nothing if there are none. A broker that says nothing has nothing."""
    every = [frozenset(broker.features) for broker in brokers]
    return frozenset.intersection(*every) if every else frozenset()


def held_back(brokers: Iterable[BrokerInfo]) -> dict[str, list[str]]:
    """Features that some of them have, each with those that lack it."""
    listed = list(brokers)
    known = sorted({feature for broker in listed for feature in broker.features})
    lacking = {name: [b.broker_id for b in listed if name not in b.features] for name in known}
    return {name: who for name, who in lacking.items() if who}
