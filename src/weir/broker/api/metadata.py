"""Metadata: clusters, tenants, namespaces, topics, policies, grants, users and lake catalogs."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Protocol

from weir.broker.api.security import Scope
from weir.model.lake import LakeCatalog
from weir.model.policies import Policies
from weir.model.registry import (
    STANDALONE,
    Action,
    Cluster,
    Grants,
    KeyPatterns,
    NamePatterns,
    Namespace,
    Tenant,
    TopicRecord,
    User,
)
from weir.model.topics import Domain, NamespaceName, TopicName


class Tenants(Protocol):
    """Tenants; reads are from memory."""

    def names(self) -> list[str]: ...

    def find(self, name: str) -> Tenant | None: ...

    def get(self, name: str) -> Tenant:
        """TenantNotFoundError if it does not exist."""

    async def create(
        self, name: str, *, admin_roles: tuple[str, ...] = (), allowed_clusters: tuple[str, ...] = (STANDALONE,)
    ) -> Tenant:
        """TenantExistsError; NotAllowedError for reserved names."""

    async def change(
        self,
        name: str,
        *,
        admin_roles: tuple[str, ...] | None = None,
        allowed_clusters: tuple[str, ...] | None = None,
    ) -> Tenant:
        """Set the given attributes; the others stay unchanged."""


class Namespaces(Protocol):
    """Namespaces; reads are from memory."""

    def names(self, tenant: str) -> list[NamespaceName]:
        """The namespaces of a tenant; TenantNotFoundError if the tenant does not exist."""

    def find(self, name: NamespaceName) -> Namespace | None: ...

    def get(self, name: NamespaceName) -> Namespace:
        """NamespaceNotFoundError if it does not exist."""

    async def create(
        self, name: NamespaceName, *, policies: Policies | None = None, properties: Mapping[str, str] | None = None
    ) -> Namespace:
        """TenantNotFoundError, NamespaceExistsError."""

    async def change(self, name: NamespaceName, change: Callable[[Namespace], Namespace]) -> Namespace:
        """Change it by a pure function."""


class TopicRecords(Protocol):
    """Topics in the metadata. Records of topics in use are in memory; others come from the metadata store."""

    @property
    def revision(self) -> int:
        """Grows whenever a record in memory changes or leaves memory."""

    def find(self, name: TopicName) -> TopicRecord | None:
        """The record of the topic (for a partition: of its partitioned topic), if it is in memory. A topic that
        this broker has loaded is always in memory, and one of a recent lookup most likely is."""

    async def look(self, name: TopicName) -> TopicRecord | None:
        """Like `find`, but reads the metadata store if the record is not in memory."""

    async def get(self, name: TopicName) -> TopicRecord:
        """TopicNotFoundError if it does not exist."""

    async def by_id(self, topic_id: bytes) -> TopicRecord | None:
        """The topic that has this id (`TopicRecord.topic_id`)."""

    def of(
        self, namespace: NamespaceName, domain: Domain | None = None, *, after: TopicName | None = None
    ) -> AsyncIterator[TopicRecord]:
        """The topics of a namespace, sorted by domain and name. Reads pages and yields to other tasks between."""

    async def count(self) -> int:
        """The number of topics; if counting is slow, a number that may be a minute old."""

    async def create(
        self,
        name: TopicName,
        *,
        partitions: int = 0,
        properties: Mapping[str, str] | None = None,
        policies: Policies | None = None,
    ) -> TopicRecord:
        """NamespaceNotFoundError, TopicExistsError, TooManyError."""

    async def grow(self, name: TopicName, partitions: int) -> TopicRecord:
        """Give a partitioned topic more partitions; it never gets fewer."""

    async def change(self, name: TopicName, change: Callable[[TopicRecord], TopicRecord]) -> TopicRecord:
        """Change it by a pure function."""

    def check_partitions(self, partitions: int) -> None:
        """NotAllowedError, TooManyError if no topic can have this many partitions."""


class GrantRecords(Protocol):
    """Grants of roles."""

    def on(self, scope: Scope) -> Grants:
        """The grants on exactly this scope, without those of the levels above."""

    def on_topics_of(self, namespace: NamespaceName) -> dict[str, Grants]:
        """The grants on single topics of a namespace, by the topic's full name."""

    async def grant(self, scope: Scope, role: str, actions: Iterable[Action]) -> None:
        """Grant the role exactly these actions on the scope; they replace its earlier grants there."""

    async def permit(self, namespace: NamespaceName, role: str, patterns: NamePatterns) -> None:
        """Grant the role permissions by name patterns; they replace its earlier grants on the namespace.
        NotAllowedError for an invalid pattern."""

    async def permit_keys(
        self, namespace: NamespaceName, role: str, exchange: str, patterns: KeyPatterns | None
    ) -> None:
        """Restrict the role to routing keys of a topic exchange that match the patterns, in addition to its
        permissions on the exchange; None: no restriction. NotAllowedError for an invalid pattern."""

    async def revoke(self, scope: Scope, role: str) -> None:
        """Revoke the grants of the role on the scope; a no-op if it has none."""


