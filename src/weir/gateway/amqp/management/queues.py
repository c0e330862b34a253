"""Queue routes (list, get, put, delete, purge), and routes to publish and get messages over HTTP.

Publishing and getting messages over HTTP is for inspection and tests, not for production traffic.
"""

import asyncio
import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from weir.admin.overviews import OverviewBody, Overviews
from weir.broker.api.consumers import Delivery
from weir.broker.api.queues import (
    NamespaceQueues,
    Queue,
    QueueConsumer,
    QueueCounts,
    QueueMessages,
    QueueOutline,
    Routed,
)
from weir.broker.api.stats import TopicStats
from weir.gateway.amqp.management.bodies import GetBody, PublishBody, QueueBody
from weir.gateway.amqp.management.connections import consumer_bodies
from weir.gateway.amqp.management.errors import ManagementError, bad_request
from weir.gateway.amqp.management.exchanges import exchange_name
from weir.gateway.amqp.management.listing import (
    COLUMNS,
    LIST_QUERY,
    Item,
    Wanted,
    answered_one,
    as_json,
    from_json,
    is_true,
)
from weir.gateway.amqp.management.service import HERE, Counted, LoadedTopics, Management, totals
from weir.model.errors import ExchangeNotFoundError, QueueNotFoundError, WeirError
from weir.model.exchanges import DEFAULT_EXCHANGE, Exchange, ExchangeType
from weir.model.queues import QUEUE_SUBSCRIPTION, QueueDeclaration, topic_of_queue, vhost_of
from weir.model.registry import Action
from weir.model.topics import NamespaceName
from weir.rest.http import Response
from weir.rest.routes import Call, Query, Route
from weir.wire.amqp.content import opened_envelope
from weir.wire.amqp.message import message_of, outgoing_of
from weir.wire.amqp.methods import basic
from weir.wire.amqp.properties import NAMES, PERSISTENT, Properties, decode_properties
from weir.wire.amqp.tables import Table, plain_fields
from weir.wire.formats.messages import encode_message
from weir.wire.formats.table import messages_of

#: Maximum queues in one answer; for more, clients must request pages.
_MOST = 10_000
#: Queues opened concurrently for one list.
_AT_ONCE = 32
_QUERY = (*LIST_QUERY, HERE)
#: Columns available without opening the queue.
_NAMES = frozenset(("name", "vhost"))


class _Named(NamedTuple):
    namespace: NamespaceName
    name: str


class QueueRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[Route]:
        route, one = self._management.route, "/queues/{vhost}/{name}"
        listed: Any = list[Any] | dict[str, Any]
        return [
            route("GET", "/queues", "All queues.", self._all, answer=listed, query=_QUERY),
            route("GET", "/queues/{vhost}", "Queues of a vhost.", self._of_vhost, answer=listed, query=_QUERY),
            route("GET", one, "One queue.", self._get, answer=dict[str, Any], query=(COLUMNS,)),
            route("PUT", one, "Declare a queue.", self._put, body=QueueBody, body_optional=True, creates=True),
            route(
                "DELETE",
                one,
                "Delete a queue with its messages and bindings.",
                self._delete,
                query=(
                    Query("if-empty", str, "true: only if it has no messages"),
                    Query("if-unused", str, "true: only if it has no consumers"),
                ),
            ),
            route("DELETE", f"{one}/contents", "Purge: delete all ready messages.", self._purge),
        ]

    # --- lists --------------------------------------------------------------------------------------------------

    async def _all(self, call: Call) -> Any:
        return await self._list(call, self._management.namespaces(call.role))

    async def _of_vhost(self, call: Call) -> Any:
        return await self._list(call, [self._management.namespace(call)])

    async def _list(self, call: Call, namespaces: Sequence[NamespaceName]) -> Any:
        """List queues. Opens only the queues on the requested page, unless the sort column needs all of them."""
        wanted = Wanted(call.query)
        total, found = 0, []
        elsewhere = await self._in_memory_elsewhere(call)
        for namespace in namespaces:
            names = await self._names(call, namespace, elsewhere.get(vhost_of(namespace), ()))
            total += len(names)
            found += [_Named(namespace, name) for name in names if wanted.takes(name)]
        filtered = len(found)
        if not wanted.by_name:
            items = wanted.ordered(await self._described(call.role, found))
            return wanted.answer(wanted.cut(items), filtered=filtered, total=total)
        if wanted.sort == "name":
            found.sort(key=lambda one: one.name, reverse=wanted.reverse)
        elif wanted.reverse:
            found.reverse()
        on_page = wanted.cut(found)
        if wanted.columns and _NAMES.issuperset(wanted.columns):
            items = [{"name": as_json(one.name), "vhost": vhost_of(one.namespace)} for one in on_page]
        else:
            items = await self._described(call.role, on_page)
        return wanted.answer(items, filtered=filtered, total=total)

    async def _names(self, call: Call, namespace: NamespaceName, elsewhere: Sequence[str]) -> Sequence[str]:
        """Names of all stored queues and of all brokers' in-memory queues. If another broker asks (`here`), only
        the in-memory queues of this one."""
        queues = await self._management.queues.open(namespace)
        names = await queues.names()
        if is_true(call.query.get("here")):
            found = [(name, queues.find(name)) for name in names]
            return [name for name, queue in found if queue is not None and queue.declaration.in_memory]
        return sorted({*names, *elsewhere}) if elsewhere else names

    async def _in_memory_elsewhere(self, call: Call) -> dict[str, list[str]]:
        """Names of the in-memory queues of other brokers, by vhost."""
        found: dict[str, list[str]] = {}
        for item in await self._management.list_elsewhere(call, "/queues", columns="name,vhost"):
            found.setdefault(item["vhost"], []).append(item["name"])
        return found

    async def _described(self, role: str, named: Sequence[_Named]) -> list[Item]:
        """Describe the queues that still exist, in the given order, without opening stored queues."""
        if len(named) > _MOST:
            raise ManagementError(
                400, f"{len(named)} queues are too many for one answer", hint="request pages, sorted by name"
            )
        turn = asyncio.Semaphore(_AT_ONCE)

        async def found_one(wanted: _Named) -> Queue | QueueOutline | WeirError:
            async with turn:
                queues = await self._management.queues.open(wanted.namespace)
                try:
                    known = queues.find(wanted.name)
                    return known or await queues.outline(wanted.name) or await queues.look(wanted.name)
                except WeirError as failed:  # for example, its broker does not answer
                    return failed

        found = await asyncio.gather(*map(found_one, named))
        loaded = LoadedTopics(self._management.admin.broker.loaded)
        topics = [topic for one in found if isinstance(one, QueueOutline) for topic in one.topics]
        overviews = await Overviews(self._management.admin).of(role, topics)
        items = []
        for wanted, queue in zip(named, found, strict=True):
            if isinstance(queue, QueueNotFoundError):
                continue
            if isinstance(queue, WeirError):
                items.append(_bare(wanted, self._management.node, queue))
            elif isinstance(queue, QueueOutline):
                parts = [overviews[topic] for topic in queue.topics if topic in overviews]
                items.append(self._item(wanted.namespace, queue, _counts_of(parts), loaded))
            else:
                items.append(await self._body(wanted.namespace, queue, loaded))
        return items

    # --- one ----------------------------------------------------------------------------------------------------

    async def _get(self, call: Call) -> Item:
        namespace, queues = await self._management.queues_of(call)
        queue = await queues.look(call.path["name"])
        item = await self._body(namespace, queue, LoadedTopics(self._management.admin.broker.loaded))
        consumers = [
            one
            for one in consumer_bodies(self._management.connections.all(), self._management.node)
            if one["queue"] == {"name": item["name"], "vhost": item["vhost"]}
        ]
        more = {"consumer_details": consumers, "deliveries": [], "incoming": [], **self._owner(queue)}
        return answered_one(call.query, {**item, **more})

    def _owner(self, queue: Queue) -> Item:
        """The connection that owns an exclusive queue, if it is a connection of this broker."""
        for one in self._management.connections.all() if queue.connection else ():
            if one.info.id == queue.connection:
                info = one.info
                details = {"name": info.name, "peer_host": info.peer_host, "peer_port": info.peer_port}
                return {"owner_pid_details": details}
        return {}

    async def _body(self, namespace: NamespaceName, queue: Queue, loaded: LoadedTopics) -> Item:
        return self._item(namespace, queue, await queue.counts(), loaded)

    def _item(
        self, namespace: NamespaceName, queue: Queue | QueueOutline, counts: QueueCounts, loaded: LoadedTopics
    ) -> Item:
        declared = queue.declaration
        stats = [] if declared.in_memory else loaded.stats(topic_of_queue(namespace, declared.name))
        policy = queue.policy
        item: Item = {
            "name": as_json(declared.name),
            "vhost": vhost_of(namespace),
            "type": queue.rules.kind.value,
            "durable": declared.durable,
            "auto_delete": declared.auto_delete,
            "exclusive": declared.exclusive,
            "arguments": as_json(declared.arguments),
            "node": self._management.node,
            "state": "running",
            "consumers": counts.consumers,
            "consumer_utilisation": 1.0 if counts.consumers and not counts.ready else 0.0,
            "consumer_capacity": 1.0 if counts.consumers and not counts.ready else 0.0,
            **totals(counts.ready, counts.unacked),
            "policy": None if policy is None else policy.name,
            "operator_policy": None,
            "effective_policy_definition": {} if policy is None else as_json(policy.definition),
            "memory": 0,
            "exclusive_consumer_tag": None,
            "single_active_consumer_tag": None,
            "head_message_timestamp": None,
        }
        return {**item, **_stored(stats)}

    async def _put(self, call: Call) -> Response | None:
        _, queues = await self._management.queues_of(call)
        name, body = call.path["name"], call.body or QueueBody()
        known = await _is_there(queues, name)
        arguments = from_json(body.arguments, "arguments")
        await queues.declare(
            call.role,
            QueueDeclaration(name, durable=body.durable, auto_delete=body.auto_delete, arguments=arguments),
        )
        return None if known else Response(201)

    async def _delete(self, call: Call) -> None:
        namespace, queues = await self._management.queues_of(call)
        name = call.path["name"]
        self._management.check_configure(call.role, namespace, name)
        await queues.look(name)
        await queues.delete(
            call.role,
            name,
            if_unused=is_true(call.query["if-unused"]),
            if_empty=is_true(call.query["if-empty"]),
        )

    async def _purge(self, call: Call) -> None:
        namespace, queues = await self._management.queues_of(call)
        self._management.check(call.role, Action.CONSUME, namespace, call.path["name"])
        await (await queues.look(call.path["name"])).purge()


