"""Bundles of a broker on its own: it has all of them, for good, and nobody else could."""

from weir.broker.api import BundleInfo
from weir.model.bundles import Boundaries, BundleName
from weir.model.errors import NotAllowedError
from weir.model.topics import NamespaceName, TopicName


class SoleBundles:
    """Fills `api.Bundles`; where a namespace was divided is forgotten with it."""

    def __init__(self, broker_id: str = "sole") -> None:
        self._broker_id = broker_id
        self._boundaries: dict[NamespaceName, Boundaries] = {}
        self.draining = False

    def _of(self, namespace: NamespaceName) -> Boundaries:
        return self._boundaries.get(namespace) or Boundaries.even()

    def bundle_of(self, topic: TopicName) -> BundleName:
        return self._of(topic.namespace).bundle_of(topic)

    def of(self, namespace: NamespaceName) -> list[BundleInfo]:
        return [BundleInfo(bundle, self._broker_id) for bundle in self._of(namespace).bundles(namespace)]

    def all(self) -> list[BundleInfo]:
        return [info for namespace in sorted(self._boundaries) for info in self.of(namespace)]

    def info(self, bundle: BundleName) -> BundleInfo:
        if not self._of(bundle.namespace).has(bundle):
            raise NotAllowedError(f"there is no bundle {bundle}", hint="look at the namespace's bundles")
        return BundleInfo(bundle, self._broker_id)

    async def hand_over(self, bundle: BundleName, to: str) -> None:
        raise NotAllowedError(f"{bundle} cannot go to {to}: there is no other broker")

    async def let_go(self, bundle: BundleName) -> None:
        self.info(bundle)

    async def split(self, bundle: BundleName, at: int | None = None) -> tuple[BundleName, BundleName]:
        self.info(bundle)
        low, high = bundle.halves(at)
        self._boundaries[bundle.namespace] = self._of(bundle.namespace).split(bundle, low.high)
        return low, high

    async def divide(self, namespace: NamespaceName, bundles: int) -> None:
        if namespace in self._boundaries:
            raise NotAllowedError(f"{namespace} has its bundles already", hint="split those that it has")
        self._boundaries[namespace] = Boundaries.even(bundles)

    async def drain(self, reason: str = "the broker is drained") -> None:
        raise NotAllowedError("there is no other broker to hand anything over to")

    async def resume(self) -> None:
        pass
