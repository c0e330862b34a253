"""Exchanges: list, get, put, delete."""

from typing import Any

from weir.admin.amqp.bodies import ExchangeBody
from weir.admin.amqp.context import DEFAULT_IN_PATHS, Management
from weir.admin.amqp.listing import COLUMNS, LIST_QUERY, Item, answered_list, answered_one, is_true
from weir.admin.amqp.refusals import not_found
from weir.admin.amqp.values import as_json, from_json
from weir.admin.http import Response
from weir.admin.routing import Call, Query, Route
from weir.model.exchanges import DEFAULT_EXCHANGE, Exchange, ExchangeType
from weir.model.queues import vhost_of
from weir.model.topics import NamespaceName


def exchange_body(namespace: NamespaceName, exchange: Exchange) -> Item:
    return {
        "name": exchange.name,
        "vhost": vhost_of(namespace),
        "type": exchange.type.value,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": as_json(exchange.arguments),
        "user_who_performed_action": "",
    }


def exchange_name(call: Call) -> str:
    """The one in the path; the default exchange is called `amq.default` there."""
    name: str = call.path["name"]
    return DEFAULT_EXCHANGE if name == DEFAULT_IN_PATHS else name


class ExchangeRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[Route]:
        route, one = self._management.route, "/exchanges/{vhost}/{name}"
        listed: Any = list[Any] | dict[str, Any]
        return [
            route("GET", "/exchanges", "All exchanges.", self._all, answer=listed, query=LIST_QUERY),
            route(
                "GET", "/exchanges/{vhost}", "Those of a vhost.", self._of_vhost, answer=listed, query=LIST_QUERY
            ),
            route("GET", one, "One exchange.", self._get, answer=dict[str, Any], query=(COLUMNS,)),
            route(
                "PUT",
                one,
                "Declare an exchange.",
                self._put,
                body=ExchangeBody,
                body_optional=True,
                creates=True,
            ),
            route(
                "DELETE",
                one,
                "Delete an exchange with its bindings.",
                self._delete,
                query=(Query("if-unused", str, "true: only if nothing is bound to it"),),
            ),
        ]

    async def _all(self, call: Call) -> Any:
        found: list[Item] = []
        for namespace in self._management.namespaces(call.role):
            found += await self._items(namespace)
        return answered_list(call.query, found)

    async def _of_vhost(self, call: Call) -> Any:
        return answered_list(call.query, await self._items(self._management.namespace(call)))

    async def _items(self, namespace: NamespaceName) -> list[Item]:
        table = await self._management.exchanges.open(namespace)
        return [exchange_body(namespace, exchange) for exchange in table.exchanges()]

    async def _get(self, call: Call) -> Item:
        namespace, table = await self._management.exchanges_of(call)
        found = table.find(exchange_name(call))
        if found is None:
            raise not_found()
        return answered_one(call.query, {**exchange_body(namespace, found), "incoming": [], "outgoing": []})

    async def _put(self, call: Call) -> Response | None:
        _, table = await self._management.exchanges_of(call)
        name, body = exchange_name(call), call.body or ExchangeBody()
        known = table.find(name) is not None
        await table.declare(
            call.role,
            Exchange(
                name,
                ExchangeType.parse(body.type),
                body.durable,
                body.auto_delete,
                body.internal,
                from_json(body.arguments, "arguments"),
            ),
        )
        return None if known else Response(201)

    async def _delete(self, call: Call) -> None:
        namespace, table = await self._management.exchanges_of(call)
        name = exchange_name(call)
        there = table.find(name)
        if there is None:
            self._management.admin.authoriser.check_configure(call.role, namespace)
            raise not_found()
        await table.delete(call.role, name, if_unused=is_true(call.query["if-unused"]))
        if there.type is ExchangeType.DELAYED:
            await (await self._management.queues.open(namespace)).forget_delayed(name)
