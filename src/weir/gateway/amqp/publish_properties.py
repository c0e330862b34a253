"""Properties of a publish that concern the broker: routing keys (CC, BCC), TTL, delay, and direct reply-to.

Publishers repeat these with every message, so `Facts` are computed once per exchange, routing key and properties.

Direct reply-to sends replies to the requesting channel without a queue. A client consumes from
`amq.rabbitmq.reply-to` and names it in the requests that it publishes; the broker replaces it with the reply name
of the client's channel. Messages to that name on the default exchange, from any connection of any broker, go to
the channel.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from weir.gateway.amqp.errors import precondition_failed
from weir.model.exchanges import Exchange, ExchangeType
from weir.model.ids import value
from weir.wire.amqp.message import NULL_VALUE, message_of
from weir.wire.amqp.methods import basic
from weir.wire.amqp.properties import PERSISTENT, Properties, encode_properties
from weir.wire.amqp.tables import Field, Table, plain_fields
from weir.wire.formats.messages import MessageTemplate

REPLY_TO = "amq.rabbitmq.reply-to"
_PREFIX = f"{REPLY_TO}."


def is_reply_name(name: str) -> bool:
    return name.startswith(_PREFIX)


def reply_name(expected: str) -> str:
    """The queue name that clients use for a reply consumer with this internal name."""
    return _PREFIX + expected


def expected_name(name: str) -> str:
    """The internal name of the reply consumer behind a queue name."""
    return name.removeprefix(_PREFIX)


CC, BCC, DELAY = "CC", "BCC", "x-delay"
#: The longest timer of RabbitMQ, in milliseconds.
_MAX_EXPIRY_MS = (1 << 32) - 1
#: The longest delay, in milliseconds: about ten thousand years.
_MAX_DELAY_MS = 1 << 48
_NUMBER = re.compile(r"[+-]?[0-9]+")
#: Names of field types in RabbitMQ's error texts.
_TYPES = {
    "S": "longstr",
    "I": "signedint",
    "t": "bool",
    "F": "table",
    "A": "array",
    "l": "long",
    "L": "long",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "i": "unsignedint",
    "f": "float",
    "d": "double",
    "D": "decimal",
    "T": "timestamp",
    "x": "binary",
    "V": "void",
}


@value
class Facts:
    """Facts shared by all publishes with the same exchange, routing key and properties."""

    exchange: Exchange
    #: The routing key, and those of CC and BCC.
    keys: tuple[str, ...]
    headers: Mapping[str, Any]
    persistent: bool
    expiration_ms: int | None
    #: 0: no delay.
    delay_ms: int
    user_id: str | None
    wants_reply: bool
    #: The properties as stored, and their encoding.
    properties: Properties
    raw: bytes
    #: None if the stored format depends on the body.
    template: MessageTemplate | None


class LazyHeaders(Mapping[str, Any]):
    """The headers of a message as exchanges compare them; decoded on first use, since most exchanges need none."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._plain: dict[str, Any] | None = None

    def _fields(self) -> dict[str, Any]:
        if self._plain is None:
            self._plain = plain_fields(self._table)
        return self._plain

    def __getitem__(self, name: str) -> Any:
        return self._fields()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields())

    def __len__(self) -> int:
        return len(self._fields())


_NO_HEADERS: Mapping[str, Any] = {}


def facts_of(exchange: Exchange, method: basic.Publish, properties: Properties, raw: bytes) -> Facts:
    """Compute the facts of a publish; 406 (precondition failed) for invalid properties."""
    expiration_ms = None if properties.expiration is None else _expiration_ms(properties.expiration)
    keys: tuple[str, ...] = (method.routing_key,)
    headers: Mapping[str, Any] = _NO_HEADERS
    delay_ms = 0
    kept = properties
    table = properties.headers
    if table is not None:
        headers = LazyHeaders(table)
        keys += (*_more_keys(table, CC), *_more_keys(table, BCC))
        if exchange.type is ExchangeType.DELAYED:
            delay_ms = _delay_ms(table)
        changed = table
        if delay_ms:  # negative as in the delayed message plugin; CC and BCC stay for routing when it is due
            changed = _replaced(table, DELAY, -delay_ms)
        elif BCC in table:
            changed = table.without(BCC)
        if changed is not table:
            kept = replace(properties, headers=changed)
    if kept is not properties:
        raw = encode_properties(kept)
    template = None
    if table is None or NULL_VALUE not in table:
        template = MessageTemplate(message_of(method, kept, b"", 0, raw))
    return Facts(
        exchange,
        keys,
        headers,
        properties.delivery_mode == PERSISTENT,
        expiration_ms,
        delay_ms,
        properties.user_id,
        properties.reply_to == REPLY_TO,
        kept,
        raw,
        template,
    )


def with_reply_to(facts: Facts, method: basic.Publish, name: str) -> Facts:
    """The same facts with the reply name of the publisher's channel as reply_to."""
    properties = replace(facts.properties, reply_to=name)
    raw = encode_properties(properties)
    template = None if facts.template is None else MessageTemplate(message_of(method, properties, b"", 0, raw))
    return replace(facts, properties=properties, raw=raw, template=template)


def _expiration_ms(said: str) -> int:
    found = _NUMBER.match(said)
    if found is None:
        raise precondition_failed(f"invalid expiration '{said}': no_integer")
    if found.end() != len(said):
        raise precondition_failed(f"invalid expiration '{said}': {{leftover_string,\"{said[found.end() :]}\"}}")
    number = int(found[0])
    if number > _MAX_EXPIRY_MS:
        raise precondition_failed(f"invalid expiration '{said}': {{value_too_big,{number}}}")
    if number < 0:
        raise precondition_failed(f"invalid expiration '{said}': {{value_negative,{number}}}")
    return number


def _more_keys(table: Table, name: str) -> Iterator[str]:
    field = table.field(name)
    if field is None:
        return
    if field.tag != "A" or not isinstance(field.value, tuple):
        raise _bad_header(name, field)
    for one in field.value:
        if not isinstance(one, Field) or not isinstance(one.value, str):
            raise _bad_header(name, field)
        yield one.value


def _bad_header(name: str, field: Field) -> Exception:
    return precondition_failed(f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(field)}}}')


def type_name(field: Field | None) -> str:
    """RabbitMQ's name for the type of a field."""
    return "undefined" if field is None else _TYPES.get(field.tag, "unknown")


def _delay_ms(table: Table) -> int:
    """The x-delay header; 0 (no delay) unless it is a number above 0."""
    said = table.get(DELAY)
    if isinstance(said, str) and _NUMBER.fullmatch(said) and len(said) < 20:
        said = int(said)
    if isinstance(said, bool) or not isinstance(said, int | float) or not said > 0:
        return 0
    return int(min(said, _MAX_DELAY_MS))


def _replaced(table: Table, name: str, number: int) -> Table:
    """A copy of the table with `number` as the value of field `name`."""
    return Table.of([(known, number if known == name else field) for known, field in table.fields])
