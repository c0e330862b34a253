"""Bundles that are hot or large are split, where that can help."""

from weir.broker.balance.actions import Split
from weir.broker.balance.round import Round
from weir.broker.balance.usage import cost
from weir.model.load import BrokerLoad

#: A bundle of one topic has nothing to split.
_FEWEST_TOPICS = 2


def split_bundles(round_: Round) -> None:
    """The worst of each broker, the worst of all first; a broker whose measures are of before its last change is
    left alone."""
    limits = round_.limits
    found = [
        (*max(over), broker)
        for broker, load in round_.loads.items()
        if (over := _over(round_, broker, load)) and not round_.rests(broker)
    ]
    if not found:
        return
    found.sort(key=lambda item: (-item[0], item[1]))
    counts = _bundle_counts(round_, {_namespace(bundle) for _, bundle, _ in found})
    for _, bundle, broker in found[: limits.splits_per_round]:
        namespace = _namespace(bundle)
        if counts[namespace] < limits.bundles_per_namespace:
            counts[namespace] += 1
            round_.decide(Split(bundle, broker))


def _over(round_: Round, broker: str, load: BrokerLoad) -> list[tuple[float, str]]:
    """Bundles that are over a limit, each with how many times that is, of the limit that it is furthest over. This
    looks at every bundle of a cluster, so it does so quickly."""
    limits = round_.limits
    per_cost = round_.per_cost[broker]
    topics, messages, size, most = (
        1 / limits.split_topics,
        1 / limits.split_messages_per_s,
        1 / limits.split_bytes_per_s,
        per_cost / limits.split_usage,
    )
    found = []
    for bundle in load.bundles:
        if bundle.topics >= _FEWEST_TOPICS:
            times = max(
                bundle.topics * topics, bundle.messages * messages, bundle.bytes * size, cost(bundle) * most
            )
            if times > 1:
                found.append((times, bundle.bundle))
    return found


def _bundle_counts(round_: Round, namespaces: set[str]) -> dict[str, int]:
    """How many bundles of these are reported."""
    counts = dict.fromkeys(namespaces, 0)
    for load in round_.loads.values():
        for bundle in load.bundles:
            namespace = _namespace(bundle.bundle)
            if namespace in counts:
                counts[namespace] += 1
    return counts


def _namespace(bundle: str) -> str:
    return bundle.rpartition("/")[0]
