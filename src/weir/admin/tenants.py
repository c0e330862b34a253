"""Clusters and tenants.

Grants: what roles may do with a topic, a namespace, or (Weir's own) a whole tenant.
"""

from dataclasses import replace

from weir.admin.context import AdminContext
from weir.admin.names import (
    ABOUT_NAMESPACE,
    ABOUT_TENANT,
    ABOUT_TOPIC,
    BAD_NAME,
    CONFLICT,
    NAMESPACE,
    V2,
    ActionName,
    ClusterData,
    Permissions,
    TenantInfo,
    delete_namespace,
    namespace_of,
    tenant_of,
    topic_of,
    topic_path,
)
from weir.admin.policies import permissions_body
from weir.broker.api.security import Scope
from weir.model.errors import NotAllowedError
from weir.model.registry import STANDALONE, Action, Cluster, check_role
from weir.model.topics import Domain, NamespaceName, TopicName, check_entity_name
from weir.rest.routes import Call, Query, RefusedError, Route

_CLUSTERS = f"{V2}/clusters"
_TENANTS = f"{V2}/tenants"
_FORCE = Query("force", bool, "also what is in it", False)


class Clusters:
    """There is one cluster; what can be changed is where it is reached."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        one, about = f"{_CLUSTERS}/{{cluster}}", {404: "no such cluster", **BAD_NAME}
        return [
            Route("GET", _CLUSTERS, "List clusters.", self._list, answer=list[str], tag="clusters", open=True),
            Route("GET", one, "Get a cluster.", self._get, answer=ClusterData, refusals=about, tag="clusters"),
            Route("PUT", one, "Create a cluster.", self._create, body=ClusterData, refusals=about, tag="clusters"),
            Route(
                "POST", one, "Change a cluster.", self._change, body=ClusterData, refusals=about, tag="clusters"
            ),
            Route("DELETE", one, "Delete a cluster.", self._delete, refusals=about, tag="clusters"),
        ]

    async def _list(self, call: Call) -> list[str]:
        return [cluster.name for cluster in self._context.registry.clusters()]

    async def _get(self, call: Call) -> ClusterData:
        return _cluster_data(self._find(call))

    async def _create(self, call: Call) -> None:
        self._context.authoriser.check_superuser(call.role)
        raise NotAllowedError(
            f"cluster {call.path['cluster'][:80]} cannot be created",
            hint=f"this Weir has one cluster, {STANDALONE}; POST changes it",
        )

    async def _change(self, call: Call) -> None:
        cluster, body = self._find(call), call.body
        await self._context.registry.change_cluster(
            cluster.name,
            lambda now: replace(
                now,
                service_url=body.serviceUrl or now.service_url,
                broker_service_url=body.brokerServiceUrl or now.broker_service_url,
            ),
        )

    async def _delete(self, call: Call) -> None:
        cluster = self._find(call)
        raise NotAllowedError(f"cluster {cluster.name} is the one that serves you")

    def _find(self, call: Call) -> Cluster:
        self._context.authoriser.check_superuser(call.role)
        return self._context.registry.cluster(check_entity_name(call.path["cluster"], "cluster"))


def _cluster_data(cluster: Cluster) -> ClusterData:
    return ClusterData(serviceUrl=cluster.service_url, brokerServiceUrl=cluster.broker_service_url)


class Tenants:
    """For superusers only."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        one = f"{_TENANTS}/{{tenant}}"
        return [
            Route("GET", _TENANTS, "List tenants.", self._list, answer=list[str], tag="tenants"),
            Route("GET", one, "Get a tenant.", self._get, answer=TenantInfo, refusals=ABOUT_TENANT, tag="tenants"),
            Route(
                "PUT",
                one,
                "Create a tenant.",
                self._create,
                body=TenantInfo,
                body_optional=True,
                refusals={**BAD_NAME, **CONFLICT},
                tag="tenants",
            ),
            Route(
                "POST",
                one,
                "Change a tenant.",
                self._change,
                body=TenantInfo,
                refusals={**ABOUT_TENANT, **CONFLICT},
                tag="tenants",
            ),
            Route(
                "DELETE",
                one,
                "Delete a tenant.",
                self._delete,
                query=(_FORCE,),
                refusals={**ABOUT_TENANT, **CONFLICT},
                tag="tenants",
            ),
        ]

    async def _list(self, call: Call) -> list[str]:
        self._context.authoriser.check_superuser(call.role)
        return self._context.registry.tenants.names()

    async def _get(self, call: Call) -> TenantInfo:
        tenant = self._context.registry.tenants.get(self._name(call))
        return TenantInfo(list(tenant.admin_roles), list(tenant.allowed_clusters))

    async def _create(self, call: Call) -> None:
        name, body = self._name(call), call.body or TenantInfo(allowedClusters=[STANDALONE])
        await self._context.registry.tenants.create(
            name, admin_roles=tuple(body.adminRoles), allowed_clusters=self._clusters(body)
        )

    async def _change(self, call: Call) -> None:
        name, body = self._name(call), call.body
        self._context.registry.tenants.get(name)
        await self._context.registry.tenants.change(
            name, admin_roles=tuple(body.adminRoles), allowed_clusters=self._clusters(body)
        )

    async def _delete(self, call: Call) -> None:
        name, registry = self._name(call), self._context.registry
        if call.query["force"]:
            for namespace in registry.namespaces.names(name):
                await delete_namespace(self._context, namespace, force=True)
        await registry.delete_tenant(name)

    def _name(self, call: Call) -> str:
        self._context.authoriser.check_superuser(call.role)
        return tenant_of(call.path)

    def _clusters(self, body: TenantInfo) -> tuple[str, ...]:
        """Those that it may use; there must be one at least, and all must exist."""
        known = [cluster.name for cluster in self._context.registry.clusters()]
        unknown = [name for name in body.allowedClusters if name not in known]
        if unknown or not body.allowedClusters:
            what = f"there is no cluster {unknown[0][:80]}" if unknown else "a tenant needs a cluster"
            raise RefusedError(412, what, hint=f"allowedClusters can have {', '.join(known)}")
        return tuple(dict.fromkeys(body.allowedClusters))


