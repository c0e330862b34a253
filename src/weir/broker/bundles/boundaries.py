"""Where namespaces' bundles begin and end: one record per namespace that was ever divided, known to every
broker."""

from collections.abc import Callable

from weir.broker.registry.mirror import Mirror
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec
from weir.model.bundles import Boundaries, BundleName
from weir.model.errors import NotAllowedError
from weir.model.topics import NamespaceName, TopicName
from weir.runtime import Runtime
from weir.wire.bundles import decode_boundaries, encode_boundaries

BOUNDARIES: Codec[Boundaries] = Codec(encode_boundaries, decode_boundaries)

#: Of a namespace that has no record.
_DEFAULT = Boundaries.even()


class BundleBoundaries:
    """`on_change` is called with each namespace whose bundles became others."""

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
        """Know its bundles by the store's own word, which may be ahead of the watch."""
        await self._records.refresh(keys.boundaries(namespace))

    async def confirmed(self, bundle: BundleName) -> bool:
        """`has`, by the store's own word."""
        await self.refresh(bundle.namespace)
        return self.has(bundle)

    async def split(self, bundle: BundleName, at: int) -> None:
        """One more boundary, within the bundle; fine if it is there."""
        key = keys.boundaries(bundle.namespace)
        await self._records.upsert(key, lambda now: (now or _DEFAULT).split(bundle, at))

    async def divide(self, namespace: NamespaceName, wanted: Boundaries) -> None:
        """For a namespace that has no record yet; NotAllowedError if it has another."""

        def first(now: Boundaries | None) -> Boundaries:
            if now is not None and now != wanted:
                raise NotAllowedError(f"{namespace} has its bundles already", hint="split those that it has")
            return now or wanted

        await self._records.upsert(keys.boundaries(namespace), first)

    def _told(self, key: str, present: bool) -> None:
        self._on_change(NamespaceName.parse(key.removeprefix(keys.BOUNDARIES)))
