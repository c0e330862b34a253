"""Routes for exchanges (list, get, put, delete) and bindings (list, get, post, delete by properties key)."""

import base64
import json
import zlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

from weir.broker.api.queues import NamespaceExchanges
from weir.gateway.amqp.management.bodies import BindingBody, ExchangeBody
from weir.gateway.amqp.management.errors import not_found
from weir.gateway.amqp.management.listing import (
    COLUMNS,
    LIST_QUERY,
    Item,
    Items,
    answered_list,
    answered_one,
    as_json,
    from_json,
    is_true,
)
from weir.gateway.amqp.management.service import DEFAULT_IN_PATHS, Management
from weir.model.errors import ExchangeNotFoundError
from weir.model.exchanges import DEFAULT_EXCHANGE, Binding, Destination, Exchange, ExchangeType
from weir.model.queues import vhost_of
from weir.model.registry import Action
from weir.model.topics import NamespaceName
from weir.rest.http import Response
from weir.rest.routes import Call, Query, Route


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
    """The exchange name in the path, where `amq.default` means the default exchange."""
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
                "GET",
                "/exchanges/{vhost}",
                "Exchanges of a vhost.",
                self._of_vhost,
                answer=listed,
                query=LIST_QUERY,
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


_LISTED: Any = list[Any] | dict[str, Any]


def properties_key(binding: Binding) -> str:
    """RabbitMQ's `properties_key`, unique per source and destination: the escaped routing key and a digest of the
    arguments."""
    if not binding.routing_key and not binding.arguments:
        return "~"
    key = quote_plus(binding.routing_key, safe="", errors="surrogatepass").replace("~", "%7E")
    if not binding.arguments:
        return key
    text = json.dumps(as_json(binding.arguments), sort_keys=True)
    digest = base64.urlsafe_b64encode(zlib.crc32(text.encode()).to_bytes(4, "big")).decode().rstrip("=")
    return f"{key}~{digest}"


def binding_body(namespace: NamespaceName, binding: Binding, *, key: bool = True) -> Item:
    body = {
        "source": binding.source,
        "vhost": vhost_of(namespace),
        "destination": binding.destination.name,
        "destination_type": "exchange" if binding.destination.exchange else "queue",
        "routing_key": binding.routing_key,
        "arguments": as_json(binding.arguments),
    }
    return {**body, "properties_key": properties_key(binding)} if key else body


def by_default(queues: Iterable[str]) -> list[Binding]:
    """The implicit bindings of queues to the default exchange."""
    return [Binding(DEFAULT_EXCHANGE, Destination(queue), queue) for queue in queues]


class BindingRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[Route]:
        route = self._management.route
        found = [
            route("GET", "/bindings", "All bindings.", self._all, answer=_LISTED, query=LIST_QUERY),
            route(
                "GET",
                "/bindings/{vhost}",
                "Bindings of a vhost.",
                self._of_vhost,
                answer=_LISTED,
                query=LIST_QUERY,
            ),
            route(
                "GET",
                "/exchanges/{vhost}/{name}/bindings/source",
                "Bindings with an exchange as source.",
                self._from_exchange,
                answer=_LISTED,
                query=LIST_QUERY,
            ),
            route(
                "GET",
                "/exchanges/{vhost}/{name}/bindings/destination",
                "Bindings with an exchange as destination.",
                self._to_exchange,
                answer=_LISTED,
                query=LIST_QUERY,
            ),
            route(
                "GET",
                "/queues/{vhost}/{name}/bindings",
                "Bindings of a queue.",
                self._to_queue,
                answer=_LISTED,
                query=LIST_QUERY,
            ),
        ]
        for letter, exchange in (("q", False), ("e", True)):
            found += self._between(letter, to_exchange=exchange)
        return found

    def _between(self, letter: str, *, to_exchange: bool) -> list[Route]:
        route, path = self._management.route, f"/bindings/{{vhost}}/e/{{source}}/{letter}/{{destination}}"
        what = "an exchange and another" if to_exchange else "an exchange and a queue"

        def destination(call: Call) -> Destination:
            return Destination(call.path["destination"], to_exchange)

        async def listed(call: Call) -> Any:
            namespace, bindings = await self._bindings(call, destination(call))
            return answered_list(call.query, [binding_body(namespace, one) for one in bindings])

        async def post(call: Call) -> Response:
            return await self._bind(call, destination(call))

        async def get(call: Call) -> Item:
            namespace, binding = await self._one(call, destination(call))
            return binding_body(namespace, binding)

        async def delete(call: Call) -> None:
            self._check_bind(call, destination(call))
            _, table = await self._management.exchanges_of(call)
            _, binding = await self._one(call, destination(call))
            await table.unbind(call.role, binding)

        one = f"{path}/{{properties}}"
        return [
            route("GET", path, f"Bindings between {what}.", listed, answer=_LISTED, query=LIST_QUERY),
            route("POST", path, f"Bind {what}.", post, body=BindingBody, body_optional=True, creates=True),
            route("GET", one, f"One binding between {what}.", get, answer=dict[str, Any]),
            route("DELETE", one, f"Unbind {what}.", delete),
        ]

    # --- lists --------------------------------------------------------------------------------------------------

    async def of(self, namespace: NamespaceName) -> list[Binding]:
        """All bindings of a namespace; those of the default exchange come first."""
        table = await self._management.exchanges.open(namespace)
        queues = await self._management.queues.open(namespace)
        return [*by_default(await queues.names()), *_sorted(table.bindings())]

    async def _all(self, call: Call) -> Any:
        found: Items = []
        for namespace in self._management.namespaces(call.role):
            found += [binding_body(namespace, one) for one in await self.of(namespace)]
        return answered_list(call.query, found)

    async def _of_vhost(self, call: Call) -> Any:
        namespace = self._management.namespace(call)
        return answered_list(call.query, [binding_body(namespace, one) for one in await self.of(namespace)])

    async def _from_exchange(self, call: Call) -> Any:
        namespace, table = await self._management.exchanges_of(call)
        name = exchange_name(call)
        if table.find(name) is None:
            raise not_found()
        if name == DEFAULT_EXCHANGE:
            found = by_default(await (await self._management.queues.open(namespace)).names())
        else:
            found = _sorted(table.bindings(source=name))
        return answered_list(call.query, [binding_body(namespace, one) for one in found])

    async def _to_exchange(self, call: Call) -> Any:
        namespace, table = await self._management.exchanges_of(call)
        name = exchange_name(call)
        if table.find(name) is None:
            raise not_found()
        found = [one for one in table.bindings() if one.destination == Destination(name, exchange=True)]
        return answered_list(call.query, [binding_body(namespace, one) for one in _sorted(found)])

    async def _to_queue(self, call: Call) -> Any:
        namespace, queues = await self._management.queues_of(call)
        name = call.path["name"]
        await queues.look(name)
        table = await self._management.exchanges.open(namespace)
        found = [*by_default([name]), *_sorted(table.bindings(queue=name))]
        return answered_list(call.query, [binding_body(namespace, one) for one in found])

    # --- between two --------------------------------------------------------------------------------------------

    async def _bindings(self, call: Call, to: Destination) -> tuple[NamespaceName, list[Binding]]:
        """Bindings from the exchange in the path to the destination; 404 if either does not exist."""
        namespace, table = await self._management.exchanges_of(call)
        source = _source(call)
        await self._check_there(call, namespace, table, to)
        if source == DEFAULT_EXCHANGE:
            return namespace, [] if to.exchange else by_default([to.name])
        if table.find(source) is None:
            raise not_found()
        return namespace, [one for one in _sorted(table.bindings(source=source)) if one.destination == to]

    async def _check_there(
        self, call: Call, namespace: NamespaceName, table: NamespaceExchanges, to: Destination
    ) -> bool:
        """Whether the destination is durable; 404 if it does not exist."""
        if to.exchange:
            found = table.find(to.name)
            if found is None:
                raise ExchangeNotFoundError(f"no exchange '{to.name[:80]}' in vhost '{vhost_of(namespace)}'")
            return found.durable
        queues = await self._management.queues.open(namespace)
        return not (await queues.look(to.name)).declaration.in_memory

    async def _one(self, call: Call, to: Destination) -> tuple[NamespaceName, Binding]:
        namespace, bindings = await self._bindings(call, to)
        wanted: str = call.path["properties"]
        plain = unquote_plus(wanted)
        for binding in bindings:
            if properties_key(binding) == wanted or (
                not binding.arguments and binding.routing_key and binding.routing_key in (wanted, plain)
            ):
                return namespace, binding
        raise not_found()

    def _check_bind(self, call: Call, to: Destination) -> None:
        """Check write permission on the destination and read on the source, before an answer shows what exists."""
        namespace = self._management.namespace(call)
        self._management.check(call.role, Action.PRODUCE, namespace, to.name)
        self._management.check(call.role, Action.CONSUME, namespace, _source(call))

    async def _bind(self, call: Call, to: Destination) -> Response:
        self._check_bind(call, to)
        namespace, table = await self._management.exchanges_of(call)
        body = call.body or BindingBody()
        binding = Binding(_source(call), to, body.routing_key, from_json(body.arguments, "arguments"))
        durable = await self._check_there(call, namespace, table, to)
        await table.bind(call.role, binding, durable=durable)
        place = f"{quote(to.name, safe='')}/{quote(properties_key(binding), safe='')}"
        return Response(201, headers={"location": place})


def _source(call: Call) -> str:
    name: str = call.path["source"]
    return DEFAULT_EXCHANGE if name == DEFAULT_IN_PATHS else name


def _sorted(bindings: Iterable[Binding]) -> list[Binding]:
    return sorted(
        bindings,
        key=lambda one: (one.source, one.destination.exchange, one.destination.name, one.routing_key),
    )
