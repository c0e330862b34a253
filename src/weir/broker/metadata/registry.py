"""What exists and what holds for it: clusters, tenants, namespaces, topics, policies and grants.

    registry = Registry(meta, runtime)
    await registry.start()
    registry.tenants.get("public")                                   # from memory, never waits
    await registry.topics.create(TopicName.parse("orders"), partitions=4)
    registry.policies(topic).retention                               # topic over namespace over default
    policies = await registry.policies_change(topic, policies)       # waits until they differ

All but topics is kept in memory, fresh by a watch; of topics the records that are in use (docs/adr/0027).

Which brokers serve a namespace, of what it says itself and what the cluster's isolation policies say.
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
from weir.meta.mirror import Bells, Mirror
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

#: What a namespace says that says nothing: every broker.
UNSAID = Isolation()


def isolation_of(
    namespace: NamespaceName, said: Isolation | None, policies: Mapping[str, IsolationPolicy]
) -> Isolation:
    """What the namespace says itself goes first, then the first policy, by name, that names it. All others are
    kept off the brokers that policies keep for somebody, unless there are no others: service goes before it."""
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
    """The broker's view of all that is in the metadata, except for streams and subscriptions."""

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
        """`defaults` hold where neither topic nor namespace says anything, over the built-in ones. `may_index`:
        whether every broker indexes topics by now (`model.features`). `default_lake`: the catalog of the lake that
        there is although no superuser has defined it."""
        self._defaults = defaults.over(DEFAULT_POLICIES)
        self._bells = Bells()
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

    @property
    def policies_revision(self) -> tuple[int, int]:
        """Another one whenever `policies` may answer otherwise for a topic that is held."""
        return (self._namespace_revision, self.topics.revision)

    def policies(self, where: TopicName | NamespaceName) -> Policies:
        """What holds for a topic or for a namespace: every field has a value. For a topic whose record is not in
        memory, what its namespace says: see `look_policies`."""
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
        """What holds for a topic, whether or not its record is in memory."""
        record = await self.topics.look(topic)
        if record is None or self.topics.find(topic) is not None:
            return self.policies(topic)
        return _said(record.policies).over(self.policies(topic.namespace))

    async def policies_change(self, topic: TopicName, seen: Policies) -> Policies:
        """Wait until the topic's policies are no longer `seen`; answers what they are."""
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

        TenantNotFoundError, NamespaceNotFoundError, TopicNotFoundError. A known topic costs no wait."""
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
        """Mark the topic as being deleted, for good; answers what it is."""
        return await self.topics.doom(name)

    async def confirm_topic(self, name: TopicName) -> TopicRecord | None:
        """The topic by the metadata store's own word."""
        if name.namespace == SYSTEM_NAMESPACE:
            return system_record(name)
        return await self.topics.confirm(name)

    async def doomed_topics(self) -> list[TopicName]:
        """Those that are marked as being deleted."""
        return await self.topics.index.doomed()

    def hold_topic(self, name: TopicName) -> None:
        """Keep what holds for the topic in memory: it is loaded. Until it is let go of as often."""
        self.topics.hold(name)

    def let_go_of_topic(self, name: TopicName) -> None:
        self.topics.let_go(name)

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

    async def topic_names(
        self,
        namespace: NamespaceName,
        *,
        pattern: str | None = None,
        domain: Domain | None = None,
        after: TopicName | None = None,
    ) -> AsyncIterator[list[TopicName]]:
        """Every topic of the namespace, each partition on its own, in some at a time; only those that come `after`
        a topic. NamespaceNotFoundError; NotAllowedError for a pattern that is none."""
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
        """The list that `topic_names` gives, and then what changes in it, until it is closed; a namespace that is
        not there, or not any more, is an empty one. While `may_see` says no, nothing changes for the watcher."""
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
        """Grows whenever a grant, a user or a tenant's administrators may have changed."""
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
    """A level's policies; a compatibility that is said to be undefined says nothing."""
    if policies.schema_compatibility is SchemaCompatibility.UNDEFINED:
        return replace(policies, schema_compatibility=None)
    return policies
