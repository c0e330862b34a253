"""Virtual hosts, which are namespaces: list, get, put, delete."""

import json
from contextlib import suppress
from typing import Any

from weir.admin.amqp.bodies import VhostBody
from weir.admin.amqp.context import Management, node_name
from weir.admin.amqp.listing import COLUMNS, LIST_QUERY, Item, answered_list, answered_one
from weir.admin.amqp.refusals import not_found
from weir.admin.amqp.stats import LoadedTopics, totals
from weir.admin.http import Response
from weir.admin.properties import bounded
from weir.admin.routing import Call, Route
from weir.admin.topic_deletion import delete_namespace
from weir.model.errors import NamespaceExistsError, TenantExistsError
from weir.model.queues import namespace_of_vhost, vhost_of
from weir.model.topics import NamespaceName
from weir.model.users import tags_of

#: The property of a namespace that has what RabbitMQ's users say of it: its description and tags, as JSON.
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
                "Make a namespace, and its tenant if there is none.",
                self._put,
                body=VhostBody,
                body_optional=True,
                creates=True,
            ),
            route("DELETE", one, "Delete a namespace with everything in it.", self._delete),
            route("POST", f"{one}/start/{{node}}", "Nothing: one that is there runs.", self._start),
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
        """As definitions have it."""
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
        """Make it, and its tenant; whether it is new. What is said of it holds from now on."""
        if self._registry.tenants.find(name.tenant) is None:
            with suppress(TenantExistsError):  # another was faster
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
