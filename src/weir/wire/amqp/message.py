"""AMQP's messages as messages of every protocol, and such as AMQP's.

What AMQP says and others do not is in headers that they can read and hand on: a property under `amqp-` and its
name, the headers table as text. Those of its fields that are more than text are also in `amqp-headers`, as a
table: where the text of one is still the same when the message comes back, the field has its type again. What
others say and AMQP does not is in fields under `weir-`, and read back from them. Nobody's word is invented.
"""

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.model.messages import Message
from weir.model.policies import PRIORITY
from weir.wire.amqp.content import Outgoing, envelope, native_of, outgoing, outgoing_native
from weir.wire.amqp.methods import basic
from weir.wire.amqp.properties import Properties, encode_properties
from weir.wire.amqp.tables import MAX_VALUES, Field, Table, is_text, readable, readable_name, text_field

#: The field that is the message's key.
KEY = "key"
ORDERING_KEY = "weir-ordering-key"
#: The whole of an event time that is no full second.
EVENT_MS = "weir-event-ms"
#: True where the body is empty because the message has no value.
NULL_VALUE = "weir-null-value"
#: Headers whose names are too long for AMQP: an array of name, value, name, value ...
LONG_HEADERS = "weir-long-headers"
#: How many headers had no room in a frame.
OMITTED = "weir-headers-omitted"
#: The fields of the headers table that are more than text.
TYPED = "amqp-headers"

_TEXTS = {
    "amqp-content-type": "content_type",
    "amqp-content-encoding": "content_encoding",
    "amqp-correlation-id": "correlation_id",
    "amqp-reply-to": "reply_to",
    "amqp-expiration": "expiration",
    "amqp-message-id": "message_id",
    "amqp-type": "type",
    "amqp-user-id": "user_id",
    "amqp-app-id": "app_id",
    "amqp-cluster-id": "cluster_id",
}
_NUMBERS = {"amqp-delivery-mode": "delivery_mode", PRIORITY: "priority", "amqp-timestamp": "timestamp"}
_LIMITS = {"delivery_mode": 1 << 8, "priority": 1 << 8, "timestamp": 1 << 64}
#: A broker vouches for the user of a message: other protocols' headers cannot make it do so.
_NOT_BACK = "user_id"
#: Names that mean something here: a publisher's own fields of these names go back as fields.
_OURS = frozenset((*_TEXTS, *_NUMBERS, TYPED, KEY, ORDERING_KEY, EVENT_MS, NULL_VALUE, LONG_HEADERS, OMITTED))
_KEYS = (KEY, ORDERING_KEY)
_MAX_EVENT_MS = (1 << 63) - 1
#: What the field that counts omitted headers takes at most.
_OMITTED_BYTES = 40
_ANY_BYTES = 1 << 32

_Headers = list[tuple[str, bytes | None]]
_Fields = list[tuple[str, Field]]
#: By the name and text that fields have for other protocols.
_Typed = dict[tuple[str, bytes | None], _Fields]


# --- from AMQP ------------------------------------------------------------------------------------------------


def message_of(
    publish: basic.Publish, properties: Properties, body: Buffer, publish_ms: int, header: bytes | None = None
) -> Message:
    """What was published, as it is stored. `header`: the bytes of the properties, if they are at hand."""
    raw = encode_properties(properties) if header is None else header
    native = native_of(envelope(publish.exchange, publish.routing_key), raw)
    read = _Reading(properties, empty=not len(body))
    return Message(
        read.key,
        None if read.is_null else body,
        read.headers,
        read.event_ms,
        publish_ms,
        read.ordering_key,
        native,
    )


class _Reading:
    """What the properties say to other protocols."""

    def __init__(self, properties: Properties, *, empty: bool) -> None:
        self._empty = empty
        self.key: bytes | None = None
        self.ordering_key: bytes | None = None
        self.is_null = False
        self.headers: _Headers = []
        self.event_ms: int | None = None
        stamp = properties.timestamp
        if stamp is not None and stamp * 1000 <= _MAX_EVENT_MS:
            self.event_ms = stamp * 1000
        typed = () if properties.headers is None else self._fields(properties.headers, stamp)
        for name, attribute in _TEXTS.items():
            text = getattr(properties, attribute)
            if text is not None:
                self.headers.append((name, text.encode("utf-8", "surrogateescape")))
        for name, attribute in _NUMBERS.items():
            number = getattr(properties, attribute)
            if number is not None and (attribute != "timestamp" or self.event_ms is None):
                self.headers.append((name, b"%d" % number))
        if typed:
            self.headers.append((TYPED, Table.of(typed).raw))

    def _fields(self, table: Table, stamp: int | None) -> _Fields:
        """Make headers of the fields; those which their text does not tell."""
        untold: _Fields = []
        for name, field in table.fields:
            taken = self._is_our_own(name, field, stamp)
            if taken:
                told = name not in _KEYS or is_text(field)
            else:
                self.headers.append((readable_name(name), readable(field)))
                told = is_text(field) and readable_name(name) == name and name not in _OURS
            if not told:
                untold.append((name, field))
        return untold

    def _is_our_own(self, name: str, field: Field, stamp: int | None) -> bool:
        """Whether the field says something that a message has a place for, which it is put into."""
        match name:
            case "key" if self.key is None:
                self.key = readable(field)
                return self.key is not None
            case "weir-ordering-key" if self.ordering_key is None:
                self.ordering_key = readable(field)
                return self.ordering_key is not None
            case "weir-event-ms" if isinstance(field.value, int):
                exact = field.value
                if exact <= _MAX_EVENT_MS and exact // 1000 == stamp:
                    self.event_ms = exact
                    return True
            case "weir-null-value" if field.value is True and self._empty:
                self.is_null = True
                return True
            case "weir-long-headers" if isinstance(field.value, tuple):
                return self._long_headers(field.value)
        return False

    def _long_headers(self, found: tuple[object, ...]) -> bool:
        fields = [one for one in found if isinstance(one, Field)]
        if len(fields) % 2 or any(len(readable(name) or b"") <= 255 for name in fields[::2]):
            return False
        self.headers += [
            (readable_name(str(name.value)), readable(value))
            for name, value in zip(fields[::2], fields[1::2], strict=True)
        ]
        return True


