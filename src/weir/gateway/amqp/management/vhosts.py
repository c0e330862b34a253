"""Routes for virtual hosts (namespaces), vhost limits, policies, operator policies, and parameters.

Parameters of plugins, global parameters and user limits do not exist in Weir; their routes return empty lists.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from weir.admin.names import bounded, delete_namespace
from weir.gateway.amqp.management.bodies import LimitBody, PolicyBody, Table, VhostBody
from weir.gateway.amqp.management.errors import ManagementError, bad_request, not_found
from weir.gateway.amqp.management.listing import (
    COLUMNS,
    LIST_QUERY,
    Item,
    Items,
    answered_list,
    answered_one,
    as_json,
    from_json,
)
from weir.gateway.amqp.management.service import LoadedTopics, Management, node_name, totals
from weir.model.errors import NamespaceExistsError, TenantExistsError
from weir.model.queues import (
    LIMITS_PROPERTY,
    MAX_CONNECTIONS,
    MAX_QUEUES,
    QueuePolicy,
    namespace_of_vhost,
    vhost_of,
)
from weir.model.registry import tags_of
from weir.model.topics import NamespaceName
from weir.rest.http import Response
from weir.rest.routes import Call, Route

#: The namespace property with the vhost's description and tags, as JSON.
PROPERTY = "weir.vhost"


class VhostRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management
        self._registry = management.admin.registry

    def routes(self) -> list[Route]:
        route, one = self._management.route, "/vhosts/{vhost}"
        listed: Any = list[Any] | dict[str, Any]
        return [
            route("GET", "/vhosts", "All virtual hosts.", self._list, answer=listed, query=LIST_QUERY),
            route("GET", one, "One virtual host.", self._get, answer=dict[str, Any], query=(COLUMNS,)),
            route(
                "PUT",
                one,
                "Create a namespace, and its tenant if it does not exist.",
                self._put,
                body=VhostBody,
                body_optional=True,
                creates=True,
            ),
            route("DELETE", one, "Delete a namespace with everything in it.", self._delete),
            route("POST", f"{one}/start/{{node}}", "No effect: every existing vhost is running.", self._start),
        ]

    def body(self, namespace: NamespaceName, loaded: LoadedTopics) -> Item:
        described = self._described(namespace)
        found = loaded.of([namespace])
        nodes = [node_name(one.broker_id) for one in self._management.admin.broker.brokers()]
        return {
            "name": vhost_of(namespace),
            **described,
            "metadata": described,
            "default_queue_type": "classic",
            "tracing": False,
            "cluster_state": dict.fromkeys(nodes, "running"),
            **totals(found.ready, found.unacked),
            "message_stats": found.counted.body(),
        }

    def described(self, namespace: NamespaceName) -> Item:
        """The vhost's entry in exported definitions."""
        said = self._described(namespace)
        more = {"metadata": said, **said} if said["description"] or said["tags"] else {}
        return {"name": vhost_of(namespace), **more}

    def _described(self, namespace: NamespaceName) -> Item:
        known = self._registry.namespaces.find(namespace)
        said = "" if known is None else known.properties.get(PROPERTY, "")
        try:
            found = json.loads(said) if said else {}
            return {"description": str(found.get("description", "")), "tags": list(found.get("tags", ()))}
        except (ValueError, AttributeError, TypeError):
            return {"description": "", "tags": []}

    async def _list(self, call: Call) -> Any:
        loaded = LoadedTopics(self._management.admin.broker.loaded)
        found = [self.body(name, loaded) for name in self._management.namespaces(call.role)]
        return answered_list(call.query, found)

    async def _get(self, call: Call) -> Item:
        loaded = LoadedTopics(self._management.admin.broker.loaded)
        return answered_one(call.query, self.body(self._management.namespace(call), loaded))

    async def _put(self, call: Call) -> Response | None:
        name = namespace_of_vhost(call.path["vhost"])
        self._management.check_admin(call.role, name)
        body = call.body or VhostBody()
        made = await self.make(name, body.description, tags_of(body.tags))
        return Response(201) if made else None

    async def make(self, name: NamespaceName, description: str, tags: tuple[str, ...]) -> bool:
        """Create the vhost and its tenant, or update its description and tags; returns whether it is new."""
        if self._registry.tenants.find(name.tenant) is None:
            with suppress(TenantExistsError):  # a concurrent call created it
                await self._registry.tenants.create(name.tenant)
        said = json.dumps({"description": description, "tags": list(tags)}) if description or tags else ""
        made = self._registry.namespaces.find(name) is None
        if made:
            try:
                await self._registry.namespaces.create(name, properties=bounded({PROPERTY: said}) if said else {})
            except NamespaceExistsError:
                made = False
        if not made and said:
            await self._registry.change_properties(name, lambda now: bounded({**now, PROPERTY: said}))
        return made

    async def _delete(self, call: Call) -> None:
        name = namespace_of_vhost(call.path["vhost"])
        self._management.check_admin(call.role, name)
        if self._registry.namespaces.find(name) is None:
            raise not_found()
        vhost = vhost_of(name)
        await self._management.close_all(call, "vhost", vhost, f"vhost '{vhost}' is deleted")
        await delete_namespace(self._management.admin, name, force=True)

    async def _start(self, call: Call) -> None:
        self._management.check_admin(call.role, namespace_of_vhost(call.path["vhost"]))
        self._management.namespace(call)


