"""What exists and what holds for it: clusters, tenants, namespaces, topics, policies and grants.

    registry = Registry(meta, runtime)
    await registry.start()
    registry.tenants.get("public")                                   # from memory, never waits
    await registry.topics.create(TopicName.parse("orders"), partitions=4)
    registry.policies(topic).retention                               # topic over namespace over default
    policies = await registry.policies_change(topic, policies)       # waits until they differ

Everything is kept in memory, fresh by a watch; only changes go to the metadata store.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from weir.broker.registry.grants import GrantTable
from weir.broker.registry.isolation import isolation_of
from weir.broker.registry.listing import TopicListWatch, TopicPattern
from weir.broker.registry.mirror import Bells, Mirror
from weir.broker.registry.role_tenants import RoleTenants
from weir.broker.registry.tenants import NamespaceTable, TenantTable
from weir.broker.registry.topics import TopicLimits, TopicTable
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec
from weir.model.errors import ClusterNotFoundError, NamespaceExistsError, TenantExistsError
from weir.model.policies import DEFAULT_POLICIES, AutoTopicCreation, Isolation, Policies, SchemaCompatibility
from weir.model.registry import STANDALONE, SYSTEM_NAMESPACE, Cluster, Namespace, TopicRecord, system_record
from weir.model.topics import DEFAULT_NAMESPACE, Domain, NamespaceName, TopicName
from weir.runtime import Runtime
from weir.wire.registry import decode_cluster, encode_cluster

CLUSTER: Codec[Cluster] = Codec(encode_cluster, decode_cluster)

_ACCESS = "access"


class Registry:
    """The broker's view of all that is in the metadata, except for streams and subscriptions."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        defaults: Policies = DEFAULT_POLICIES,
        *,
        limits: TopicLimits | None = None,
    ) -> None:
        """`defaults` hold where neither topic nor namespace says anything, over the built-in ones."""
        self._defaults = defaults.over(DEFAULT_POLICIES)
        self._bells = Bells()
        self._access_revision = 0
        self._effective: dict[str, tuple[Namespace | None, TopicRecord | None, Policies]] = {}
        self._clusters = Mirror(meta, runtime, keys.CLUSTERS, CLUSTER)
        self.tenants = TenantTable(meta, runtime, self._access_changed)
        self.namespaces = NamespaceTable(meta, runtime, self.tenants, self._namespace_changed)
        self.topics = TopicTable(
            meta, runtime, self.namespaces, limits or TopicLimits(), on_change=self._topic_changed
        )
        self.grants = GrantTable(meta, runtime, self._access_changed)
        self.role_tenants = RoleTenants(meta, runtime)

    async def start(self) -> None:
        """Know everything; on the very first start make `public/default`."""
        for table in self._tables():
            await table.start()
        if not len(self._clusters):
            await self._first_start()

    async def close(self) -> None:
        for table in self._tables():
            await table.close()

    def _tables(
        self,
    ) -> tuple[Mirror[Cluster] | TenantTable | NamespaceTable | TopicTable | GrantTable | RoleTenants, ...]:
        return (self._clusters, self.tenants, self.namespaces, self.topics, self.grants, self.role_tenants)

    async def _first_start(self) -> None:
        """Several brokers may do this at once. The cluster comes last: it marks that the rest was made, so that an
        operator who deletes `public` does not get it back at the next start."""
        with suppress(TenantExistsError):
            await self.tenants.create(DEFAULT_NAMESPACE.tenant)
        with suppress(NamespaceExistsError):
            await self.namespaces.create(DEFAULT_NAMESPACE)
        await self.change_cluster(STANDALONE, lambda cluster: cluster)

    # --- clusters -----------------------------------------------------------------------------------------------

    def clusters(self) -> list[Cluster]:
        return list(self._clusters.items().values())

    def cluster(self, name: str) -> Cluster:
        """ClusterNotFoundError if there is none."""
        found = self._clusters.get(keys.cluster(name))
        if found is None:
            raise ClusterNotFoundError(f"there is no cluster {name[:80]}")
        return found

    async def change_cluster(self, name: str, change: Callable[[Cluster], Cluster]) -> Cluster:
        """Change the cluster, made if it is not there, by a pure function."""
        if name != STANDALONE:
            raise ClusterNotFoundError(
                f"there is no cluster {name[:80]}", hint=f"this Weir has one cluster, {STANDALONE}"
            )
        changed = await self._clusters.upsert(keys.cluster(name), lambda cluster: change(cluster or Cluster(name)))
        return changed.value

    def isolation(self, namespace: NamespaceName) -> Isolation:
        """Which brokers serve a namespace."""
        cluster = self._clusters.get(keys.cluster(STANDALONE))
        said = self.policies(namespace).isolation
        return isolation_of(namespace, said, {} if cluster is None else cluster.isolation)

    # --- policies -----------------------------------------------------------------------------------------------

    def policies(self, where: TopicName | NamespaceName) -> Policies:
        """What holds for a topic or for a namespace: every field has a value."""
        if isinstance(where, NamespaceName):
            namespace = self.namespaces.find(where)
            return self._defaults if namespace is None else _said(namespace.policies).over(self._defaults)
        key = keys.topic(where)
        namespace, record = self.namespaces.find(where.namespace), self.topics.find(where)
        known = self._effective.get(key)
        if known is not None and known[0] is namespace and known[1] is record:
            return known[2]
        policies = self.policies(where.namespace)
        if record is not None:
            policies = _said(record.policies).over(policies)
            self._effective[key] = (namespace, record, policies)
        return policies

    async def policies_change(self, topic: TopicName, seen: Policies) -> Policies:
        """Wait until the topic's policies are no longer `seen`; answers what they are."""
        while (now := self.policies(topic)) == seen:
            await self._bells.wait([keys.topic(topic), keys.namespace(topic.namespace)])
        return now

    async def change_policies(
        self, where: TopicName | NamespaceName, change: Callable[[Policies], Policies]
    ) -> Policies:
        """Change what a topic or a namespace says itself, by a pure function; answers what it says now."""
        if isinstance(where, NamespaceName):
            namespace = await self.namespaces.change(
                where, lambda value: replace(value, policies=change(value.policies))
            )
            return namespace.policies
        record = await self.topics.change(where, lambda value: replace(value, policies=change(value.policies)))
        return record.policies

    async def change_properties(
        self, where: TopicName | NamespaceName, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """Change a topic's or a namespace's properties, by a pure function; answers what they are now."""
        if isinstance(where, NamespaceName):
            namespace = await self.namespaces.change(
                where, lambda value: replace(value, properties=dict(change(value.properties)))
            )
            return namespace.properties
        record = await self.topics.change(
            where, lambda value: replace(value, properties=dict(change(value.properties)))
        )
        return record.properties

    # --- topics -------------------------------------------------------------------------------------------------

    async def ensure_topic(self, name: TopicName, *, create: bool = True) -> TopicRecord:
        """The topic (of a partition: the one that has it), made now if `create` and policy allow it.

        TopicNotFoundError, NamespaceNotFoundError. A known topic costs no wait."""
        if create and name.namespace == SYSTEM_NAMESPACE:
            return system_record(name)
        found = self.topics.find(name)
        if found is not None:
            return found
        policy = self.policies(name.namespace).auto_topic_creation if create else None
        return await self.topics.ensure(name, policy or AutoTopicCreation(allowed=False))

    async def doom_topic(self, name: TopicName) -> TopicRecord:
        """Mark the topic as being deleted, for good; answers what it is."""
        return await self.topics.doom(name)

    async def confirm_topic(self, name: TopicName) -> TopicRecord | None:
        """The topic by the metadata store's own word."""
        if name.namespace == SYSTEM_NAMESPACE:
            return system_record(name)
        return await self.topics.confirm(name)

    def doomed_topics(self) -> list[TopicName]:
        """Those that are marked as being deleted."""
        return [record.name for record in self.topics.doomed()]

    async def forget_topic(self, doomed: TopicRecord) -> None:
        """Take the grants on a topic that is being deleted out of the metadata, and the topic itself last, so that
        what is interrupted can be done again."""
        await self.grants.forget(doomed.name)
        await self.topics.delete(doomed)

    async def delete_topic(self, name: TopicName) -> TopicRecord:
        """Take a topic that holds nothing out of the metadata; answers what it was."""
        doomed = await self.doom_topic(name)
        await self.forget_topic(doomed)
        return doomed

    async def delete_namespace(self, name: NamespaceName) -> None:
        """NotEmptyError if it has topics. The grants on it go too."""
        await self.namespaces.delete(name)
        await self.grants.forget(name)

    async def delete_tenant(self, name: str) -> None:
        """NotEmptyError if it has namespaces. The grants on it go too."""
        await self.tenants.delete(name)
        await self.grants.forget(name)

    def topic_names(
        self, namespace: NamespaceName, *, pattern: str | None = None, domain: Domain | None = None
    ) -> list[TopicName]:
        """Every topic of the namespace, each partition on its own. NamespaceNotFoundError; NotAllowedError for a
        pattern that is none."""
        self.namespaces.get(namespace)
        return self._names(namespace, None if pattern is None else TopicPattern(pattern), domain)

    def _names(
        self, namespace: NamespaceName, pattern: TopicPattern | None, domain: Domain | None
    ) -> list[TopicName]:
        return [
            part
            for record in self.topics.of(namespace)
            if (domain is None or record.name.domain is domain)
            and (pattern is None or pattern.matches(record.name))
            for part in record.parts()
        ]

    def watch_topics(
        self,
        namespace: NamespaceName,
        *,
        pattern: str | None = None,
        domain: Domain | None = None,
        known_hash: str = "",
        may_see: Callable[[], bool] = lambda: True,
    ) -> TopicListWatch:
        """The list that `topic_names` gives, and then what changes in it; a namespace that is not there, or not
        any more, is an empty one. While `may_see` says no, nothing changes for the watcher."""
        compiled = None if pattern is None else TopicPattern(pattern)
        return TopicListWatch(
            lambda: self._names(namespace, compiled, domain),
            lambda: self._bells.wait([keys.topics_of(namespace), *(() if may_see() else (_ACCESS,))]),
            known_hash=known_hash,
            may_see=may_see,
        )

    # --- access -------------------------------------------------------------------------------------------------

    @property
    def access_revision(self) -> int:
        """Grows whenever a grant or a tenant's administrators may have changed."""
        return self._access_revision

    async def access_change(self, seen: int) -> int:
        """Wait until `access_revision` is no longer `seen`; answers what it is."""
        while self._access_revision == seen:
            await self._bells.wait([_ACCESS])
        return self._access_revision

    # --- what the tables tell -----------------------------------------------------------------------------------

    def _access_changed(self, _key: str, _present: bool) -> None:
        self._access_revision += 1
        self._bells.ring(_ACCESS)

    def _namespace_changed(self, key: str, _present: bool) -> None:
        self._bells.ring(key)

    def _topic_changed(self, key: str, present: bool) -> None:
        if not present:
            self._effective.pop(key, None)
        self._bells.ring(key)
        self._bells.ring(key.rsplit("/", 2)[0] + "/")


def _said(policies: Policies) -> Policies:
    """A level's policies; a compatibility that is said to be undefined says nothing."""
    if policies.schema_compatibility is SchemaCompatibility.UNDEFINED:
        return replace(policies, schema_compatibility=None)
    return policies
