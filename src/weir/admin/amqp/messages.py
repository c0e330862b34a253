"""Publishing to an exchange and getting messages of a queue over HTTP: for looking and trying, not for work."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from weir.admin.amqp.bodies import GetBody, PublishBody
from weir.admin.amqp.context import Management
from weir.admin.amqp.exchanges import exchange_name
from weir.admin.amqp.listing import Item
from weir.admin.amqp.refusals import bad_request
from weir.admin.amqp.values import as_json, from_json
from weir.admin.routing import Call, Route
from weir.broker.api import Delivery, Queue, QueueConsumer, QueueMessages, Routed
from weir.model.errors import ExchangeNotFoundError, QueueNotFoundError
from weir.model.exchanges import DEFAULT_EXCHANGE, Exchange, ExchangeType
from weir.model.queues import vhost_of
from weir.model.registry import Action
from weir.model.topics import NamespaceName
from weir.wire.amqp.message import message_of, outgoing_of
from weir.wire.amqp.methods import basic
from weir.wire.amqp.outgoing import opened_envelope
from weir.wire.amqp.plain import plain_fields
from weir.wire.amqp.properties import NAMES, PERSISTENT, Properties, decode_properties
from weir.wire.amqp.tables import Table
from weir.wire.formats import messages_of
from weir.wire.messages import encode_message

#: Messages and bytes of payloads that one call gets.
_MOST_MESSAGES = 1_000
_MOST_BYTES = 8 * 1024 * 1024
#: Before the properties in the payload of a header frame.
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
                "Publish a message; whether any queue has got it.",
                self._publish,
                body=PublishBody,
                answer=dict[str, bool],
            ),
            route(
                "POST",
                "/queues/{vhost}/{name}/get",
                "Get messages, and give them back or not.",
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
                continue  # the default exchange names what may not be there
        return found

    # --- getting ------------------------------------------------------------------------------------------------

    async def _get(self, call: Call) -> list[Item]:
        namespace, queues = await self._management.queues_of(call)
        name, body = call.path["name"], call.body
        self._management.check(call.role, Action.CONSUME, namespace, name)
        if body.ackmode not in _ACK_MODES:
            raise bad_request(f"ackmode is none of {', '.join(_ACK_MODES)}")
        if body.encoding not in ("auto", "base64"):
            raise bad_request("Unsupported encoding. Please use auto or base64.")
        if not 0 <= body.count <= _MOST_MESSAGES:
            raise bad_request(f"count is at most {_MOST_MESSAGES}")
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
    """Milliseconds; None if nothing is said."""
    if said is None:
        return None
    text = str(said)
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > _MAX_MS:
        raise bad_request(f"invalid {what} '{text[:40]}': no milliseconds")
    return int(text)


def _more_keys(headers: Mapping[str, Any], name: str) -> Iterator[str]:
    said = headers.get(name)
    if said is None:
        return
    if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
        raise bad_request(f"the header {name} is a list of routing keys")
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
    """Of the names that AMQP knows; others are left out, as RabbitMQ does."""
    found: dict[str, Any] = {}
    for name in NAMES:
        value = said.get(name)
        if value is None:
            continue
        if name == "headers":
            if not isinstance(value, dict):
                raise bad_request("headers are a JSON object")
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
    """As RabbitMQ has them: an empty list if there are none, which `rabbitmqadmin` shows as an empty column."""
    found: Item = {}
    for name in NAMES:
        value = getattr(properties, name)
        if value is not None:
            found[name] = as_json(plain_fields(value) if name == "headers" else value)
    return found or []
