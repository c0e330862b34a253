"""Placement of bundles by rendezvous hashing, and the boundaries of bundles.

All brokers choose the same broker for an unowned bundle, without communication. Boundaries are one record per
namespace that was ever divided, mirrored by every broker.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b

from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.mirror import Mirror
from weir.meta.update import Codec
from weir.model.cluster import Boundaries, BundleName
from weir.model.errors import NotAllowedError
from weir.model.policies import Isolation
from weir.model.registry import BrokerInfo, is_named
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.wire.registry import decode_boundaries, encode_boundaries

#: Limit of cached choices; the cache is cleared beyond it.
_KEPT_CHOICES = 100_000


def choose(bundle: BundleName, brokers: Sequence[str]) -> str | None:
    """Choose a broker by rendezvous hashing: a new or lost broker moves only its own share of the bundles."""
    name = str(bundle)
    return max(brokers, key=lambda broker: (_weight(broker, name), broker), default=None)


def _weight(broker: str, bundle: str) -> bytes:
    return blake2b(f"{len(broker)}:{broker}{bundle}".encode(), digest_size=8).digest()


def candidates(brokers: Iterable[BrokerInfo], isolation: Isolation | None) -> list[str]:
    """The brokers that may own a namespace's bundles: its primary group, and the fallback group if too few of the
    primary brokers are registered. Draining brokers only if no other broker remains."""
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
    """Cache of chosen brokers, valid while registrations do not change: `live` is a new dict after each change."""

    def __init__(self) -> None:
        self._live: Mapping[str, BrokerInfo] | None = None
        self._candidates: dict[Isolation | None, list[str]] = {}
        self._chosen: dict[tuple[Isolation | None, BundleName], str] = {}

    def _for(self, live: Mapping[str, BrokerInfo]) -> None:
        if live is not self._live or len(self._chosen) > _KEPT_CHOICES:
            self._live, self._candidates, self._chosen = live, {}, {}

    def candidates(self, live: Mapping[str, BrokerInfo], isolation: Isolation | None) -> list[str]:
        """Cached result of the function of this name."""
        self._for(live)
        found = self._candidates.get(isolation)
        if found is None:
            found = self._candidates[isolation] = candidates(live.values(), isolation)
        return found

    def chosen(self, live: Mapping[str, BrokerInfo], isolation: Isolation | None, bundle: BundleName) -> str:
        """The broker that all brokers choose; "" if no broker may own the bundle."""
        self._for(live)
        found = self._chosen.get((isolation, bundle))
        if found is None:
            may = self.candidates(live, isolation)
            found = self._chosen[isolation, bundle] = choose(bundle, may) or ""
        return found


BOUNDARIES: Codec[Boundaries] = Codec(encode_boundaries, decode_boundaries)

#: Boundaries of a namespace without a record.
_DEFAULT = Boundaries.even()


class BundleBoundaries:
    """Boundaries of all namespaces. `on_change`: called with each namespace whose bundles change."""

    def __init__(self, meta: MetaStore, runtime: Runtime, on_change: Callable[[NamespaceName], None]) -> None:
        self._records = Mirror(meta, runtime, keys.BOUNDARIES, BOUNDARIES, self._told)
        self._on_change = on_change

    async def start(self) -> None:
        await self._records.start()

    async def close(self) -> None:
        await self._records.close()

    def of(self, namespace: NamespaceName) -> Boundaries:
        return self._records.get(keys.boundaries(namespace)) or _DEFAULT

    def bundle_of(self, topic: TopicName) -> BundleName:
        return self.of(topic.namespace).bundle_of(topic)

    def has(self, bundle: BundleName) -> bool:
        return self.of(bundle.namespace).has(bundle)

    async def refresh(self, namespace: NamespaceName) -> None:
        """Read the namespace's boundaries from the store, which may be newer than the watch."""
        await self._records.refresh(keys.boundaries(namespace))

    async def confirmed(self, bundle: BundleName) -> bool:
        """`has`, after a read from the store."""
        await self.refresh(bundle.namespace)
        return self.has(bundle)

    async def split(self, bundle: BundleName, at: int) -> None:
        """Add a boundary within the bundle. Idempotent."""
        key = keys.boundaries(bundle.namespace)
        await self._records.upsert(key, lambda now: (now or _DEFAULT).split(bundle, at))

    async def divide(self, namespace: NamespaceName, wanted: Boundaries) -> None:
        """Create the boundaries of a namespace without a record; NotAllowedError if it has different ones."""

        def first(now: Boundaries | None) -> Boundaries:
            if now is not None and now != wanted:
                raise NotAllowedError(
                    f"{namespace} is divided into bundles already", hint="split a bundle instead"
                )
            return now or wanted

        await self._records.upsert(keys.boundaries(namespace), first)

    def _told(self, key: str, present: bool) -> None:
        self._on_change(NamespaceName.parse(key.removeprefix(keys.BOUNDARIES)))
