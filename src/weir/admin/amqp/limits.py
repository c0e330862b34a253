"""Limits of vhosts: how many connections and queues each may have."""

import json
from collections.abc import Mapping
from typing import Any

from weir.admin.amqp.bodies import LimitBody, Table
from weir.admin.amqp.context import Management
from weir.admin.amqp.listing import Item, Items
from weir.admin.amqp.refusals import ManagementError, bad_request
from weir.admin.properties import bounded
from weir.admin.routing import Call, Route
from weir.model.queues import LIMITS_PROPERTY, MAX_CONNECTIONS, MAX_QUEUES, namespace_of_vhost, vhost_of
from weir.model.topics import NamespaceName

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
            route("DELETE", one, "Take a limit away.", self._delete),
        ]

    def items(self, namespace: NamespaceName) -> Items:
        """None, or one with all limits of the vhost."""
        found = self._limits(namespace)
        return [{"vhost": vhost_of(namespace), "value": found}] if found else []

    def parameters(self, namespace: NamespaceName) -> Items:
        """As definitions have them."""
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
        """Beside those that there are. Below 0 is no limit."""
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