async def _is_there(queues: NamespaceQueues, name: str) -> bool:
    try:
        await queues.look(name)
    except QueueNotFoundError:
        return False
    return True


def _bare(named: _Named, node: str, failed: WeirError) -> Item:
    """The item of a queue that is not available now."""
    name, vhost = as_json(named.name), vhost_of(named.namespace)
    return {"name": name, "vhost": vhost, "node": node, "state": "down", "reason": failed.what}


def _counts_of(parts: Sequence[OverviewBody]) -> QueueCounts:
    """Counts of a queue that is not open on this broker, from topic overviews."""
    ready = unacked = consumers = 0
    for part in parts:
        queue = part.subscriptions.get(QUEUE_SUBSCRIPTION)
        if queue is None:  # no consumer has used it yet
            ready += part.messages
        else:
            ready += max(0, queue.msgBacklog - queue.unackedMessages)
            unacked += queue.unackedMessages
            consumers += len(queue.consumers)
    return QueueCounts(ready, unacked, consumers)


def _stored(stats: Sequence[TopicStats]) -> Item:
    """Statistics of a stored queue from its topic, or its partitions, on this broker."""
    counted = Counted()
    held = 0
    for part in stats:
        counted.add(part)
        held += sum(one.backlog_bytes for one in part.subscriptions if one.name == QUEUE_SUBSCRIPTION)
    return {
        "message_stats": counted.body(),
        "message_bytes": held,
        "message_bytes_ready": held,
        "message_bytes_unacknowledged": 0,
        "message_bytes_persistent": held,
        "message_bytes_ram": 0,
    }


#: Maximum messages and payload bytes of one get call.
_MOST_MESSAGES = 1_000
_MOST_BYTES = 8 * 1024 * 1024
#: Bytes before the properties in the payload of a header frame.
_CONTENT_BYTES = 12
_NUMBERS = {"delivery_mode": 1 << 8, "priority": 1 << 8, "timestamp": 1 << 63}
_MAX_MS = (1 << 32) - 1
_ACK_MODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")


class MessageRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[Route]:
        route = self._management.route
        return [
            route(
                "POST",
                "/exchanges/{vhost}/{name}/publish",
                "Publish a message; returns whether it was routed to a queue.",
                self._publish,
                body=PublishBody,
                answer=dict[str, bool],
            ),
            route(
                "POST",
                "/queues/{vhost}/{name}/get",
                "Get messages, and requeue, acknowledge or reject them.",
                self._get,
                body=GetBody,
                answer=list[dict[str, Any]],
            ),
        ]

    # --- publishing ---------------------------------------------------------------------------------------------

    async def _publish(self, call: Call) -> Mapping[str, bool]:
        namespace, table = await self._management.exchanges_of(call)
        name, body = exchange_name(call), call.body
        if name != DEFAULT_EXCHANGE:
            self._management.check(call.role, Action.PRODUCE, namespace, name)
        try:
            table.check_publish(call.role, name)
            exchange = table.get(name)
            table.check_key(call.role, exchange, body.routing_key, Action.PRODUCE)
        except ExchangeNotFoundError as missing:
            where = f"no exchange '{name}' in vhost '{vhost_of(namespace)}'"
            raise bad_request(f"404 NOT_FOUND - {where}") from missing
        said = _properties(body.properties)
        headers = {} if said.headers is None else plain_fields(said.headers)
        keys = (body.routing_key, *_more_keys(headers, "CC"), *_more_keys(headers, "BCC"))
        now_ms = self._management.admin.clock.wall_ms()
        messages = _messages(exchange, body, said, headers, now_ms)
        if messages.deliver_at_ms is not None:
            queues = [await (await self._management.queues.open(namespace)).delayed(name)]
        else:
            queues = await self._targets(call, namespace, table.route(name, keys, headers))
        taken = [queue.publish(messages) for queue in queues]
        for answer in taken:
            await answer
        return {"routed": bool(taken)}

    async def _targets(self, call: Call, namespace: NamespaceName, routed: Routed) -> list[Queue]:
        queues = await self._management.queues.open(namespace)
        found = []
        for name in routed.queues:
            if routed.by_name:
                self._management.check(call.role, Action.PRODUCE, namespace, name)
            try:
                found.append(await queues.look(name))
            except QueueNotFoundError:
                continue  # the default exchange may name a queue that does not exist
        return found

    # --- getting ------------------------------------------------------------------------------------------------

    async def _get(self, call: Call) -> list[Item]:
        namespace, queues = await self._management.queues_of(call)
        name, body = call.path["name"], call.body
        self._management.check(call.role, Action.CONSUME, namespace, name)
        if body.ackmode not in _ACK_MODES:
            raise bad_request(f"invalid ackmode; use one of {', '.join(_ACK_MODES)}")
        if body.encoding not in ("auto", "base64"):
            raise bad_request("Unsupported encoding. Please use auto or base64.")
        if not 0 <= body.count <= _MOST_MESSAGES:
            raise bad_request(f"count must be between 0 and {_MOST_MESSAGES}")
        queue = await queues.look(name)
        getter = await queue.getter(call.role)
        try:
            return await self._taken(queue, getter, body)
        finally:
            await getter.close()

    async def _taken(self, queue: Queue, getter: QueueConsumer, body: GetBody) -> list[Item]:
        found: list[Item] = []
        ranges: list[tuple[int, int]] = []
        size = 0
        while len(found) < body.count and size < _MOST_BYTES:
            delivery = await getter.take()
            if delivery is None:
                break
            offset, item = _item(queue.declaration.name, delivery, body)
            item["message_count"] = (await queue.counts()).ready
            ranges.append((offset, offset + 1))
            found.append(item)
            size += item["payload_bytes"]
        match body.ackmode:
            case "ack_requeue_false":
                getter.ack(ranges)
            case "reject_requeue_false":
                getter.reject(ranges)
            case _:
                getter.requeue(ranges)
        return found


