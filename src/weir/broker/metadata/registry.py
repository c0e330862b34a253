"""The registry of clusters, tenants, namespaces and topics, with their policies and grants.

    registry = Registry(meta, runtime)
    await registry.start()
    registry.tenants.get("public")                                   # from memory, never waits
    await registry.topics.create(TopicName.parse("orders"), partitions=4)
    registry.policies(topic).retention                               # topic over namespace over default
    policies = await registry.policies_change(topic, policies)       # waits until they differ

A watch keeps all records but those of topics in memory; of topics, only the records in use (docs/adr/0027).
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from weir.broker.metadata.grants import GrantTable, RoleTenants, UserTable
from weir.broker.metadata.lake_catalogs import LakeCatalogTable
from weir.broker.metadata.tenants import NamespaceTable, TenantTable
from weir.broker.metadata.topic_lists import TopicFilter, TopicListWatch, TopicPattern, listed, parts_of
from weir.broker.metadata.topic_records import TopicLimits, TopicTable
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.mirror import ChangeWaiters, Mirror
from weir.meta.update import Codec
from weir.model.errors import ClusterNotFoundError, NamespaceExistsError, TenantExistsError, TopicNotFoundError
from weir.model.lake import LakeCatalog
from weir.model.policies import (
    DEFAULT_POLICIES,
    AutoTopicCreation,
    Isolation,
    IsolationPolicy,
    Policies,
    SchemaCompatibility,
)
from weir.model.registry import STANDALONE, SYSTEM_NAMESPACE, Cluster, TopicRecord, matches, system_record
from weir.model.topics import DEFAULT_NAMESPACE, Domain, NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.wire.registry import decode_cluster, encode_cluster

#: Isolation without rules: every broker may serve the namespace.
UNSAID = Isolation()


def isolation_of(
    namespace: NamespaceName, said: Isolation | None, policies: Mapping[str, IsolationPolicy]
) -> Isolation:
    """The brokers that may serve a namespace: its own isolation takes precedence, then the first policy, by name,
    that matches it. All other namespaces avoid the brokers that policies reserve, unless no other broker is
    available: availability takes precedence over isolation."""
    if not policies or (said is not None and said != UNSAID):
        return said or UNSAID
    name = str(namespace)
    for _, policy in sorted(policies.items()):
        if matches(policy.namespaces, name):
            return Isolation(policy.primary, policy.secondary, policy.min_limit)
    kept = dict.fromkeys(pattern for _, policy in sorted(policies.items()) for pattern in policy.primary)
    return Isolation(excluded=tuple(kept))


CLUSTER: Codec[Cluster] = Codec(encode_cluster, decode_cluster)

_ACCESS = "access"


class Registry:
    """The broker's view of the metadata, except for streams and subscriptions."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        defaults: Policies = DEFAULT_POLICIES,
        *,
        limits: TopicLimits | None = None,
        may_index: Callable[[], bool] = lambda: True,
        default_lake: LakeCatalog | None = None,
    ) -> None:
        """`defaults` apply where neither topic nor namespace sets a policy, and override the built-in defaults.
        `may_index`: whether all brokers index topics (`model.features`). `default_lake`: the lake catalog that
        exists without a definition by a superuser."""
        self._defaults = defaults.over(DEFAULT_POLICIES)
        self._bells = ChangeWaiters()
        self._access_revision = 0
        self._namespace_revision = 0
        #: Watches of a namespace's topics, by the prefix of their keys.
        self._lists: dict[str, dict[TopicListWatch, None]] = {}
        self._clusters = Mirror(meta, runtime, keys.CLUSTERS, CLUSTER)
        self.tenants = TenantTable(meta, runtime, self._access_changed)
        self.namespaces = NamespaceTable(meta, runtime, self.tenants, self._namespace_changed)
        self.topics = TopicTable(
            meta,
            runtime,
            self.namespaces,
            limits or TopicLimits(),
            on_change=self._topic_changed,
            on_gap=self._topics_missed,
            may_index=may_index,
        )
        self.grants = GrantTable(meta, runtime, self._access_changed)
        self.role_tenants = RoleTenants(meta, runtime)
        self.users = UserTable(meta, runtime, self._access_changed)
        self.lake_catalogs = LakeCatalogTable(meta, runtime, default_lake)

    async def start(self) -> None:
        """Load all tables; on the first start of the cluster create `public/default`."""
        for table in self._tables():
            await table.start()
        if not len(self._clusters):
            await self._first_start()

    async def close(self) -> None:
        for table in self._tables():
            await table.close()

    def _tables(
        self,
    ) -> tuple[
        Mirror[Cluster]
        | TenantTable
        | NamespaceTable
        | TopicTable
        | GrantTable
        | RoleTenants
        | UserTable
        | LakeCatalogTable,
        ...,
    ]:
        return (
            self._clusters,
            self.tenants,
            self.namespaces,
            self.topics,
            self.grants,
            self.role_tenants,
            self.users,
            self.lake_catalogs,
        )

    async def _first_start(self) -> None:
        """Create the initial records; several brokers may do this at once. The cluster record is last, and marks
        the others as created: after an operator deletes `public`, the next start does not create it again."""
        with suppress(TenantExistsError):
            await self.tenants.create(DEFAULT_NAMESPACE.tenant)
        with suppress(NamespaceExistsError):
            await self.namespaces.create(DEFAULT_NAMESPACE)
        await self.change_cluster(STANDALONE, lambda cluster: cluster)

    # --- clusters -----------------------------------------------------------------------------------------------

    def clusters(self) -> list[Cluster]:
        return list(self._clusters.items().values())

    def cluster(self, name: str) -> Cluster:
        """The cluster; ClusterNotFoundError."""
        found = self._clusters.get(keys.cluster(name))
        if found is None:
            raise ClusterNotFoundError(f"cluster {name[:80]} does not exist")
        return found

    async def change_cluster(self, name: str, change: Callable[[Cluster], Cluster]) -> Cluster:
        """Change the cluster with a pure function; creates it first if necessary."""
        if name != STANDALONE:
            raise ClusterNotFoundError(
                f"cluster {name[:80]} does not exist", hint=f"this Weir has one cluster, {STANDALONE}"
            )
        changed = await self._clusters.upsert(keys.cluster(name), lambda cluster: change(cluster or Cluster(name)))
        return changed.value

    def isolation(self, namespace: NamespaceName) -> Isolation:
        """Which brokers serve a namespace."""
        cluster = self._clusters.get(keys.cluster(STANDALONE))
        said = self.policies(namespace).isolation
        return isolation_of(namespace, said, {} if cluster is None else cluster.isolation)

    # --- policies -----------------------------------------------------------------------------------------------

    @property
    def policies_revision(self) -> tuple[int, int]:
        """Changes whenever `policies` may change for a topic in memory."""
        return (self._namespace_revision, self.topics.revision)

    def policies(self, where: TopicName | NamespaceName) -> Policies:
        """Effective policies of a topic or namespace: every field has a value. For a topic without a record in
        memory, those of its namespace: see `look_policies`."""
        if isinstance(where, NamespaceName):
            namespace = self.namespaces.find(where)
            return self._defaults if namespace is None else _said(namespace.policies).over(self._defaults)
        namespace, entry = self.namespaces.find(where.namespace), self.topics.entry(where)
        if entry is None:
            return self.policies(where.namespace)
        if entry.derived is None or entry.derived[0] is not namespace:
            entry.derived = (namespace, _said(entry.value.policies).over(self.policies(where.namespace)))
        policies: Policies = entry.derived[1]
        return policies

    async def look_policies(self, topic: TopicName) -> Policies:
        """Effective policies of a topic; reads its record from the store if necessary."""
        record = await self.topics.look(topic)
        if record is None or self.topics.find(topic) is not None:
            return self.policies(topic)
        return _said(record.policies).over(self.policies(topic.namespace))

    async def policies_change(self, topic: TopicName, seen: Policies) -> Policies:
        """Wait until the topic's policies differ from `seen`; returns them."""
        self.topics.hold(topic)
        try:
            await self.topics.look(topic)
            while (now := self.policies(topic)) == seen:
                await self._bells.wait([keys.topic(topic), keys.namespace(topic.namespace)])
            return now
        finally:
            self.topics.let_go(topic)

    async def change_policies(
        self, where: TopicName | NamespaceName, change: Callable[[Policies], Policies]
    ) -> Policies:
        """Change the own policies of a topic or namespace with a pure function; returns the new ones."""
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
        """Change the properties of a topic or namespace with a pure function; returns the new ones."""
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
        """The record of the topic, or of the partition's topic; created if `create` is set and policies allow it.

        TenantNotFoundError, NamespaceNotFoundError, TopicNotFoundError. No wait if the record is in memory."""
        if create and name.namespace == SYSTEM_NAMESPACE:
            return system_record(name)
        found = self.topics.find(name)
        if found is not None:
            return found
        policy = self.policies(name.namespace).auto_topic_creation if create else None
        try:
            return await self.topics.ensure(name, policy or AutoTopicCreation(allowed=False))
        except TopicNotFoundError:
            self.tenants.get(name.namespace.tenant)
            self.namespaces.get(name.namespace)
            raise

    async def doom_topic(self, name: TopicName) -> TopicRecord:
        """Mark the topic for deletion, which is irrevocable; returns its record."""
        return await self.topics.doom(name)

    async def confirm_topic(self, name: TopicName) -> TopicRecord | None:
        """The record of the topic, read from the metadata store."""
        if name.namespace == SYSTEM_NAMESPACE:
            return system_record(name)
        return await self.topics.confirm(name)

    async def doomed_topics(self) -> list[TopicName]:
        """Topics marked for deletion."""
        return await self.topics.index.doomed()

    def hold_topic(self, name: TopicName) -> None:
        """Keep the record and policies of a loaded topic in memory, until as many calls of `let_go_of_topic`."""
        self.topics.hold(name)

    def let_go_of_topic(self, name: TopicName) -> None:
        self.topics.let_go(name)

    async def forget_topic(self, doomed: TopicRecord) -> None:
        """Delete the grants on a topic marked for deletion, and its record last, so that an interrupted deletion
        can be repeated."""
        await self.grants.forget(doomed.name)
        await self.topics.delete(doomed)

    async def delete_topic(self, name: TopicName) -> TopicRecord:
        """Delete a topic without stored data from the metadata; returns its last record."""
        doomed = await self.doom_topic(name)
        await self.forget_topic(doomed)
        return doomed

    async def delete_namespace(self, name: NamespaceName) -> None:
        """Delete the namespace and its grants. NotEmptyError if it has topics."""
        await self.namespaces.delete(name)
        await self.grants.forget(name)

    async def delete_tenant(self, name: str) -> None:
        """Delete the tenant and its grants. NotEmptyError if it has namespaces."""
        await self.tenants.delete(name)
        await self.grants.forget(name)

    async def topic_names(
        self,
        namespace: NamespaceName,
        *,
        pattern: str | None = None,
        domain: Domain | None = None,
        after: TopicName | None = None,
    ) -> AsyncIterator[list[TopicName]]:
        """All topics of the namespace in pages, with each partition as a topic; with `after`, only later topics in
        the order of names. NamespaceNotFoundError; NotAllowedError for an invalid pattern."""
        self.namespaces.get(namespace)
        only = TopicFilter(None if pattern is None else TopicPattern(pattern), domain)
        async for page in self.topics.pages(namespace, domain, after=after):
            yield [part for one in listed(page, only) for part in parts_of(one.base, one.partitions)]

    async def watch_topics(
        self,
        namespace: NamespaceName,
        *,
        pattern: str | None = None,
        domain: Domain | None = None,
        known_hash: str = "",
        may_see: Callable[[], bool] = lambda: True,
    ) -> TopicListWatch:
        """A watch on the list of `topic_names` and its changes, until it is closed. The list of a namespace that
        does not exist is empty. While `may_see` returns False, the watcher gets no changes."""
        watch = TopicListWatch(
            TopicFilter(None if pattern is None else TopicPattern(pattern), domain),
            lambda: self.topics.pages(namespace, domain),
            may_see=may_see,
            access_changed=lambda: self._bells.wait([_ACCESS]),
            on_close=partial(self._unwatch, keys.topics_of(namespace)),
        )
        self._lists.setdefault(keys.topics_of(namespace), {})[watch] = None
        try:
            await watch.open(known_hash)
        except BaseException:
            watch.close()
            raise
        return watch

    def _unwatch(self, prefix: str, watch: TopicListWatch) -> None:
        watches = self._lists.get(prefix)
        if watches is not None:
            watches.pop(watch, None)
            if not watches:
                del self._lists[prefix]

    # --- access -------------------------------------------------------------------------------------------------

    @property
    def access_revision(self) -> int:
        """Increases whenever a grant, a user or a tenant's administrators may have changed."""
        return self._access_revision

    async def access_change(self, seen: int) -> int:
        """Wait until `access_revision` differs from `seen`; returns it."""
        while self._access_revision == seen:
            await self._bells.wait([_ACCESS])
        return self._access_revision

    # --- change callbacks ---------------------------------------------------------------------------------------

    def _access_changed(self, _key: str, _present: bool) -> None:
        self._access_revision += 1
        self._bells.ring(_ACCESS)

    def _namespace_changed(self, key: str, _present: bool) -> None:
        self._namespace_revision += 1
        self._bells.ring(key)

    def _topic_changed(self, key: str, value: bytes | None, version: int) -> None:
        self._bells.ring(key)
        for watch in self._lists.get(key.rsplit("/", 2)[0] + "/", ()):
            watch.note(key, value, version)

    def _topics_missed(self) -> None:
        for watches in self._lists.values():
            for watch in watches:
                watch.miss()


def _said(policies: Policies) -> Policies:
    """Policies of one level; a compatibility of UNDEFINED counts as unset."""
    if policies.schema_compatibility is SchemaCompatibility.UNDEFINED:
        return replace(policies, schema_compatibility=None)
    return policies
