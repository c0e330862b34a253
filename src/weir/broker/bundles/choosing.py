"""Who should have a bundle that nobody has: every broker chooses the same, without asking anybody."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

from weir.model.bundles import BundleName
from weir.model.policies import Isolation
from weir.model.registry import BrokerInfo


def choose(bundle: BundleName, brokers: Sequence[str]) -> str | None:
    """When a broker comes or goes only its own share of the bundles moves (rendezvous hashing)."""
    name = str(bundle)
    return max(brokers, key=lambda broker: (_weight(broker, name), broker), default=None)


def _weight(broker: str, bundle: str) -> bytes:
    return blake2b(f"{len(broker)}:{broker}{bundle}".encode(), digest_size=8).digest()


def candidates(brokers: Iterable[BrokerInfo], isolation: Isolation | None) -> list[str]:
    """The brokers that may have a namespace's bundles: those of its group, or, if none of them is there, of its
    fallback. Those that are being drained only if there are no others."""
    live = list(brokers)
    if isolation is not None:
        group = [broker for broker in live if matches(isolation.brokers, broker.broker_id)]
        live = group or [broker for broker in live if matches(isolation.fallback, broker.broker_id)]
    staying = [broker.broker_id for broker in live if not broker.draining]
    return staying or [broker.broker_id for broker in live]


def matches(patterns: Sequence[str], broker_id: str) -> bool:
    """Whether one of the regular expressions is the broker's whole name."""
    return any(_compiled(pattern).fullmatch(broker_id) for pattern in patterns)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> "re.Pattern[str]":
    return re.compile(pattern)
