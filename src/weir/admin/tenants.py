"""Clusters and tenants."""

from dataclasses import replace

from weir.admin.bodies import ClusterData, TenantInfo
from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_TENANT, BAD_NAME, CONFLICT, V2, tenant_of
from weir.admin.routing import Call, Query, RefusedError, Route
from weir.admin.topic_deletion import delete_namespace
from weir.model.errors import NotAllowedError
from weir.model.registry import STANDALONE, Cluster
from weir.model.topics import check_entity_name

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