class PermissionRoutes:
    """Grants on things of one kind."""

    def __init__(self, context: AdminContext, base: str, about: dict[int, str], domain: Domain) -> None:
        self._context = context
        self._base = f"{base}/permissions"
        self._about = about
        self._domain = domain

    def routes(self) -> list[Route]:
        one, about = f"{self._base}/{{role}}", {**self._about, **CONFLICT}
        return [
            Route("GET", self._base, "Who may do what.", self._get, answer=Permissions, refusals=about),
            Route("POST", one, "Grant.", self._grant, body=list[ActionName], refusals=about),
            Route("DELETE", one, "Revoke.", self._revoke, refusals=about),
        ]

    async def _get(self, call: Call) -> Permissions:
        scope = self._scope(call)
        found = permissions_body(self._context.registry.grants.on(scope))
        if isinstance(scope, TopicName):  # what holds: the namespace's grants are a topic's, too
            for role, actions in permissions_body(self._context.registry.grants.on(scope.namespace)).items():
                found[role] = list(dict.fromkeys([*found.get(role, ()), *actions]))
        return found

    async def _grant(self, call: Call) -> None:
        scope = self._scope(call)
        await self._context.registry.grants.grant(scope, call.path["role"], [Action(name) for name in call.body])

    async def _revoke(self, call: Call) -> None:
        scope, role = self._scope(call), check_role(call.path["role"])
        if isinstance(scope, TopicName) and role not in self._context.registry.grants.on(scope).roles:
            raise RefusedError(412, f"{role[:80]!r} has no grant on the topic itself")
        await self._context.registry.grants.revoke(scope, role)

    def _scope(self, call: Call) -> Scope:
        """What the path names; it must be there, but for topics: a client may create them later."""
        scope: Scope
        if "topic" in call.path:
            scope = topic_of(call.path, self._domain)
        else:
            scope = namespace_of(call.path) if "namespace" in call.path else tenant_of(call.path)
        self._context.authoriser.check_admin(call.role, scope)
        registry = self._context.registry
        if isinstance(scope, str):
            registry.tenants.get(scope)
        else:
            registry.namespaces.get(scope if isinstance(scope, NamespaceName) else scope.namespace)
        return scope


def permission_routes(context: AdminContext) -> list[Route]:
    tables = [PermissionRoutes(context, topic_path(domain), ABOUT_TOPIC, domain) for domain in Domain]
    tables.append(PermissionRoutes(context, NAMESPACE, ABOUT_NAMESPACE, Domain.PERSISTENT))
    tables.append(PermissionRoutes(context, "/admin/weir/v1/tenants/{tenant}", ABOUT_TENANT, Domain.PERSISTENT))
    return [route for table in tables for route in table.routes()]
