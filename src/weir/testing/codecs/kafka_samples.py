"""Kafka's messages out of dice, from the table: of every API and version, for fuzzing and comparing."""

from collections.abc import Callable
from random import Random
from typing import Any

from weir.testing.codecs.fuzzing import Codec
from weir.wire.kafka import codec
from weir.wire.kafka import codec as consumer
from weir.wire.kafka.classes import CLASSES, Message
from weir.wire.kafka.frames import RequestHeader, decode_request_header, request_frame
from weir.wire.kafka.schema.layout import Field, Layout, Structure
from weir.wire.kafka.schema.table import APIS, LAYOUTS

#: The bits of every integer, and whether it has a sign.
_INTEGERS = {
    "int8": (8, True),
    "int16": (16, True),
    "int32": (32, True),
    "int64": (64, True),
    "uint16": (16, False),
    "uint32": (32, False),
}
_EMPTY = {"string": "", "bytes": b"", "records": b""}
_TEXTS = ("", "orders", "größe", "a.b-c_d", "x" * 126, "y" * 127, "z" * 300)


def _bytes(dice: Random) -> bytes:
    return dice.randbytes(dice.choice((0, 1, 20, 126, 127, 700)))


_MAKERS: dict[str, Callable[[Random], Any]] = {
    "string": lambda dice: dice.choice(_TEXTS),
    "bytes": _bytes,
    "records": _bytes,
    "uuid": lambda dice: dice.randbytes(16),
    "bool": lambda dice: dice.random() < 0.5,
    "float64": lambda dice: dice.random(),
}


def integers(kind: str) -> tuple[int, int]:
    """The lowest and the highest integer of that kind."""
    bits, signed = _INTEGERS[kind]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def sample_message(layout: Layout, dice: Random) -> Message:
    """A message with all fields of all versions."""
    return _structure(layout, layout.body, CLASSES[layout.name], dice)


def _structure(layout: Layout, structure: Structure, kind: type[Message], dice: Random) -> Message:
    return kind(**{field.name: _value(layout, field, dice) for field in structure.fields})


def _value(layout: Layout, field: Field, dice: Random) -> Any:
    absent = field.struct is not None and not field.array
    if (field.nullable is not None or absent) and dice.random() < 0.2:
        return None
    if field.tag is not None and dice.random() < 0.5:
        return [] if field.default == () else field.default
    if not field.array:
        return _one(layout, field, dice)
    long = field.struct is None and dice.random() < 0.05
    return [_one(layout, field, dice) for _ in range(130 if long else dice.randrange(3))]


def _one(layout: Layout, field: Field, dice: Random) -> Any:
    if field.struct is not None:
        return _structure(layout, field.struct, vars(CLASSES[layout.name])[field.struct.name], dice)
    if field.kind in _MAKERS:
        return _MAKERS[field.kind](dice)
    low, high = integers(field.kind)
    return dice.choice((0, 1, -1 if low else 2, low, high, dice.randint(low, high)))


def in_version(layout: Layout, version: int, message: Message) -> Message:
    """What a version keeps of a message: other fields are their defaults, and a null it does not know is empty."""
    return _kept(layout.body, version, message)


def _kept(structure: Structure, version: int, message: Message) -> Message:
    kept = {
        field.name: _kept_value(field, version, getattr(message, field.name))
        for field in structure.fields
        if version in field.versions
    }
    return type(message)(**kept)


def _kept_value(field: Field, version: int, value: Any) -> Any:
    if value is None:
        absent = field.struct is not None and not field.array
        if absent or (field.nullable is not None and version in field.nullable):
            return None
        return [] if field.array else _EMPTY[field.kind]
    if field.struct is None:
        return value
    if field.array:
        return [_kept(field.struct, version, element) for element in value]
    return _kept(field.struct, version, value)


# --- bytes ------------------------------------------------------------------------------------------------------


def sample_request(dice: Random) -> bytes:
    """A request's frame without its size."""
    api = dice.choice(tuple(APIS.values()))
    version = dice.choice(tuple(api.versions))
    header = RequestHeader(api.key, version, dice.getrandbits(31), dice.choice((None, *_TEXTS)))
    message = in_version(api.request, version, sample_message(api.request, dice))
    return b"".join(request_frame(header, message))[4:]


def decode_any_request(data: bytes) -> Message:
    header, body = decode_request_header(data)
    return codec.decode_request(header.api_key, header.api_version, body)


def sample_response(dice: Random) -> bytes:
    """A response's body, behind a byte for its key and one for its version."""
    api = dice.choice(tuple(APIS.values()))
    version = dice.choice(tuple(api.versions))
    message = in_version(api.response, version, sample_message(api.response, dice))
    return bytes((api.key, version)) + b"".join(codec.encode_response(api.key, version, message))


def decode_any_response(data: bytes) -> Message:
    key, version = data[:2] if len(data) > 1 else (0, 0)
    return codec.decode_response(key, version, data[2:])


def sample_subscription(dice: Random) -> bytes:
    layout = LAYOUTS["ConsumerProtocolSubscription"]
    version = dice.choice(tuple(layout.versions))
    message: Any = in_version(layout, version, sample_message(layout, dice))
    return consumer.encode_subscription(version, message)


KAFKA_CODECS = [
    Codec("kafka request", sample_request, decode_any_request),
    Codec("kafka response", sample_response, decode_any_response),
    Codec("kafka subscription", sample_subscription, consumer.decode_subscription),
]
