"""Topic permissions: which routing keys of a topic exchange a user may publish with, and bind by."""

from typing import Any

from weir.admin.amqp.bodies import TopicPermissionBody
from weir.admin.amqp.context import Management
from weir.admin.amqp.listing import LIST_QUERY, Items, answered_list
from weir.admin.amqp.refusals import bad_request, not_found
from weir.admin.http import Response
from weir.admin.routing import Call, Route
from weir.broker.api import GrantRecords
from weir.model.queues import namespace_of_vhost, vhost_of
from weir.model.registry import KeyPatterns
from weir.model.topics import NamespaceName


def topic_permission_bodies(grants: GrantRecords, namespace: NamespaceName) -> Items:
    """Of everybody in a namespace, by user and exchange."""
    return [
        {
            "user": role,
            "vhost": vhost_of(namespace),
            "exchange": exchange,
            "write": patterns.write,
            "read": patterns.read,
        }
        for role, by_exchange in sorted(grants.on(namespace).keys.items())
        for exchange, patterns in sorted(by_exchange.items())
    ]


class TopicPermissionRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management
        self._grants = management.admin.registry.grants

    def routes(self) -> list[Route]:
        route, base, one = self._management.route, "/topic-permissions", "/topic-permissions/{vhost}/{user}"
        listed: Any = list[Any] | dict[str, Any]
        return [
            route("GET", base, "All topic permissions.", self._all, answer=listed, query=LIST_QUERY),
            route(
                "GET",
                "/vhosts/{vhost}/topic-permissions",
                "Those on a vhost.",
                self._of_vhost,
                answer=listed,
                query=LIST_QUERY,
            ),
            route(
                "GET",
                "/users/{user}/topic-permissions",
                "Those of a user.",
                self._of_user,
                answer=listed,
                query=LIST_QUERY,
            ),
            route("GET", one, "Those of a user in a vhost.", self._get, answer=listed, query=LIST_QUERY),
            route("PUT", one, "Permit routing keys.", self._put, body=TopicPermissionBody, creates=True),
            route("DELETE", one, "Let a user use every routing key again.", self._delete),
        ]

    def _items(self, role: str) -> Items:
        authoriser = self._management.admin.authoriser
        known = [one for one in self._management.namespaces(role) if authoriser.may_administer(role, one)]
        return [body for one in known for body in topic_permission_bodies(self._grants, one)]

    def _administered(self, call: Call) -> NamespaceName:
        self._management.check_admin(call.role, namespace_of_vhost(call.path["vhost"]))
        return self._management.namespace(call)

    def _of(self, namespace: NamespaceName, user: str) -> Items:
        return [one for one in topic_permission_bodies(self._grants, namespace) if one["user"] == user]

    async def _all(self, call: Call) -> Any:
        return answered_list(call.query, self._items(call.role))

    async def _of_vhost(self, call: Call) -> Any:
        return answered_list(call.query, topic_permission_bodies(self._grants, self._administered(call)))

    async def _of_user(self, call: Call) -> Any:
        user = call.path["user"]
        return answered_list(call.query, [one for one in self._items(call.role) if one["user"] == user])

    async def _get(self, call: Call) -> Any:
        found = self._of(self._administered(call), call.path["user"])
        if not found:
            raise not_found()
        return answered_list(call.query, found)

    async def _put(self, call: Call) -> Response | None:
        name, user = namespace_of_vhost(call.path["vhost"]), call.path["user"]
        self._management.check_admin(call.role, name)
        return Response(201) if await self.put(name, user, call.body) else None

    async def put(self, namespace: NamespaceName, user: str, body: TopicPermissionBody) -> bool:
        """Whether the user had none before, in this vhost. A user need not be there: who comes with a token is a
        role, too."""
        if self._management.admin.registry.namespaces.find(namespace) is None:
            raise bad_request("vhost_or_user_not_found", hint="make the vhost first")
        known = bool(self._of(namespace, user))
        await self._grants.permit_keys(namespace, user, body.exchange, KeyPatterns(body.write, body.read))
        return not known

    async def _delete(self, call: Call) -> None:
        namespace, user = self._administered(call), call.path["user"]
        found = self._of(namespace, user)
        if not found:
            raise not_found()
        for one in found:
            await self._grants.permit_keys(namespace, user, one["exchange"], None)
