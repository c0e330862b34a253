"""Export and import of definitions, including files exported from RabbitMQ.

The import creates definitions in dependency order, continues after errors, and reports each refused definition.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from weir import __version__
from weir.gateway.amqp.management.bodies import (
    DefinitionsBody,
    PermissionBody,
    PolicyBody,
    Table,
    TopicPermissionBody,
    UserBody,
)
from weir.gateway.amqp.management.errors import ManagementError, bad_request
from weir.gateway.amqp.management.exchanges import binding_body, exchange_body
from weir.gateway.amqp.management.listing import Item, Items, as_json, from_json
from weir.gateway.amqp.management.service import VERSION, Management
from weir.gateway.amqp.management.users import (
    PermissionRoutes,
    TopicPermissionRoutes,
    UserRoutes,
    permission_bodies,
    topic_permission_bodies,
    user_body,
)
from weir.gateway.amqp.management.vhosts import LimitRoutes, PolicyRoutes, VhostRoutes
from weir.model.errors import WeirError
from weir.model.exchanges import DEFAULT_EXCHANGE, RESERVED_PREFIX, Binding, Destination, Exchange, ExchangeType
from weir.model.queues import QueueDeclaration, namespace_of_vhost, vhost_of
from weir.model.registry import tags_of
from weir.model.topics import NamespaceName
from weir.rest.http import Response
from weir.rest.routes import Call, Route

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Definitions of one kind imported concurrently.
_AT_ONCE = 32
#: Maximum refused definitions in the report.
_MOST_REFUSED = 10_000
#: Global parameters internal to RabbitMQ, which the import ignores.
_OWN_PARAMETERS = ("internal_cluster_id", "cluster_name")


@dataclass(slots=True)
class ImportProgress:
    """Progress of an import: number of definitions, number imported, and the refused ones with their reasons."""

    running: bool = False
    total: int = 0
    done: int = 0
    refused: list[str] = field(default_factory=list)

    def body(self) -> Item:
        state = "running" if self.running else "done" if self.total else "none"
        return {"state": state, "total": self.total, "imported": self.done, "refused": list(self.refused)}


@dataclass(frozen=True, slots=True)
class Importers:
    """The routes that create each kind of definition; the import shares their code."""

    management: Management
    users: UserRoutes
    vhosts: VhostRoutes
    permissions: PermissionRoutes
    topic_permissions: TopicPermissionRoutes
    policies: PolicyRoutes
    operator_policies: PolicyRoutes
    limits: LimitRoutes


class DefinitionsImport:
    """One import with the rights of one role. `into`: import everything into this vhost, despite the file."""

    def __init__(
        self, importers: Importers, role: str, progress: ImportProgress, *, into: NamespaceName | None
    ) -> None:
        self._importers = importers
        self._management = importers.management
        self._role = role
        self._progress = progress
        self._into = into

    async def run(self, body: DefinitionsBody) -> None:
        whole = self._into is None
        kinds: list[tuple[str, list[Table], Callable[[Table], Awaitable[None]]]] = [
            ("user", body.users if whole else [], self._user),
            ("vhost", body.vhosts if whole else [], self._vhost),
            ("permission", body.permissions if whole else [], self._permission),
            ("topic permission", body.topic_permissions if whole else [], self._topic_permission),
            ("parameter", body.parameters, self._parameter),
            ("global parameter", body.global_parameters if whole else [], self._global_parameter),
            ("policy", body.policies, self._policy),
            ("exchange", body.exchanges, self._exchange),
            ("queue", body.queues, self._queue),
            ("binding", body.bindings, self._binding),
        ]
        self._progress.total = sum(len(items) for _, items, _ in kinds)
        for kind, items, make in kinds:
            if items:
                await self._all(kind, items, make)
                log.info(
                    "definitions: %d of %d imported, %d refused, after each %s",
                    self._progress.done,
                    self._progress.total,
                    len(self._progress.refused),
                    kind,
                )

    async def _all(self, kind: str, items: Sequence[Table], make: Callable[[Table], Awaitable[None]]) -> None:
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(item: Table) -> None:
            async with turn:
                try:
                    await make(item)
                    self._progress.done += 1
                except WeirError as refused:
                    self._refuse(kind, item, refused.what)
                except msgspec.ValidationError as wrong:
                    self._refuse(kind, item, str(wrong))

        for first in range(0, len(items), _AT_ONCE * 8):  # bounds the tasks for a large file
            await asyncio.gather(*map(one, items[first : first + _AT_ONCE * 8]))

    def _refuse(self, kind: str, item: Table, why: str) -> None:
        if len(self._progress.refused) < _MOST_REFUSED:
            self._progress.refused.append(f"{kind} {_name(item)}: {why}")

    # --- each kind ----------------------------------------------------------------------------------------------

    async def _user(self, item: Table) -> None:
        await self._importers.users.put(_text(item, "name"), _as(item, UserBody))

    async def _vhost(self, item: Table) -> None:
        name = namespace_of_vhost(_text(item, "name"))
        metadata = item.get("metadata")
        said: Table = metadata if isinstance(metadata, dict) else item
        tags = said.get("tags", ())
        description = said.get("description", "")
        await self._importers.vhosts.make(
            name,
            description if isinstance(description, str) else "",
            tags_of(tags if isinstance(tags, str) else [str(tag) for tag in tags or ()]),
        )

    async def _permission(self, item: Table) -> None:
        namespace = self._namespace(item)
        await self._importers.permissions.put(namespace, _text(item, "user"), _as(item, PermissionBody))

    async def _topic_permission(self, item: Table) -> None:
        namespace = self._namespace(item)
        await self._importers.topic_permissions.put(namespace, _text(item, "user"), _as(item, TopicPermissionBody))

    async def _parameter(self, item: Table) -> None:
        if item.get("component") == "vhost-limits" and isinstance(item.get("value"), dict):
            await self._importers.limits.put(self._namespace(item), item["value"])
            return
        if item.get("component") != "operator_policy" or not isinstance(item.get("value"), dict):
            raise bad_request(f"unsupported component {str(item.get('component'))[:80]!r}")
        await self._importers.operator_policies.put(
            self._role, self._namespace(item), _text(item, "name"), _as(item["value"], PolicyBody)
        )

    async def _global_parameter(self, item: Table) -> None:
        if item.get("name") not in _OWN_PARAMETERS:
            raise bad_request("Weir has no global parameters")

    async def _policy(self, item: Table) -> None:
        await self._importers.policies.put(
            self._role, self._namespace(item), _text(item, "name"), _as(item, PolicyBody)
        )

    async def _exchange(self, item: Table) -> None:
        name = _text(item, "name")
        if name == DEFAULT_EXCHANGE or name.startswith(RESERVED_PREFIX):
            return  # exists in every vhost
        table = await self._management.exchanges.open(self._namespace(item))
        await table.declare(
            self._role,
            Exchange(
                name,
                ExchangeType.parse(_text(item, "type")),
                _flag(item, "durable", unsaid=True),
                _flag(item, "auto_delete"),
                _flag(item, "internal"),
                _arguments(item),
            ),
        )

    async def _queue(self, item: Table) -> None:
        queues = await self._management.queues.open(self._namespace(item))
        await queues.declare(
            self._role,
            QueueDeclaration(
                _text(item, "name"),
                durable=_flag(item, "durable", unsaid=True),
                auto_delete=_flag(item, "auto_delete"),
                arguments=_arguments(item),
            ),
        )

    async def _binding(self, item: Table) -> None:
        namespace, source = self._namespace(item), _text(item, "source")
        if source == DEFAULT_EXCHANGE:
            return  # implicit for every queue
        to = Destination(_text(item, "destination"), item.get("destination_type") == "exchange")
        table = await self._management.exchanges.open(namespace)
        if to.exchange:
            durable = table.get(to.name).durable
        else:
            queues = await self._management.queues.open(namespace)
            durable = not (await queues.look(to.name)).declaration.in_memory
        key = item.get("routing_key", "")
        binding = Binding(source, to, key if isinstance(key, str) else str(key), _arguments(item))
        await table.bind(self._role, binding, durable=durable)

    def _namespace(self, item: Table) -> NamespaceName:
        if self._into is not None:
            return self._into
        return namespace_of_vhost(_text(item, "vhost"))


def _name(item: Table) -> str:
    """The name of a refused definition in the report."""
    vhost = f" in {item['vhost']}" if isinstance(item.get("vhost"), str) else ""
    if "source" in item:
        return f"{str(item.get('source'))[:80]!r} to {str(item.get('destination'))[:80]!r}{vhost}"
    return f"{str(item.get('name', item.get('user', '')))[:80]!r}{vhost}"


def _as(item: Table, wanted: type[T]) -> T:
    said = {name: value for name, value in item.items() if value is not None}
    return msgspec.convert(said, wanted, strict=False)


def _text(item: Table, name: str) -> str:
    found = item.get(name)
    if not isinstance(found, str):
        raise bad_request(f"field {name!r} is missing or not a string")
    return found


def _flag(item: Table, name: str, *, unsaid: bool = False) -> bool:
    found: Any = item.get(name, unsaid)
    if found in ("true", "false"):
        return bool(found == "true")
    if not isinstance(found, bool):
        raise bad_request(f"{name} must be true or false")
    return found


def _arguments(item: Table) -> Table:
    found = item.get("arguments") or {}
    if not isinstance(found, dict):
        raise bad_request("arguments must be a JSON object")
    plain: Table = from_json(found, "arguments")
    return plain


#: Refused definitions in the error text; the report contains all.
_NAMED = 50


class DefinitionRoutes:
    def __init__(self, management: Management, importers: Importers) -> None:
        self._management = management
        self._importers = importers
        self._progress = ImportProgress()

    def routes(self) -> list[Route]:
        route, of_vhost = self._management.route, "/definitions/{vhost}"
        found: Any = dict[str, Any]
        return [
            route("GET", "/definitions", "Export all definitions.", self._export, answer=found),
            route("POST", "/definitions", "Import definitions.", self._import, body=DefinitionsBody),
            route("GET", of_vhost, "Export the definitions of a vhost.", self._export_vhost, answer=found),
            route("POST", of_vhost, "Import definitions into a vhost.", self._import_vhost, body=DefinitionsBody),
            route(
                "GET", "/definitions-import", "Progress of the current or last import.", self._report, answer=found
            ),
        ]

    # --- export -------------------------------------------------------------------------------------------------

    async def _export(self, call: Call) -> Item:
        self._management.check_superuser(call.role)
        registry = self._management.admin.registry
        namespaces = self._management.namespaces(call.role)
        users = [registry.users.find(name) for name in registry.users.names()]
        declared: dict[str, Items] = {name: [] for name in ("policies", "queues", "exchanges", "bindings")}
        parameters: Items = []
        for namespace in namespaces:
            for name, items in (await self._declared(namespace)).items():
                declared[name] += items
            parameters += await self._parameters(namespace)
        return {
            **_versions(),
            "users": [user_body(user) for user in users if user is not None],
            "vhosts": [self._importers.vhosts.described(namespace) for namespace in namespaces],
            "permissions": [
                body for namespace in namespaces for body in permission_bodies(registry.grants, namespace)
            ],
            "topic_permissions": [
                body for namespace in namespaces for body in topic_permission_bodies(registry.grants, namespace)
            ],
            "parameters": parameters,
            "global_parameters": [],
            **declared,
        }

    async def _export_vhost(self, call: Call) -> Item:
        name = namespace_of_vhost(call.path["vhost"])
        self._management.check_policies(call.role, name)
        if self._management.admin.registry.namespaces.find(name) is None:
            raise bad_request("vhost_not_found")
        declared = await self._declared(name)
        for kind, items in declared.items():
            if kind != "policies":
                for item in items:
                    del item["vhost"]
        return {"rabbit_version": VERSION, "parameters": await self._parameters(name), **declared}

    async def _declared(self, namespace: NamespaceName) -> dict[str, Items]:
        table = await self._management.exchanges.open(namespace)
        exchanges = [
            exchange_body(namespace, one)
            for one in table.exchanges()
            if one.name and not one.name.startswith(RESERVED_PREFIX)
        ]
        for body in exchanges:
            del body["user_who_performed_action"]
        return {
            "policies": await self._importers.policies.items(namespace),
            "queues": await self._queues(namespace),
            "exchanges": exchanges,
            "bindings": [binding_body(namespace, one, key=False) for one in table.bindings()],
        }

    async def _queues(self, namespace: NamespaceName) -> Items:
        """Definitions of all queues that are not exclusive."""
        queues = await self._management.queues.open(namespace)
        found = []
        for name in await queues.names():
            try:
                declared = (await queues.look(name)).declaration
            except WeirError:
                continue  # deleted meanwhile
            if not declared.exclusive:
                found.append(
                    {
                        "name": as_json(declared.name),
                        "vhost": vhost_of(namespace),
                        "durable": declared.durable,
                        "auto_delete": declared.auto_delete,
                        "arguments": as_json(declared.arguments),
                    }
                )
        return found

    async def _parameters(self, namespace: NamespaceName) -> Items:
        return [*await self._operators(namespace), *self._importers.limits.parameters(namespace)]

    async def _operators(self, namespace: NamespaceName) -> Items:
        """Operator policies, which RabbitMQ's definitions contain as parameters."""
        return [
            {
                "vhost": item.pop("vhost"),
                "component": "operator_policy",
                "name": item.pop("name"),
                "value": item,
            }
            for item in await self._importers.operator_policies.items(namespace)
        ]

    # --- import -------------------------------------------------------------------------------------------------

    async def _import(self, call: Call) -> Response | None:
        self._management.check_superuser(call.role)
        return await self._read(call, None)

    async def _import_vhost(self, call: Call) -> Response | None:
        name = namespace_of_vhost(call.path["vhost"])
        self._management.check_admin(call.role, name)
        if self._management.admin.registry.namespaces.find(name) is None:
            raise bad_request("vhost_not_found")
        return await self._read(call, name)

    async def _read(self, call: Call, into: NamespaceName | None) -> Response | None:
        if self._progress.running:
            raise ManagementError(
                409, "another import of definitions is running", hint="retry after it has finished"
            )
        self._progress = progress = ImportProgress(running=True)
        try:
            await DefinitionsImport(self._importers, call.role, progress, into=into).run(call.body)
        finally:
            progress.running = False
        if not progress.refused:
            return None
        named = "; ".join(progress.refused[:_NAMED])
        more = f"; and {len(progress.refused) - _NAMED} more" if len(progress.refused) > _NAMED else ""
        raise bad_request(
            f"{progress.done} of {progress.total} definitions were imported, {len(progress.refused)} refused: "
            f"{named}{more}"
        )

    async def _report(self, call: Call) -> Item:
        self._management.check_superuser(call.role)
        return self._progress.body()


def _versions() -> Item:
    return {
        "rabbit_version": VERSION,
        "rabbitmq_version": VERSION,
        "product_name": "Weir",
        "product_version": __version__,
    }
