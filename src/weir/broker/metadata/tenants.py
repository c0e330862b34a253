"""Tenants and namespaces: create, read, change, delete; reads are from memory.

`SharedReads` merges concurrent reads of the metadata store: one read answers all callers that wait when it starts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from weir.broker.metadata.exchange_records import forget_exchanges
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.mirror import Mirror, delete_if_empty
from weir.meta.update import Codec
from weir.model.errors import (
    MetaConflictError,
    MetaKeyMissingError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    NotAllowedError,
    NotEmptyError,
    TenantExistsError,
    TenantNotFoundError,
)
from weir.model.policies import Policies
from weir.model.registry import STANDALONE, SYSTEM_TENANTS, Namespace, Tenant, check_role
from weir.model.topics import NamespaceName, check_entity_name
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.registry import decode_namespace, decode_tenant, encode_namespace, encode_tenant

T = TypeVar("T")


class SharedReads(Generic[T]):
    """Shares reads between concurrent callers; each caller gets a value that was read after its call."""

    def __init__(self, read: Callable[[str], Awaitable[T]], name: str) -> None:
        self._read = read
        self._tasks = TaskScope(name)
        self._next: dict[str, asyncio.Future[T]] = {}
        self._under_way: dict[str, asyncio.Future[T]] = {}

    async def read(self, key: str) -> T:
        waiting = self._next.get(key)
        if waiting is None:
            waiting = self._next[key] = asyncio.get_running_loop().create_future()
            if key not in self._under_way:
                self._begin(key)
        return await asyncio.shield(waiting)

    def _begin(self, key: str) -> None:
        self._under_way[key] = self._next.pop(key)
        self._tasks.spawn(self._run(key), key)

    async def _run(self, key: str) -> None:
        answer = self._under_way[key]
        try:
            found = await self._read(key)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except Exception as failure:
            if not answer.done():
                answer.set_exception(failure)
                answer.exception()  # the callers may have been cancelled
        else:
            if not answer.done():
                answer.set_result(found)
        finally:
            del self._under_way[key]
            if key in self._next:
                self._begin(key)

    async def close(self) -> None:
        await self._tasks.close()


TENANT: Codec[Tenant] = Codec(encode_tenant, decode_tenant)
NAMESPACE: Codec[Namespace] = Codec(encode_namespace, decode_namespace)


class TenantTable:
    """Every tenant."""

    def __init__(self, meta: MetaStore, runtime: Runtime, on_change: Callable[[str, bool], None]) -> None:
        self._meta = meta
        self._mirror = Mirror(meta, runtime, keys.TENANTS, TENANT, on_change)

    async def start(self) -> None:
        await self._mirror.start()

    async def close(self) -> None:
        await self._mirror.close()

    def names(self) -> list[str]:
        return [tenant.name for tenant in self._mirror.items().values()]

    def find(self, name: str) -> Tenant | None:
        return self._mirror.get(keys.tenant(name))

    def get(self, name: str) -> Tenant:
        """The tenant; TenantNotFoundError."""
        found = self.find(name)
        if found is None:
            raise _no_tenant(name)
        return found

    async def create(
        self, name: str, *, admin_roles: tuple[str, ...] = (), allowed_clusters: tuple[str, ...] = (STANDALONE,)
    ) -> Tenant:
        """TenantExistsError; NotAllowedError for names that are reserved for brokers."""
        check_entity_name(name, "tenant")
        if name in SYSTEM_TENANTS:
            raise NotAllowedError(f"tenant {name} is reserved", hint="choose another name")
        tenant = Tenant(name, _roles(admin_roles), allowed_clusters)
        try:
            made = await self._mirror.create(keys.tenant(name), tenant)
        except MetaConflictError:
            raise TenantExistsError(f"tenant {name} exists already") from None
        return made.value

    async def change(
        self,
        name: str,
        *,
        admin_roles: tuple[str, ...] | None = None,
        allowed_clusters: tuple[str, ...] | None = None,
    ) -> Tenant:
        """Set the given fields; None leaves a field unchanged."""

        def changed(tenant: Tenant) -> Tenant:
            return replace(
                tenant,
                admin_roles=tenant.admin_roles if admin_roles is None else _roles(admin_roles),
                allowed_clusters=tenant.allowed_clusters if allowed_clusters is None else allowed_clusters,
            )

        try:
            now = await self._mirror.change(keys.tenant(name), changed)
        except MetaKeyMissingError:
            raise _no_tenant(name) from None
        return now.value

    async def delete(self, name: str) -> None:
        """NotEmptyError if it has namespaces."""
        try:
            await delete_if_empty(
                self._meta,
                self._mirror,
                keys.tenant(name),
                children=keys.namespaces_of(name),
                mark=lambda tenant, on: tenant if tenant.deleting == on else replace(tenant, deleting=on),
            )
        except MetaKeyMissingError:
            raise _no_tenant(name) from None
        except NotEmptyError:
            raise NotEmptyError(f"tenant {name} has namespaces") from None

    async def check_stands(self, name: str) -> None:
        """TenantNotFoundError if the store has no such tenant, or marks it as deleted."""
        found = await self._mirror.refresh(keys.tenant(name))
        if found is None or found.value.deleting:
            raise _no_tenant(name)


class NamespaceTable:
    """Every namespace."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        tenants: TenantTable,
        on_change: Callable[[str, bool], None],
    ) -> None:
        self._meta = meta
        self._tenants = tenants
        self._mirror = Mirror(meta, runtime, keys.NAMESPACES, NAMESPACE, on_change)
        #: Shared, because concurrent creations of topics check the same namespace.
        self._confirmed = SharedReads(self._mirror.refresh, "namespaces")

    async def start(self) -> None:
        await self._mirror.start()

    async def close(self) -> None:
        await self._confirmed.close()
        await self._mirror.close()

    def names(self, tenant: str) -> list[NamespaceName]:
        """The namespaces of a tenant; TenantNotFoundError."""
        self._tenants.get(tenant)
        return [item.name for item in self._mirror.items().values() if item.name.tenant == tenant]

    def find(self, name: NamespaceName) -> Namespace | None:
        return self._mirror.get(keys.namespace(name))

    def get(self, name: NamespaceName) -> Namespace:
        """The namespace; NamespaceNotFoundError."""
        found = self.find(name)
        if found is None:
            raise _no_namespace(name)
        return found

    async def create(
        self, name: NamespaceName, *, policies: Policies | None = None, properties: Mapping[str, str] | None = None
    ) -> Namespace:
        """TenantNotFoundError, NamespaceExistsError."""
        check_entity_name(name.name, "namespace")
        await self._tenants.check_stands(name.tenant)
        namespace = Namespace(name, policies or Policies(), dict(properties or {}))
        try:
            made = await self._mirror.create(keys.namespace(name), namespace)
        except MetaConflictError:
            raise NamespaceExistsError(f"namespace {name} exists already") from None
        try:
            await self._tenants.check_stands(name.tenant)
        except TenantNotFoundError:
            await self._mirror.delete(made.key, expect=made.version)
            raise
        return made.value

    async def change(self, name: NamespaceName, change: Callable[[Namespace], Namespace]) -> Namespace:
        """Change the namespace with a pure function."""
        try:
            now = await self._mirror.change(keys.namespace(name), change)
        except MetaKeyMissingError:
            raise _no_namespace(name) from None
        return now.value

    async def delete(self, name: NamespaceName) -> None:
        """Delete the namespace with its exchanges. NotEmptyError if it has topics."""
        try:
            await delete_if_empty(
                self._meta,
                self._mirror,
                keys.namespace(name),
                children=keys.topics_of(name),
                mark=lambda value, on: value if value.deleting == on else replace(value, deleting=on),
            )
        except MetaKeyMissingError:
            raise _no_namespace(name) from None
        except NotEmptyError:
            raise NotEmptyError(f"namespace {name} has topics") from None
        await forget_exchanges(self._meta, name)

    async def check_stands(self, name: NamespaceName) -> None:
        """NamespaceNotFoundError if the store has no such namespace, or marks it as deleted."""
        found = await self._confirmed.read(keys.namespace(name))
        if found is None or found.value.deleting:
            raise _no_namespace(name)


def _roles(roles: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check_role(role) for role in roles))


def _no_tenant(name: str) -> TenantNotFoundError:
    return TenantNotFoundError(f"there is no tenant {name[:80]}")


def _no_namespace(name: NamespaceName) -> NamespaceNotFoundError:
    return NamespaceNotFoundError(f"there is no namespace {name}")
