"""Who should have a bundle that nobody has: every broker chooses the same, without asking anybody."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from weir.model.bundles import BundleName
from weir.model.isolation import is_named
from weir.model.policies import Isolation
from weir.model.registry import BrokerInfo

#: Bundles for which it is remembered who would be chosen, before all are forgotten.
_KEPT_CHOICES = 100_000


def choose(bundle: BundleName, brokers: Sequence[str]) -> str | None:
    """When a broker comes or goes only its own share of the bundles moves (rendezvous hashing)."""
    name = str(bundle)
    return max(brokers, key=lambda broker: (_weight(broker, name), broker), default=None)


def _weight(broker: str, bundle: str) -> bytes:
    return blake2b(f"{len(broker)}:{broker}{bundle}".encode(), digest_size=8).digest()


def candidates(brokers: Iterable[BrokerInfo], isolation: Isolation | None) -> list[str]:
    """The brokers that may have a namespace's bundles: those of its group, and, if too few of them are there, of
    its fallback. Those that are being drained only if there are no others."""
    live = list(brokers)
    if isolation is not None:
        group = [
            broker
            for broker in live
            if is_named(isolation.brokers, broker) and not is_named(isolation.excluded, broker)
        ]
        if len(group) < isolation.least:
            group += [b for b in live if is_named(isolation.fallback, b) and b not in group]
        live = group
    staying = [broker.broker_id for broker in live if not broker.draining]
    return staying or [broker.broker_id for broker in live]


class Choices:
    """Who would be chosen for what, remembered for as long as the same brokers are there: `live` is another dict
    as soon as one of them changes."""

    def __init__(self) -> None:
        self._live: Mapping[str, BrokerInfo] | None = None
        self._candidates: dict[Isolation | None, list[str]] = {}
        self._chosen: dict[tuple[Isolation | None, BundleName], str] = {}

    def _for(self, live: Mapping[str, BrokerInfo]) -> None:
        if live is not self._live or len(self._chosen) > _KEPT_CHOICES:
            self._live, self._candidates, self._chosen = live, {}, {}

    def candidates(self, live: Mapping[str, BrokerInfo], isolation: Isolation | None) -> list[str]:
        """As the function of this name."""
        self._for(live)
        found = self._candidates.get(isolation)
        if found is None:
            found = self._candidates[isolation] = candidates(live.values(), isolation)
        return found

    def chosen(self, live: Mapping[str, BrokerInfo], isolation: Isolation | None, bundle: BundleName) -> str:
        """Whom everybody would choose; "" if nobody may have it."""
        self._for(live)
        found = self._chosen.get((isolation, bundle))
        if found is None:
            may = self.candidates(live, isolation)
            found = self._chosen[isolation, bundle] = choose(bundle, may) or ""
        return found
