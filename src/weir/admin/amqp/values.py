"""Values of AMQP's tables as JSON, and JSON as such values."""

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from weir.admin.amqp.refusals import bad_request

_I64 = range(-(1 << 63), 1 << 63)
_MOST_DEPTH = 32


def as_json(value: Any) -> Any:
    """Bytes that are no text become base64; a time its seconds since 1970."""
    match value:
        case bytes() | bytearray() | memoryview():
            return _text_of(bytes(value))
        case str():
            return value.encode("utf-8", "replace").decode()
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return float(value)
    if isinstance(value, Mapping):
        return {as_json(str(name)): as_json(one) for name, one in value.items()}
    return [as_json(one) for one in value] if isinstance(value, Sequence) else value


def _text_of(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return base64.b64encode(raw).decode()


def from_json(value: Any, what: str, *, depth: int = 0) -> Any:
    """What a table can hold of it: numbers of 64 bits, and not too deep. ManagementError."""
    if depth > _MOST_DEPTH:
        raise bad_request(f"{what} is too deep")
    if isinstance(value, dict):
        return {name: from_json(one, what, depth=depth + 1) for name, one in value.items()}
    if isinstance(value, list):
        return [from_json(one, what, depth=depth + 1) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and value not in _I64:
        raise bad_request(f"{what}: {value} has more than 64 bits")
    return value
