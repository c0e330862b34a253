"""Policies of queues and exchanges, and operators'; parameters and limits, of which there are none."""

from typing import Any

from weir.admin.amqp.bodies import PolicyBody, Table
from weir.admin.amqp.context import Management
from weir.admin.amqp.listing import LIST_QUERY, Item, Items, answered_list
from weir.admin.amqp.refusals import bad_request, not_found
from weir.admin.amqp.values import as_json, from_json
from weir.admin.http import Response
from weir.admin.routing import Call, Route
from weir.model.queues import QueuePolicy, namespace_of_vhost, vhost_of
from weir.model.topics import NamespaceName

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
        whose = "An operator's policy" if self._operator else "A policy"
        return [
            route("GET", base, "All policies.", self._all, answer=_LISTED, query=LIST_QUERY),
            route(
                "GET",
                f"{base}/{{vhost}}",
                "Those of a vhost.",
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
        """An operator's policies are for administrators alone: no policymaker exceeds them."""
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
        """Whether it is new."""
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
    """What RabbitMQ's plugins and limits keep; there is nothing of the kind here, and it is said so."""

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
            ("/parameters/{component}/{vhost}/{name}", "no plugin has parameters here"),
            ("/global-parameters/{name}", "there are no global parameters here"),
            ("/user-limits/{user}/{name}", "there are no limits of users here"),
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