def _messages(
    exchange: Exchange, body: PublishBody, said: Properties, headers: Mapping[str, Any], now_ms: int
) -> QueueMessages:
    publish = basic.Publish(exchange.name, body.routing_key)
    delay_ms = _whole(headers.get("x-delay"), "x-delay") if exchange.type is ExchangeType.DELAYED else None
    if not delay_ms and said.headers is not None and "BCC" in said.headers:
        kept = {name: getattr(said, name) for name in NAMES}
        said = Properties(**{**kept, "headers": said.headers.without("BCC")})
    encoded = encode_message(message_of(publish, said, _payload(body), now_ms))
    expiration = None if said.expiration is None else _whole(said.expiration, "expiration")
    return QueueMessages(
        [encoded],
        said.delivery_mode == PERSISTENT,
        now_ms + delay_ms if delay_ms else None,
        {} if expiration is None else {0: expiration},
    )


def _whole(said: Any, what: str) -> int | None:
    """Parse milliseconds; None if absent."""
    if said is None:
        return None
    text = str(said)
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > _MAX_MS:
        raise bad_request(f"invalid {what} '{text[:40]}': use a number of milliseconds up to {_MAX_MS}")
    return int(text)


def _more_keys(headers: Mapping[str, Any], name: str) -> Iterator[str]:
    said = headers.get(name)
    if said is None:
        return
    if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
        raise bad_request(f"the header {name} must be a list of routing keys")
    yield from said


def _payload(body: PublishBody) -> bytes:
    match body.payload_encoding:
        case "string":
            return body.payload.encode("utf-8", "replace")
        case "base64":
            try:
                return base64.b64decode(body.payload, validate=True)
            except (binascii.Error, ValueError):
                raise bad_request("the payload is not base64") from None
    raise bad_request(f"unsupported_encoding {body.payload_encoding[:40]}", hint="use string or base64")


def _properties(said: Mapping[str, Any]) -> Properties:
    """Convert a JSON object to AMQP properties; as in RabbitMQ, unknown names are ignored."""
    found: dict[str, Any] = {}
    for name in NAMES:
        value = said.get(name)
        if value is None:
            continue
        if name == "headers":
            if not isinstance(value, dict):
                raise bad_request("headers must be a JSON object")
            found[name] = Table.of(from_json(value, "headers"))
        elif name in _NUMBERS:
            found[name] = _number(name, value)
        elif not isinstance(value, str):
            raise bad_request(f"not_string {name}")
        elif len(value.encode("utf-8", "replace")) > 255:
            raise bad_request(f"{name} has more than 255 bytes")
        else:
            found[name] = value
    return Properties(**found)


def _number(name: str, value: Any) -> int:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) >= _NUMBERS[name]:
        raise bad_request(f"not_int {name}")
    return int(text)


def _item(queue: str, delivery: Delivery, body: GetBody) -> tuple[int, Item]:
    """The one message of a delivery, and its offset."""
    batch = delivery.batch
    index = 0 if not delivery.wanted else (delivery.wanted & -delivery.wanted).bit_length() - 1
    messages = messages_of(batch)
    outgoing = outgoing_of(messages[index if len(messages) > 1 else 0], queue)
    exchange, routing_key = opened_envelope(outgoing.envelope)
    payload = bytes(outgoing.body)
    shown = payload if body.truncate is None else payload[: max(0, body.truncate)]
    text, encoding = _shown(shown, body.encoding)
    return batch.base_offset + index, {
        "payload_bytes": len(payload),
        "redelivered": bool(delivery.redelivered),
        "exchange": exchange,
        "routing_key": as_json(routing_key),
        "message_count": 0,
        "properties": _shown_properties(decode_properties(outgoing.header[_CONTENT_BYTES:])),
        "payload": text,
        "payload_encoding": encoding,
    }


def _shown(payload: bytes, encoding: str) -> tuple[str, str]:
    if encoding == "auto":
        try:
            return payload.decode(), "string"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(payload).decode(), "base64"


def _shown_properties(properties: Properties) -> Item | list[Any]:
    """Properties in RabbitMQ's format: [] if empty, which `rabbitmqadmin` shows as an empty column."""
    found: Item = {}
    for name in NAMES:
        value = getattr(properties, name)
        if value is not None:
            found[name] = as_json(plain_fields(value) if name == "headers" else value)
    return found or []
