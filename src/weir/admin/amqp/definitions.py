"""Definitions: all that is declared, in one file that can be read back; files of a real RabbitMQ are read, too."""

from typing import Any

from weir import __version__
from weir.admin.amqp.bindings import binding_body
from weir.admin.amqp.bodies import DefinitionsBody
from weir.admin.amqp.context import VERSION, Management
from weir.admin.amqp.exchanges import exchange_body
from weir.admin.amqp.importing import DefinitionsImport, Importers, ImportProgress
from weir.admin.amqp.listing import Item, Items
from weir.admin.amqp.permissions import permission_bodies
from weir.admin.amqp.refusals import ManagementError, bad_request
from weir.admin.amqp.topic_permissions import topic_permission_bodies
from weir.admin.amqp.users import user_body
from weir.admin.amqp.values import as_json
from weir.admin.http import Response
from weir.admin.routing import Call, Route
from weir.model.errors import WeirError
from weir.model.exchanges import RESERVED_PREFIX
from weir.model.queues import namespace_of_vhost, vhost_of
from weir.model.topics import NamespaceName

#: Refusals that the answer names; all are in the report.
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
            route("GET", "/definitions", "Everything that is declared.", self._export, answer=found),
            route("POST", "/definitions", "Declare what a file has.", self._import, body=DefinitionsBody),
            route("GET", of_vhost, "What is declared in a vhost.", self._export_vhost, answer=found),
            route(
                "POST", of_vhost, "Declare what a file has, in a vhost.", self._import_vhost, body=DefinitionsBody
            ),
            route("GET", "/definitions-import", "How the last import goes, or went.", self._report, answer=found),
        ]

    # --- out ----------------------------------------------------------------------------------------------------

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
        """Those that are no connection's own."""
        queues = await self._management.queues.open(namespace)
        found = []
        for name in await queues.names():
            try:
                declared = (await queues.look(name)).declaration
            except WeirError:
                continue  # gone meanwhile
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
        """Operators' policies, which RabbitMQ keeps as parameters."""
        return [
            {
                "vhost": item.pop("vhost"),
                "component": "operator_policy",
                "name": item.pop("name"),
                "value": item,
            }
            for item in await self._importers.operator_policies.items(namespace)
        ]

    # --- in -----------------------------------------------------------------------------------------------------

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
            raise ManagementError(409, "definitions are being imported already", hint="wait until that is done")
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