# --- to AMQP --------------------------------------------------------------------------------------------------


def outgoing_of(message: Message, routing_key: str, most_bytes: int = _ANY_BYTES) -> Outgoing:
    """The message for AMQP's consumers: as it came, if it came by AMQP. Else it was published to the default
    exchange, with the queue's name as its `routing_key`. `most_bytes` of properties: headers that have no room in
    them, from the first such on, are counted instead."""
    native = outgoing_native(message)
    if native is not None:
        return native
    properties = properties_of(message, most_bytes)
    body = b"" if message.value is None else message.value
    return outgoing(envelope("", routing_key), encode_properties(properties), body)


def properties_of(message: Message, most_bytes: int = _ANY_BYTES) -> Properties:
    """What a message of another protocol says, as properties."""
    told, typed = _typed(message)
    found: dict[str, str | int] = {}
    fields: _Fields = []
    long: list[Field] = []
    for name, mine in ((KEY, message.key), (ORDERING_KEY, message.ordering_key)):
        if mine is not None:
            fields.append(_again(typed, name, mine) or (name, text_field(mine)))
    if message.value is None:
        fields.append((NULL_VALUE, Field("t", True)))
    for name, value in message.headers:
        known = _again(typed, name, value)
        if known is not None:
            fields.append(known)
        elif (name == TYPED and value == told) or _is_property(found, name, value):
            continue
        elif len(name.encode("utf-8", "replace")) > 255:
            long += (Field("S", readable_name(name)), text_field(value))
        else:
            fields.append((readable_name(name), text_field(value)))
    if long:
        fields.append((LONG_HEADERS, Field("A", tuple(long))))
    event_ms = message.event_ms
    if event_ms is not None and "timestamp" not in found:  # a header says one that is no moment in milliseconds
        if event_ms >= 0:
            found["timestamp"] = event_ms // 1000
        if event_ms < 0 or event_ms % 1000:
            fields.append((EVENT_MS, Field("l", event_ms)))
    said = Properties(**found)  # type: ignore[arg-type]
    table = _fitting(fields, most_bytes - len(encode_properties(said)) - 4)
    return Properties(**found, headers=table) if table else said  # type: ignore[arg-type]


def _typed(message: Message) -> tuple[bytes | None, _Typed]:
    """The header that tells of fields which are more than text, and those fields."""
    for header, value in message.headers:
        if header == TYPED and value is not None:
            found: _Typed = {}
            try:
                for name, field in Table(value).fields:
                    found.setdefault((readable_name(name), readable(field)), []).append((name, field))
            except WireError:
                continue
            return value, found
    return None, {}


def _again(typed: _Typed, name: str, value: bytes | None) -> tuple[str, Field] | None:
    """The field that was this header, if there is one; it is not there a second time."""
    known = typed.get((name, value))
    return known.pop(0) if known else None


def _is_property(found: dict[str, str | int], name: str, value: bytes | None) -> bool:
    """Whether the header is a property that can have this value, which it gets."""
    if value is None:
        return False
    text = _TEXTS.get(name)
    if text is not None:
        if text in found or text == _NOT_BACK or len(value) > 255:
            return False
        found[text] = str(value, "utf-8", "surrogateescape")
        return True
    number = _NUMBERS.get(name)
    if number is None or number in found or not value.isdigit() or len(value) > 20:
        return False
    if int(value) >= _LIMITS[number]:
        return False
    found[number] = int(value)
    return True


def _fitting(fields: _Fields, most_bytes: int) -> Table | None:
    """As many as a frame holds, and as a table may have."""
    left, values = most_bytes, MAX_VALUES
    for at, (name, field) in enumerate(fields):
        left -= len(Table.of([(name, field)]).raw)
        values -= _count(field)
        if left < (_OMITTED_BYTES if at < len(fields) - 1 else 0) or values < 1:
            return Table.of([*fields[:at], (OMITTED, Field("I", len(fields) - at))])
    return Table.of(fields) if fields else None


def _count(field: Field) -> int:
    match field.value:
        case Table() as table:
            return 1 + sum(_count(one) for _, one in table.fields)
        case tuple() as fields:
            return 1 + sum(_count(one) for one in fields if isinstance(one, Field))
    return 1
