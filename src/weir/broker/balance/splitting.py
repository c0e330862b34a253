"""Bundles that are hot or large are split, where that can help."""

from collections.abc import Iterator

from weir.broker.balance.round import BUNDLES_PER_UNIT, FEWEST_TOPICS, Round
from weir.broker.balance.usage import BYTES_PER_MESSAGE
from weir.model.load import BrokerLoad
from weir.model.steps import Steps


def split_bundles(round_: Round) -> Steps[None]:
    """The worst of all first, a few of each broker. What is split is measured by its topics, so neither a move
    before nor one after has to be waited for."""
    found: list[tuple[float, str, str]] = []
    for broker, load in round_.loads.items():
        found += [(times, bundle, broker) for times, bundle in _over(round_, broker, load)]
        yield 1 + len(load.bundles) // (4 * BUNDLES_PER_UNIT)
    for _, bundle, broker in sorted(found, key=lambda item: (-item[0], item[1])):
        round_.split(bundle, broker)


def _over(round_: Round, broker: str, load: BrokerLoad) -> Iterator[tuple[float, str]]:
    """Bundles that are over a limit, each with how many times that is, of the limit that it is furthest over.
    This looks at every bundle of a cluster, so it does so quickly: work is messages and bytes, so one that has
    little of it is over no limit of these."""
    limits = round_.limits
    per_cost = round_.per_cost[broker]
    little = min(limits.split_messages_per_s, limits.split_bytes_per_s / BYTES_PER_MESSAGE)
    if per_cost > 0:
        little = min(little, limits.split_usage / per_cost)
    for bundle, work in zip(load.bundles, round_.costs[broker], strict=True):
        if (work > little or bundle.topics > limits.split_topics) and bundle.topics >= FEWEST_TOPICS:
            times = max(
                bundle.topics / limits.split_topics,
                bundle.messages / limits.split_messages_per_s,
                bundle.bytes / limits.split_bytes_per_s,
                work * per_cost / limits.split_usage,
            )
            if times > 1:
                yield times, bundle.bundle
