"""Typed values of AMQP as text that readers of other protocols understand, and text as values."""

import json
from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from weir.wire.amqp.tables import Field, Table

_AS_TEXT: dict[type, Callable[[Any], bytes]] = {
    bytes: bytes,
    str: lambda text: text.encode("utf-8", "surrogateescape"),
    bool: lambda yes: b"true" if yes else b"false",
    int: lambda number: b"%d" % number,
    float: lambda number: repr(number).encode(),
}


def readable(field: Field) -> bytes | None:
    """Strings and bytes as they are, numbers in decimal, `true` and `false`, arrays and tables as JSON."""
    as_text = _AS_TEXT.get(type(field.value))
    if as_text is not None:
        return as_text(field.value)
    plain = _plain(field)
    return plain.encode() if isinstance(plain, str) else None if plain is None else _json(plain)


def readable_name(name: str) -> str:
    """What is no text in a name is replaced."""
    if name.isascii():
        return name
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return name.encode("utf-8", "replace").decode()


def is_text(field: Field) -> bool:
    """Whether the field is what `text_field` makes of its text."""
    return field.tag == "S" and _is_utf8(str(field.value).encode("utf-8", "surrogateescape"))


def text_field(value: bytes | None) -> Field:
    """A header's value: text is a string, and anything else bytes."""
    if value is None:
        return Field("V", None)
    return Field("S", value.decode()) if _is_utf8(value) else Field("x", bytes(value))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _json(plain: object) -> bytes:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _plain(field: Field) -> object:
    """As JSON knows it: bytes are base64, a decimal is text."""
    match field.value:
        case Table() as table:
            return {readable_name(name): _plain(one) for name, one in table.fields}
        case (int() as scale, int() as unscaled):
            return str(Decimal(unscaled).scaleb(-scale))
        case tuple() as fields:
            return [_plain(one) for one in fields if isinstance(one, Field)]
        case bytes() as data:
            return b64encode(data).decode()
    return field.value
