"""Bundles of a broker on its own: it has all of them, for good, and nobody else could.

What topics and the broker ask of the registry, the guards, the schemas and ownership, as small interfaces.

Each has a form that allows everything and remembers nothing but names, for a broker on its own and for tests.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from weir.broker.api.broker import Owner
from weir.broker.api.cluster import BundleInfo
from weir.broker.api.schemas import SchemaData
from weir.broker.ports import Claim
from weir.model.cluster import Boundaries, BundleName
from weir.model.errors import NotAllowedError, NotOwnerError, TopicNotFoundError
from weir.model.policies import DEFAULT_POLICIES, Policies, TieringRules
from weir.model.queues import QueueRules
from weir.model.registry import SYSTEM_NAMESPACE, Action, BrokerInfo, TopicRecord, system_record
from weir.model.topics import NamespaceName, TopicName


class NothingElsewhere:
    """Fills `PartsElsewhere` for a broker on its own."""

    async def check_unused(self, part: TopicName) -> None:
        raise NotOwnerError(f"there is no other broker to ask about {part}")

    async def erase(self, part: TopicName) -> None:
        raise NotOwnerError(f"there is no other broker to delete {part}")


class OpenGuard:
    """Everyone may do everything."""

    revision = 0

    async def change(self, seen: int) -> int:
        never: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        return await never

    def check(
        self, role: str, topic: TopicName, action: Action | None, *, subscription: str | None = None
    ) -> None:
        pass

    def check_configure(self, role: str, topic: TopicName) -> None:
        pass

    def check_policies(self, role: str, namespace: NamespaceName) -> None:
        pass

    def check_listing(self, role: str, namespace: NamespaceName) -> None:
        pass

    def check_admin(self, role: str, namespace: NamespaceName) -> None:
        pass

    def check_stored_target(self, source: TopicName, target: TopicName) -> None:
        pass


class NoSchemas:
    async def for_producer(self, topic: TopicName, schema: SchemaData | None, *, role: str = "") -> bytes:
        return b""

    async def for_consumer(self, topic: TopicName, schema: SchemaData | None, *, role: str = "") -> None:
        pass

    async def purge(self, topic: TopicName) -> None:
        pass


class NoTiering:
    """Every ledger stays."""

    def of(self, topic: TopicName) -> TieringRules | None:
        return None

    async def look(self, topic: TopicName) -> TieringRules | None:
        return None


class NoQueueRules:
    """Every topic is a plain queue."""

    _plain = QueueRules()

    def of(self, topic: TopicName) -> QueueRules:
        return self._plain


class _ForEver:
    held = True
    epoch = 0


class SoleOwner:
    """This broker serves every topic."""

    def __init__(self, listeners: Mapping[str, str] | None = None) -> None:
        self._owner = Owner(True, listeners or {}, "sole", 0)

    async def own(self, topic: TopicName) -> Claim:
        return _ForEver()

    async def owner(self, topic: TopicName) -> Owner:
        return self._owner

    def owner_now(self, topic: TopicName) -> Owner:
        return self._owner

    def owners_now(self, topic: TopicName, partitions: Sequence[int]) -> list[Owner]:
        return [self._owner] * len(partitions)

    def brokers(self) -> list[BrokerInfo]:
        return [BrokerInfo(self._owner.broker_id, "", self._owner.listeners)]

    def former_brokers(self) -> list[BrokerInfo]:
        return []


class PlainRegistry:
    """Topics come to be when they are asked for; one set of policies for all."""

    def __init__(self, policies: Policies | None = None) -> None:
        self._policies = (policies or Policies()).over(DEFAULT_POLICIES)
        self._topics: dict[TopicName, TopicRecord] = {}
        self.policies_revision = (0, 0)

    def set(self, policies: Policies) -> None:
        """Other policies from now on."""
        self.policies_revision = (self.policies_revision[0] + 1, 0)
        self._policies = policies.over(self._policies)

    def policies(self, where: TopicName) -> Policies:
        return self._policies

    async def ensure_topic(self, name: TopicName, *, create: bool = True) -> TopicRecord:
        if name.namespace == SYSTEM_NAMESPACE:
            return system_record(name)
        found = self._topics.get(name.base)
        if found is None:
            if not create:
                raise TopicNotFoundError(f"there is no topic {name}")
            found = self._topics[name.base] = TopicRecord(name.base)
        return found

    async def confirm_topic(self, name: TopicName) -> TopicRecord | None:
        return system_record(name) if name.namespace == SYSTEM_NAMESPACE else self._topics.get(name.base)

    async def doom_topic(self, name: TopicName) -> TopicRecord:
        found = await self.ensure_topic(name, create=False)
        doomed = self._topics[name.base] = replace(found, deleting=True)
        return doomed

    async def forget_topic(self, doomed: TopicRecord) -> None:
        if self._topics.get(doomed.name) == doomed:
            del self._topics[doomed.name]

    async def doomed_topics(self) -> list[TopicName]:
        return [record.name for record in self._topics.values() if record.deleting]

    def hold_topic(self, name: TopicName) -> None:
        """All are."""

    def let_go_of_topic(self, name: TopicName) -> None:
        """It stays."""

    async def look_policies(self, topic: TopicName) -> Policies:
        return self._policies

    async def topic_names(
        self, namespace: NamespaceName, *, pattern: str | None = None
    ) -> AsyncIterator[list[TopicName]]:
        yield [topic for topic in self._topics if topic.namespace == namespace]


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
