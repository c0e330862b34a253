"""What exists and what holds for it: clusters, tenants, namespaces, topics, policies, grants."""

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
        """TenantNotFoundError if there is none."""

    async def create(
        self, name: str, *, admin_roles: tuple[str, ...] = (), allowed_clusters: tuple[str, ...] = (STANDALONE,)
    ) -> Tenant:
        """TenantExistsError; NotAllowedError for the names that brokers keep for themselves."""

    async def change(
        self,
        name: str,
        *,
        admin_roles: tuple[str, ...] | None = None,
        allowed_clusters: tuple[str, ...] | None = None,
    ) -> Tenant:
        """Set what is given; the rest stays."""


class Namespaces(Protocol):
    """Namespaces; reads are from memory."""

    def names(self, tenant: str) -> list[NamespaceName]:
        """The namespaces of a tenant; TenantNotFoundError if there is none."""

    def find(self, name: NamespaceName) -> Namespace | None: ...

    def get(self, name: NamespaceName) -> Namespace:
        """NamespaceNotFoundError if there is none."""

    async def create(
        self, name: NamespaceName, *, policies: Policies | None = None, properties: Mapping[str, str] | None = None
    ) -> Namespace:
        """TenantNotFoundError, NamespaceExistsError."""

    async def change(self, name: NamespaceName, change: Callable[[Namespace], Namespace]) -> Namespace:
        """Change it by a pure function."""


class TopicRecords(Protocol):
    """Topics as the metadata knows them. Those that are in use are in memory, of the others the store is asked."""

    @property
    def revision(self) -> int:
        """Grows whenever a topic in memory has changed, and when any has gone."""

    def find(self, name: TopicName) -> TopicRecord | None:
        """The topic, or of a partition the topic that has it, if it is in memory: surely if it is loaded here, and
        most likely if it was just looked for."""

    async def look(self, name: TopicName) -> TopicRecord | None:
        """Like `find`, but what is not in memory is asked of the store."""

    async def get(self, name: TopicName) -> TopicRecord:
        """TopicNotFoundError if there is none."""

    async def by_id(self, topic_id: bytes) -> TopicRecord | None:
        """The topic that has this id (`TopicRecord.topic_id`)."""

    def of(
        self, namespace: NamespaceName, domain: Domain | None = None, *, after: TopicName | None = None
    ) -> AsyncIterator[TopicRecord]:
        """The topics of a namespace, sorted by domain and name: read in pages, with turns for others."""

    async def count(self) -> int:
        """How many there are; where counting takes long, as of a minute ago."""

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
        """NotAllowedError, TooManyError if no topic can have so many."""


class GrantRecords(Protocol):
    """What roles were granted."""

    def on(self, scope: Scope) -> Grants:
        """What was granted on exactly this; nothing from the levels above."""

    def on_topics_of(self, namespace: NamespaceName) -> dict[str, Grants]:
        """The grants on single topics of a namespace, by the topic's full name."""

    async def grant(self, scope: Scope, role: str, actions: Iterable[Action]) -> None:
        """Let the role do exactly these on it, instead of what it was granted there before."""

    async def permit(self, namespace: NamespaceName, role: str, patterns: NamePatterns) -> None:
        """Let the role do what patterns of names say, instead of what it was granted on the namespace before.
        NotAllowedError for what is no pattern."""

    async def permit_keys(
        self, namespace: NamespaceName, role: str, exchange: str, patterns: KeyPatterns | None
    ) -> None:
        """Let the role use routing keys of a topic exchange only as patterns say, beside what it may do with the
        exchange; None: as it likes. NotAllowedError for what is no pattern."""

    async def revoke(self, scope: Scope, role: str) -> None:
        """Take back what the role was granted on it; fine if that was nothing."""


class Users(Protocol):
    """Users with passwords; reads are from memory. A user's name is its role."""

    def names(self) -> list[str]: ...

    def find(self, name: str) -> User | None: ...

    async def put(self, user: User) -> bool:
        """Make it, or set what it is; answers whether it is new. InvalidNameError; NotAllowedError for a hash that
        is none."""

    async def delete(self, name: str) -> bool:
        """Answers whether there was one. What its name was granted is not touched."""

    def hashed(self, password: str) -> str:
        """A hash of the password, with new salt, as `PasswordHashing.SHA256` has it."""


class LakeCatalogs(Protocol):
    """Catalogs of the lake; reads are from memory."""

    @property
    def revision(self) -> int:
        """Grows whenever one may have changed."""

    def all(self) -> Mapping[str, LakeCatalog]:
        """By their names."""

    async def put(self, catalog: LakeCatalog) -> None:
        """Define it, or define it anew. ConfigError names what it must not have; TooManyError."""

    def new_owner(self) -> str:
        """An id for the owner of tables, unlike any other's."""

    async def delete(self, name: str) -> bool:
        """Answers whether there was one. A built-in catalog stays, and is as built in again."""


class Registry(Protocol):
    """All of it."""

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
        """ClusterNotFoundError if there is none."""

    async def change_cluster(self, name: str, change: Callable[[Cluster], Cluster]) -> Cluster:
        """Change the cluster, made if it is not there, by a pure function."""

    def policies(self, where: TopicName | NamespaceName) -> Policies:
        """What holds for a topic or for a namespace: every field has a value. For a topic that is not in memory,
        what its namespace says: see `look_policies`."""

    async def look_policies(self, topic: TopicName) -> Policies:
        """What holds for a topic, whether or not its record is in memory."""

    async def change_policies(
        self, where: TopicName | NamespaceName, change: Callable[[Policies], Policies]
    ) -> Policies:
        """Change what a topic or a namespace says itself, by a pure function; answers what it says now."""

    async def change_properties(
        self, where: TopicName | NamespaceName, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """Change a topic's or a namespace's properties, by a pure function; answers what they are now."""

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