_NAMES = (MAX_CONNECTIONS, MAX_QUEUES)


class LimitRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management
        self._registry = management.admin.registry

    def routes(self) -> list[Route]:
        route, base, one = self._management.route, "/vhost-limits", "/vhost-limits/{vhost}/{name}"
        return [
            route("GET", base, "Limits of vhosts.", self._all, answer=list[Any]),
            route("GET", f"{base}/{{vhost}}", "Limits of a vhost.", self._of_vhost, answer=list[Any]),
            route("PUT", one, "Limit connections or queues.", self._put, body=LimitBody),
            route("DELETE", one, "Remove a limit.", self._delete),
        ]

    def items(self, namespace: NamespaceName) -> Items:
        """One item with all limits of the vhost, or none."""
        found = self._limits(namespace)
        return [{"vhost": vhost_of(namespace), "value": found}] if found else []

    def parameters(self, namespace: NamespaceName) -> Items:
        """The limits as parameters in exported definitions."""
        return [
            {"vhost": item["vhost"], "component": "vhost-limits", "name": "limits", "value": item["value"]}
            for item in self.items(namespace)
        ]

    def _limits(self, namespace: NamespaceName) -> Item:
        known = self._registry.namespaces.find(namespace)
        return _decoded({} if known is None else known.properties)

    async def _all(self, call: Call) -> Items:
        return [item for one in self._management.namespaces(call.role) for item in self.items(one)]

    async def _of_vhost(self, call: Call) -> Items:
        return self.items(self._management.namespace(call))

    def _changed(self, call: Call) -> NamespaceName:
        name = namespace_of_vhost(call.path["vhost"])
        self._management.check_admin(call.role, name)
        if self._registry.namespaces.find(name) is None:
            raise ManagementError(404, "vhost_not_found", error="not_found")
        return name

    async def _put(self, call: Call) -> None:
        await self.put(self._changed(call), {call.path["name"]: call.body.value})

    async def put(self, namespace: NamespaceName, limits: Table) -> None:
        """Add limits to the existing ones. A number below 0 means no limit."""
        for name, number in limits.items():
            if name not in _NAMES:
                said = f'{{<<"{name[:80]}">>,{number}}}'
                raise bad_request(f"Validation failed\n\nUnrecognised terms [{said}] in limits\n")
            if not isinstance(number, int) or isinstance(number, bool):
                what = f'<<"{number[:80]}">>' if isinstance(number, str) else number
                raise bad_request(f"Validation failed\n\n{name} should be a number, actually was {what}\n")
        await self._change(namespace, lambda now: {**now, **limits})

    async def _delete(self, call: Call) -> None:
        name = call.path["name"]
        await self._change(self._changed(call), lambda now: {one: now[one] for one in now if one != name})

    async def _change(self, namespace: NamespaceName, change: Any) -> None:
        def changed(properties: Mapping[str, str]) -> Mapping[str, str]:
            limits = change(_decoded(properties))
            others = {name: said for name, said in properties.items() if name != LIMITS_PROPERTY}
            return bounded({**others, LIMITS_PROPERTY: json.dumps(limits)}) if limits else others

        await self._registry.change_properties(namespace, changed)


def _decoded(properties: Mapping[str, str]) -> Item:
    try:
        found = json.loads(properties.get(LIMITS_PROPERTY, "{}"))
    except ValueError:
        return {}
    return {name: found[name] for name in _NAMES if name in found} if isinstance(found, dict) else {}


_LISTED: Any = list[Any] | dict[str, Any]


def policy_body(namespace: NamespaceName, policy: QueuePolicy) -> Item:
    return {
        "vhost": vhost_of(namespace),
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": as_json(policy.definition),
        "priority": policy.priority,
    }