class Users(Protocol):
    """Users with passwords; reads are from memory. A user's name is its role."""

    def names(self) -> list[str]: ...

    def find(self, name: str) -> User | None: ...

    async def put(self, user: User) -> bool:
        """Create or replace the user; return whether it is new. InvalidNameError; NotAllowedError for an invalid
        password hash."""

    async def delete(self, name: str) -> bool:
        """Delete the user; return whether it existed. The grants of its name stay."""

    def hashed(self, password: str) -> str:
        """A hash of the password with a new salt, in the format of `PasswordHashing.SHA256`."""


class LakeCatalogs(Protocol):
    """Catalogs of the lake; reads are from memory."""

    @property
    def revision(self) -> int:
        """Grows whenever a catalog may have changed."""

    def all(self) -> Mapping[str, LakeCatalog]:
        """All catalogs by name."""

    async def put(self, catalog: LakeCatalog) -> None:
        """Create or replace a catalog. ConfigError names the invalid option; TooManyError."""

    def new_owner(self) -> str:
        """A new unique id for an owner of tables."""

    async def delete(self, name: str) -> bool:
        """Delete a catalog; return whether it existed. A built-in catalog stays and returns to its defaults."""


class Registry(Protocol):
    """All metadata of the cluster."""

    @property
    def tenants(self) -> Tenants: ...

    @property
    def namespaces(self) -> Namespaces: ...

    @property
    def topics(self) -> TopicRecords: ...

    @property
    def grants(self) -> GrantRecords: ...

    @property
    def users(self) -> Users: ...

    @property
    def lake_catalogs(self) -> LakeCatalogs: ...

    def clusters(self) -> list[Cluster]: ...

    def cluster(self, name: str) -> Cluster:
        """ClusterNotFoundError if it does not exist."""

    async def change_cluster(self, name: str, change: Callable[[Cluster], Cluster]) -> Cluster:
        """Change the cluster by a pure function; create it first if it does not exist."""

    def policies(self, where: TopicName | NamespaceName) -> Policies:
        """The effective policies of a topic or a namespace: every field has a value. For a topic that is not in
        memory, those of its namespace: see `look_policies`."""

    async def look_policies(self, topic: TopicName) -> Policies:
        """The effective policies of a topic, whether or not its record is in memory."""

    async def change_policies(
        self, where: TopicName | NamespaceName, change: Callable[[Policies], Policies]
    ) -> Policies:
        """Change the own policies of a topic or a namespace by a pure function; return the new ones."""

    async def change_properties(
        self, where: TopicName | NamespaceName, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """Change the properties of a topic or a namespace by a pure function; return the new ones."""

    async def ensure_topic(self, name: TopicName, *, create: bool = True) -> TopicRecord:
        """The topic (of a partition: the one that has it), made now if `create` and policy allow it.

        TopicNotFoundError, NamespaceNotFoundError. A known topic costs no wait."""

    async def delete_namespace(self, name: NamespaceName) -> None:
        """NotEmptyError if it has topics. The grants on it go too."""

    async def delete_tenant(self, name: str) -> None:
        """NotEmptyError if it has namespaces. The grants on it go too."""

    def topic_names(
        self,
        namespace: NamespaceName,
        *,
        pattern: str | None = None,
        domain: Domain | None = None,
        after: TopicName | None = None,
    ) -> AsyncIterator[list[TopicName]]:
        """Every topic of the namespace, each partition on its own, in some at a time, with turns for others; only
        those that come `after` a topic. NamespaceNotFoundError; NotAllowedError for a pattern that is none."""
