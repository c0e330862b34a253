"""Routes for connections, channels and consumers of all brokers, and for closing connections."""

from collections.abc import Iterable, Mapping
from typing import Any

from weir.broker.api.connections import ChannelInfo, ClientConnection, ConnectionInfo
from weir.gateway.amqp.management.errors import ManagementError, not_found
from weir.gateway.amqp.management.listing import (
    COLUMNS,
    LIST_QUERY,
    Item,
    Items,
    answered_list,
    answered_one,
    as_json,
)
from weir.gateway.amqp.management.service import HERE, REASON, Management, rate
from weir.model.queues import namespace_of_vhost, vhost_of
from weir.rest.routes import Call, Route

_LISTED: Any = list[Any] | dict[str, Any]
_QUERY = (*LIST_QUERY, HERE)
_REASON = "Closed via management plugin"


def connection_body(connection: ClientConnection, node: str) -> Item:
    info, traffic = connection.info, connection.traffic
    return {
        "name": info.name,
        "user": info.user,
        "user_who_performed_action": info.user,
        "vhost": vhost_of(info.namespace),
        "node": node,
        "type": "network",
        "protocol": info.protocol,
        "state": traffic.state,
        "auth_mechanism": info.auth_mechanism,
        "peer_host": info.peer_host,
        "peer_port": info.peer_port,
        "host": info.host,
        "port": info.port,
        "ssl": info.tls,
        "channels": len(connection.channels()),
        "channel_max": info.channel_max,
        "frame_max": info.frame_max,
        "timeout": info.heartbeat_s,
        "connected_at": info.connected_ms,
        "client_properties": as_json(info.client_properties),
        "recv_oct": traffic.received_bytes,
        "recv_oct_details": rate(),
        "recv_cnt": traffic.received_frames,
        "send_oct": traffic.sent_bytes,
        "send_oct_details": rate(),
        "send_cnt": traffic.sent_frames,
        "send_pend": 0,
    }


def _channel_name(info: ConnectionInfo, channel: ChannelInfo) -> str:
    return f"{info.name} ({channel.number})"


def channel_bodies(connection: ClientConnection, node: str) -> Items:
    info = connection.info
    return [
        {
            "name": _channel_name(info, channel),
            "number": channel.number,
            "user": info.user,
            "user_who_performed_action": info.user,
            "vhost": vhost_of(info.namespace),
            "node": node,
            "state": "running" if channel.flowing else "flow",
            "connection_details": {
                "name": info.name,
                "peer_host": info.peer_host,
                "peer_port": info.peer_port,
            },
            "consumer_count": len(channel.consumers),
            "messages_unacknowledged": channel.unacked,
            "messages_unconfirmed": channel.unconfirmed,
            "messages_uncommitted": channel.uncommitted_messages,
            "acks_uncommitted": channel.uncommitted_acks,
            "prefetch_count": channel.prefetch,
            "global_prefetch_count": channel.global_prefetch,
            "confirm": channel.confirm,
            "transactional": channel.transactional,
            "message_stats": _channel_stats(channel),
        }
        for channel in connection.channels()
    ]


def _channel_stats(channel: ChannelInfo) -> Item:
    counts: Mapping[str, int] = {
        "publish": channel.published,
        "confirm": channel.confirmed,
        "return_unroutable": channel.returned,
        "deliver": channel.delivered,
        "deliver_get": channel.delivered,
        "redeliver": channel.redelivered,
        "ack": channel.acked,
    }
    found: Item = {}
    for name, count in counts.items():
        found[name] = count
        found[f"{name}_details"] = rate()
    return found


def consumer_bodies(connections: Iterable[ClientConnection], node: str) -> Items:
    return [
        {
            "consumer_tag": as_json(consumer.tag),
            "queue": {"name": as_json(consumer.queue), "vhost": vhost_of(info.namespace)},
            "channel_details": {
                "name": _channel_name(info, channel),
                "number": channel.number,
                "connection_name": info.name,
                "node": node,
                "peer_host": info.peer_host,
                "peer_port": info.peer_port,
                "user": info.user,
            },
            "ack_required": not consumer.no_ack,
            "active": consumer.active,
            "activity_status": "up" if consumer.active else "waiting",
            "exclusive": consumer.exclusive,
            "prefetch_count": consumer.prefetch,
            "arguments": as_json(consumer.arguments),
        }
        for connection in connections
        for info in (connection.info,)
        for channel in connection.channels()
        for consumer in channel.consumers
    ]


def _reason(call: Call) -> str:
    return call.request.headers.get(REASON, _REASON)[:200]


