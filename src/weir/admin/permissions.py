"""Grants: what roles may do with a topic, a namespace, or (Weir's own) a whole tenant."""

from weir.admin.bodies import ActionName, Permissions
from weir.admin.context import AdminContext
from weir.admin.names import (
    ABOUT_NAMESPACE,
    ABOUT_TENANT,
    ABOUT_TOPIC,
    CONFLICT,
    NAMESPACE,
    namespace_of,
    tenant_of,
    topic_of,
    topic_path,
)
from weir.admin.policies_map import permissions_body
from weir.admin.routing import Call, RefusedError, Route
from weir.broker.api import Scope
from weir.model.registry import Action, check_role
from weir.model.topics import Domain, NamespaceName, TopicName


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
