"""The properties of a content: which of the fourteen are there, and their values.

    flags u16 | the values that the flags name, in their order

The highest bit is the first property's. The lowest would say that more flags follow, which no class of AMQP 0-9-1
has: it is refused, as is the one above it, which stands for nothing.
"""

from functools import lru_cache
from struct import Struct
from struct import error as struct_error

from weir.model.errors import AmqpError
from weir.model.ids import Buffer, value
from weir.wire.amqp.frames import ReplyCode
from weir.wire.amqp.tables import Table

_FLAGS = Struct(">H")
_SIZE = Struct(">I")
_TIMESTAMP = Struct(">Q")
_UNKNOWN = 0b11
#: Everything else is a short string.
_TABLES, _OCTETS, _TIMESTAMPS = (2,), (3, 4), (9,)


@value
class Properties:
    """None is what the publisher did not say. Strings may be any bytes: those that are no UTF-8 are escaped."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    #: Seconds since 1970.
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


NAMES: tuple[str, ...] = Properties.__slots__  # type: ignore[attr-defined]
NO_PROPERTIES = b"\x00\x00"
PERSISTENT = 2


@lru_cache(256)
def _present(flags: int) -> tuple[int, ...]:
    return tuple(index for index in range(14) if flags >> (15 - index) & 1)


def _syntax(what: str) -> AmqpError:
    return AmqpError(what, code=ReplyCode.SYNTAX_ERROR)


def decode_properties(data: Buffer) -> Properties:
    """Flags and values; AmqpError if they are malformed, or something follows them."""
    raw = bytes(data)
    found: list[object] = [None] * 14
    try:
        (flags,) = _FLAGS.unpack_from(raw)
        if flags & _UNKNOWN:
            raise _syntax("properties have flags that no property has")
        at = 2
        for index in _present(flags):
            if index in _OCTETS:
                found[index] = raw[at]
                at += 1
            elif index in _TIMESTAMPS:
                (found[index],) = _TIMESTAMP.unpack_from(raw, at)
                at += 8
            elif index in _TABLES:
                start = at + 4
                at = start + _SIZE.unpack_from(raw, at)[0]
                if at > len(raw):
                    raise _syntax("a table of headers is longer than its frame")
                found[index] = Table(raw[start:at])
            else:
                start = at + 1
                at = start + raw[at]
                found[index] = str(raw[start:at], "utf-8", "surrogateescape")
    except (struct_error, IndexError):
        raise _syntax("properties end within a value") from None
    if at != len(raw):
        raise _syntax(f"properties of {len(raw)} bytes have values of {at}")
    return Properties(*found)  # type: ignore[arg-type]


def encode_properties(properties: Properties) -> bytes:
    flags = 0
    parts = [b""]
    for index, name in enumerate(NAMES):
        content = getattr(properties, name)
        if content is None:
            continue
        flags |= 1 << (15 - index)
        try:
            if index in _OCTETS:
                parts.append(bytes((content,)))
            elif index in _TIMESTAMPS:
                parts.append(_TIMESTAMP.pack(content))
            elif index in _TABLES:
                parts += (_SIZE.pack(len(content.raw)), content.raw)
            else:
                text = content.encode("utf-8", "surrogateescape")
                parts += (bytes((len(text),)), text)
        except (struct_error, ValueError, TypeError, AttributeError) as bad:
            raise AmqpError(
                f"{content!r} cannot be the property {name}: {bad}", code=ReplyCode.INTERNAL_ERROR
            ) from bad
    parts[0] = _FLAGS.pack(flags)
    return b"".join(parts)