class ConnectionRoutes:
    """Roles without monitoring permission see only their own connections."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[Route]:
        route, one = self._management.route, "/connections/{name}"
        found: Any = dict[str, Any]
        return [
            route("GET", "/connections", "All connections.", self._connections, answer=_LISTED, query=_QUERY),
            route(
                "GET",
                "/vhosts/{vhost}/connections",
                "Connections of a vhost.",
                self._of_vhost,
                answer=_LISTED,
                query=_QUERY,
            ),
            route(
                "GET",
                "/connections/username/{user}",
                "Connections of a user.",
                self._of_user,
                answer=_LISTED,
                query=_QUERY,
            ),
            route(
                "DELETE", "/connections/username/{user}", "Close all connections of a user.", self._close_of_user
            ),
            route("GET", one, "One connection.", self._connection, answer=found, query=(COLUMNS, HERE)),
            route("DELETE", one, "Close a connection.", self._close, query=(HERE,)),
            route(
                "GET",
                f"{one}/channels",
                "Channels of a connection.",
                self._channels_of,
                answer=_LISTED,
                query=_QUERY,
            ),
            route("GET", "/channels", "All channels.", self._channels, answer=_LISTED, query=_QUERY),
            route(
                "GET",
                "/vhosts/{vhost}/channels",
                "Channels of a vhost.",
                self._channels_of_vhost,
                answer=_LISTED,
                query=_QUERY,
            ),
            route("GET", "/channels/{name}", "One channel.", self._channel, answer=found, query=(COLUMNS, HERE)),
            route("GET", "/consumers", "All consumers.", self._consumers, answer=_LISTED, query=_QUERY),
            route(
                "GET",
                "/consumers/{vhost}",
                "Consumers of a vhost.",
                self._consumers_of_vhost,
                answer=_LISTED,
                query=_QUERY,
            ),
        ]

    def _seen(self, role: str) -> list[ClientConnection]:
        everything = self._management.admin.authoriser.may_monitor(role)
        return [one for one in self._management.connections.all() if everything or one.info.role == role]

    # --- connections --------------------------------------------------------------------------------------------

    async def _all(self, call: Call) -> Items:
        here = [connection_body(one, self._management.node) for one in self._seen(call.role)]
        return here + await self._management.list_elsewhere(call, "/connections")

    async def _connections(self, call: Call) -> Any:
        return answered_list(call.query, await self._all(call))

    async def _of_vhost(self, call: Call) -> Any:
        vhost = vhost_of(self._management.namespace(call))
        return answered_list(call.query, [one for one in await self._all(call) if one["vhost"] == vhost])

    async def _of_user(self, call: Call) -> Any:
        user = call.path["user"]
        return answered_list(call.query, [one for one in await self._all(call) if one["user"] == user])

    def _found(self, call: Call) -> ClientConnection | None:
        found = self._management.connections.find(call.path["name"])
        if found is None:
            return None
        if found.info.role != call.role and not self._management.admin.authoriser.may_monitor(call.role):
            return None  # answers 404 like a missing connection
        return found

    async def _connection(self, call: Call) -> Item:
        found = self._found(call)
        if found is not None:
            return answered_one(call.query, connection_body(found, self._management.node))
        for one in await self._management.list_elsewhere(call, "/connections"):
            if one["name"] == call.path["name"]:
                return answered_one(call.query, one)
        raise not_found()

    async def _close(self, call: Call) -> None:
        found, reason = self._found(call), _reason(call)
        if found is None:
            if await self._management.closed_elsewhere(call, call.path["name"], reason):
                return
            raise not_found()
        if found.info.role != call.role and not self._management.admin.authoriser.is_superuser(call.role):
            raise ManagementError(401, "User not authorised to access object")
        found.close(reason)

    async def _close_of_user(self, call: Call) -> None:
        user = call.path["user"]
        if user != call.role:
            self._management.check_superuser(call.role)
        await self._management.close_all(call, "user", user, _reason(call))

    # --- channels and consumers ---------------------------------------------------------------------------------

    async def _channels_everywhere(self, call: Call) -> Items:
        node = self._management.node
        here = [body for one in self._seen(call.role) for body in channel_bodies(one, node)]
        return here + await self._management.list_elsewhere(call, "/channels")

    async def _channels(self, call: Call) -> Any:
        return answered_list(call.query, await self._channels_everywhere(call))

    async def _channels_of(self, call: Call) -> Any:
        name = call.path["name"]
        found = [one for one in await self._channels_everywhere(call) if one["connection_details"]["name"] == name]
        if not found and self._found(call) is None:
            raise not_found()
        return answered_list(call.query, found)

    async def _channels_of_vhost(self, call: Call) -> Any:
        vhost = vhost_of(self._management.namespace(call))
        found = [one for one in await self._channels_everywhere(call) if one["vhost"] == vhost]
        return answered_list(call.query, found)

    async def _channel(self, call: Call) -> Item:
        name = call.path["name"]
        for one in await self._channels_everywhere(call):
            if one["name"] == name:
                consumers = [
                    consumer
                    for consumer in await self._consumers_everywhere(call)
                    if consumer["channel_details"]["name"] == name
                ]
                more = {"consumer_details": consumers, "deliveries": [], "publishes": []}
                return answered_one(call.query, {**one, **more})
        raise not_found()

    async def _consumers_everywhere(self, call: Call) -> Items:
        here = consumer_bodies(self._seen(call.role), self._management.node)
        return here + await self._management.list_elsewhere(call, "/consumers")

    async def _consumers(self, call: Call) -> Any:
        return answered_list(call.query, await self._consumers_everywhere(call))

    async def _consumers_of_vhost(self, call: Call) -> Any:
        namespace = self._management.namespace(call)
        found = [
            one
            for one in await self._consumers_everywhere(call)
            if namespace_of_vhost(one["queue"]["vhost"]) == namespace
        ]
        return answered_list(call.query, found)
