"""Routes for the overview, nodes, whoami, feature flags, health checks, and the aliveness test.

The aliveness test declares a queue, publishes a message, and consumes it.
"""

from typing import Any
from urllib.parse import urlsplit

from weir import __version__
from weir.broker.api.queues import QueueMessages
from weir.gateway.amqp.management.errors import ManagementError, bad_request, not_found
from weir.gateway.amqp.management.listing import COLUMNS, LIST_QUERY, Item, Items, answered_list, answered_one
from weir.gateway.amqp.management.service import VERSION, LoadedTopics, Management, node_name, rate, totals
from weir.model.cluster import BrokerLoad
from weir.model.errors import WeirError
from weir.model.exchanges import ExchangeType
from weir.model.messages import Message
from weir.model.queues import QueueDeclaration
from weir.model.registry import ADMINISTRATOR, MANAGEMENT, STANDALONE, BrokerInfo
from weir.rest.http import Response
from weir.rest.routes import Call, Route
from weir.wire.formats.messages import encode_message

_LISTED: Any = list[Any] | dict[str, Any]
_FOUND: Any = dict[str, Any]
#: RabbitMQ's names for the protocols of Weir's listeners.
_PROTOCOLS = {"amqp": "amqp", "amqps": "amqp/ssl", "http": "http", "https": "https", "peer": "clustering"}
_AMQP_NAMES = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqps": "amqp/ssl", "amqp091-tls": "amqp/ssl"}
#: RabbitMQ feature flags that clients and tools check.
_FLAGS = {
    "implicit_default_bindings": "Default bindings are implicit",
    "quorum_queue": "Queues of type quorum",
    "stream_queue": "Queues of type stream",
    "virtual_host_metadata": "Virtual hosts have descriptions and tags",
    "user_limits": "Users have tags",
}


class OverviewRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management
        self._admin = management.admin

    def routes(self) -> list[Route]:
        route = self._management.route
        return [
            route(
                "GET", "/overview", "Totals, versions, listeners.", self._overview, answer=_FOUND, query=(COLUMNS,)
            ),
            route("GET", "/cluster-name", "The cluster's name.", self._cluster_name, answer=_FOUND),
            route("PUT", "/cluster-name", "Refused: the cluster name is fixed.", self._rename),
            route("GET", "/nodes", "All brokers.", self._nodes, answer=_LISTED, query=LIST_QUERY),
            route("GET", "/nodes/{node}", "One broker.", self._node, answer=_FOUND, query=(COLUMNS,)),
            route("GET", "/whoami", "The calling user.", self._whoami, answer=_FOUND),
            route("GET", "/extensions", "None.", self._nothing, answer=list[Any]),
            route("GET", "/feature-flags", "Supported features.", self._flags, answer=list[Any]),
            route("GET", "/deprecated-features", "None.", self._nothing, answer=list[Any]),
            route("GET", "/deprecated-features/used", "None.", self._nothing, answer=list[Any]),
            *self._health(),
        ]

    def _health(self) -> list[Route]:
        route, checks = self._management.route, "/health/checks"
        return [
            *(
                route("GET", path, "Whether this broker is healthy.", self._alive, answer=_FOUND)
                for path in (
                    f"{checks}/alarms",
                    f"{checks}/local-alarms",
                    f"{checks}/virtual-hosts",
                    f"{checks}/node-is-quorum-critical",
                    f"{checks}/node-is-mirror-sync-critical",
                    "/healthchecks/node",
                )
            ),
            route("GET", f"{checks}/port-listener/{{port}}", "Whether a port is open.", self._port, answer=_FOUND),
            route(
                "GET",
                f"{checks}/protocol-listener/{{protocol}}",
                "Whether a listener for a protocol is open.",
                self._protocol,
                answer=_FOUND,
            ),
        ]

    # --- overview -----------------------------------------------------------------------------------------------

    async def _overview(self, call: Call) -> Item:
        role = call.role
        namespaces = self._management.namespaces(role)
        found = LoadedTopics(self._admin.broker.loaded).of(namespaces)
        everything = self._admin.authoriser.may_monitor(role)
        connections = [one for one in self._management.connections.all() if everything or one.info.role == role]
        channels = [channel for one in connections for channel in one.channels()]
        item = {
            "management_version": VERSION,
            "rabbitmq_version": VERSION,
            "product_name": "Weir",
            "product_version": __version__,
            "rates_mode": "basic",
            "cluster_name": STANDALONE,
            "node": self._management.node,
            "exchange_types": [{"name": kind.value, "description": "", "enabled": True} for kind in ExchangeType],
            "message_stats": found.counted.body(),
            "churn_rates": {},
            "queue_totals": totals(found.ready, found.unacked),
            "object_totals": {
                "connections": len(connections),
                "channels": len(channels),
                "consumers": sum(len(channel.consumers) for channel in channels),
                "exchanges": await self._count_exchanges(namespaces),
                "queues": await self._count_queues(namespaces),
            },
            "statistics_db_event_queue": 0,
            "listeners": [{"node": self._management.node, **one, "socket_opts": {}} for one in self._listeners()],
            "contexts": [],
        }
        return answered_one(call.query, item)

    async def _count_exchanges(self, namespaces: list[Any]) -> int:
        return sum([len((await self._management.exchanges.open(one)).exchanges()) for one in namespaces])

    async def _count_queues(self, namespaces: list[Any]) -> int:
        return sum([len(await (await self._management.queues.open(one)).names()) for one in namespaces])

    def _listeners(self) -> Items:
        found = []
        for name, url in sorted(self._admin.urls.listeners.items()):
            place = urlsplit(url if "://" in url else f"//{url}")
            protocol = _PROTOCOLS.get(name, name.replace("_tls", "/ssl"))
            found.append({"protocol": protocol, "ip_address": place.hostname or "", "port": place.port or 0})
        return found

    async def _cluster_name(self, call: Call) -> Item:
        return {"name": STANDALONE}

    async def _rename(self, call: Call) -> None:
        self._management.check_superuser(call.role)
        raise bad_request(f"the cluster name {STANDALONE} cannot be changed")

    async def _whoami(self, call: Call) -> Item:
        user = self._admin.registry.users.find(call.role)
        if self._admin.authoriser.is_superuser(call.role):
            tags = [ADMINISTRATOR]
        else:
            tags = [MANAGEMENT] if user is None else list(user.tags)
        return {"name": call.role, "tags": tags}

    async def _flags(self, call: Call) -> Items:
        return [
            {
                "name": name,
                "desc": what,
                "doc_url": "",
                "state": "enabled",
                "stability": "stable",
                "provided_by": "weir",
            }
            for name, what in _FLAGS.items()
        ]

    async def _nothing(self, call: Call) -> list[Any]:
        return []

    # --- nodes --------------------------------------------------------------------------------------------------

    async def _nodes(self, call: Call) -> Any:
        self._management.check_monitor(call.role)
        return answered_list(call.query, [await self._node_body(one) for one in self._admin.broker.brokers()])

    async def _node(self, call: Call) -> Item:
        self._management.check_monitor(call.role)
        for one in self._admin.broker.brokers():
            if node_name(one.broker_id) == call.path["node"]:
                return answered_one(call.query, await self._node_body(one))
        raise not_found()

    async def _node_body(self, broker: BrokerInfo) -> Item:
        load = await self._admin.load_of(broker.broker_id) or BrokerLoad(broker.broker_id)
        return {
            "name": node_name(broker.broker_id),
            "type": "disc",
            "running": True,
            "partitions": [],
            "rates_mode": "basic",
            "being_drained": broker.draining,
            "mem_alarm": False,
            "disk_free_alarm": False,
            "mem_used": 0,
            "mem_limit": 0,
            "mem_used_share": round(load.memory, 4),
            "cpu_share": round(load.cpu, 4),
            "publish_details": rate(load.messages_in),
            "deliver_details": rate(load.messages_out),
            "exchange_types": [{"name": kind.value, "description": "", "enabled": True} for kind in ExchangeType],
            "auth_mechanisms": [
                {"name": name, "description": "", "enabled": True} for name in ("PLAIN", "AMQPLAIN", "EXTERNAL")
            ],
            "applications": [{"name": "weir", "description": "Weir", "version": __version__}],
            "contexts": [],
            "enabled_plugins": [],
        }

    # --- health -------------------------------------------------------------------------------------------------

    async def _alive(self, call: Call) -> Any:
        try:
            await self._admin.probe()
        except WeirError as failed:
            return _failed({"reason": failed.what})
        return {"status": "ok"}

    async def _port(self, call: Call) -> Any:
        ports = [one["port"] for one in self._listeners()]
        wanted = call.path["port"]
        if wanted.isascii() and wanted.isdigit() and len(wanted) < 6 and int(wanted) in ports:
            return {"status": "ok", "port": int(wanted)}
        return _failed({"reason": "No active listener", "missing": wanted[:20], "ports": ports})

    async def _protocol(self, call: Call) -> Any:
        protocols = [one["protocol"] for one in self._listeners()]
        wanted = call.path["protocol"]
        name = _AMQP_NAMES.get(wanted, wanted)
        if name in protocols:
            return {"status": "ok", "protocol": name}
        return _failed({"reason": "No active listener", "missing": wanted[:80], "protocols": protocols})


def _failed(more: Item) -> Response:
    from msgspec.json import encode

    return Response(503, encode({"status": "failed", **more}))


#: As in RabbitMQ: a non-durable queue that is not deleted after the test.
_QUEUE = "aliveness-test"
_PAYLOAD = b"test_message"


class AlivenessRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[Route]:
        return [
            self._management.route(
                "GET",
                "/aliveness-test/{vhost}",
                "Whether a message can be published and consumed in a vhost.",
                self._test,
                answer=dict[str, Any],
            )
        ]

    async def _test(self, call: Call) -> Item:
        namespace, queues = await self._management.queues_of(call)
        self._management.check_configure(call.role, namespace, _QUEUE)
        queue = await queues.declare(call.role, QueueDeclaration(_QUEUE, durable=False))
        now_ms = self._management.admin.clock.wall_ms()
        await queue.publish(QueueMessages([encode_message(Message(None, _PAYLOAD, publish_ms=now_ms))], False))
        getter = await queue.getter(call.role)
        try:
            delivery = await getter.take()
            if delivery is None:
                raise ManagementError(503, "aliveness test failed: the published message was not delivered")
            first = delivery.batch.base_offset
            getter.ack([(first, first + 1)])
        finally:
            await getter.close()
        return {"status": "ok"}