class PolicyRoutes:
    def __init__(self, management: Management, *, operator: bool) -> None:
        self._management = management
        self._operator = operator
        self._base = "/operator-policies" if operator else "/policies"

    def routes(self) -> list[Route]:
        route, base, one = self._management.route, self._base, f"{self._base}/{{vhost}}/{{name}}"
        whose = "An operator policy" if self._operator else "A policy"
        return [
            route("GET", base, "All policies.", self._all, answer=_LISTED, query=LIST_QUERY),
            route(
                "GET",
                f"{base}/{{vhost}}",
                "Policies of a vhost.",
                self._of_vhost,
                answer=_LISTED,
                query=LIST_QUERY,
            ),
            route("GET", one, f"{whose}.", self._get, answer=dict[str, Any]),
            route("PUT", one, "Set a policy.", self._put, body=PolicyBody, creates=True),
            route("DELETE", one, "Clear a policy.", self._delete),
        ]

    async def items(self, namespace: NamespaceName) -> Items:
        return [policy_body(namespace, one) for one in await self._policies(namespace)]

    async def _policies(self, namespace: NamespaceName) -> list[QueuePolicy]:
        queues = await self._management.queues.open(namespace)
        found = [one for one in queues.policies() if one.operator is self._operator]
        return sorted(found, key=lambda one: one.name)

    async def _all(self, call: Call) -> Any:
        found: Items = []
        for namespace in self._management.namespaces(call.role):
            found += await self.items(namespace)
        return answered_list(call.query, found)

    async def _of_vhost(self, call: Call) -> Any:
        return answered_list(call.query, await self.items(self._management.namespace(call)))

    async def _find(self, namespace: NamespaceName, name: str) -> QueuePolicy | None:
        return next((one for one in await self._policies(namespace) if one.name == name), None)

    async def _get(self, call: Call) -> Item:
        namespace = self._management.namespace(call)
        found = await self._find(namespace, call.path["name"])
        if found is None:
            raise not_found()
        return policy_body(namespace, found)

    def _changed(self, call: Call) -> NamespaceName:
        """Check permission and return the namespace. Only administrators may change operator policies."""
        name = namespace_of_vhost(call.path["vhost"])
        if self._operator:
            self._management.check_admin(call.role, name)
        else:
            self._management.check_policies(call.role, name)
        return self._management.namespace(call)

    async def _put(self, call: Call) -> Response | None:
        made = await self.put(call.role, self._changed(call), call.path["name"], call.body)
        return Response(201) if made else None

    async def put(self, role: str, namespace: NamespaceName, name: str, body: PolicyBody) -> bool:
        """Set a policy; returns whether it is new."""
        queues = await self._management.queues.open(namespace)
        known = await self._find(namespace, name) is not None
        definition: Table = from_json(body.definition, "definition")
        await queues.set_policy(
            role,
            QueuePolicy(name, body.pattern, definition, body.priority, body.apply_to, operator=self._operator),
        )
        return not known

    async def _delete(self, call: Call) -> None:
        namespace = self._changed(call)
        if await self._find(namespace, call.path["name"]) is None:
            raise not_found()
        queues = await self._management.queues.open(namespace)
        await queues.clear_policy(call.role, call.path["name"], operator=self._operator)


class ParameterRoutes:
    """Parameters and user limits of RabbitMQ that Weir does not have: lists are empty, and PUT is refused."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[Route]:
        route = self._management.route
        nothing = [
            ("/parameters", "Parameters of plugins: none."),
            ("/parameters/{component}", "Parameters of a plugin: none."),
            ("/parameters/{component}/{vhost}", "Parameters of a plugin in a vhost: none."),
            ("/global-parameters", "Global parameters: none."),
            ("/user-limits", "Limits of users: none."),
            ("/user-limits/{user}", "Limits of a user: none."),
        ]
        refused = [
            ("/parameters/{component}/{vhost}/{name}", "Weir has no plugins with parameters"),
            ("/global-parameters/{name}", "Weir has no global parameters"),
            ("/user-limits/{user}/{name}", "Weir has no user limits"),
        ]
        return [
            *(route("GET", path, summary, self._nothing, answer=list[Any]) for path, summary in nothing),
            *(route("PUT", path, f"Refused: {why}.", self._refusing(why)) for path, why in refused),
        ]

    async def _nothing(self, call: Call) -> list[Any]:
        if "vhost" in call.path:
            self._management.namespace(call)
        return []

    def _refusing(self, why: str) -> Any:
        async def refuse(call: Call) -> None:
            self._management.check_superuser(call.role)
            raise bad_request(why)

        return refuse
