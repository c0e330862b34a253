"""Values of a result as programs have them (JSON), and as people read them."""

import base64
import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder(decimal_format="number")


def names_of(columns: Sequence[str]) -> list[str]:
    """Names for an object's fields: a column that is called as one before it gets a number; none is lost."""
    found: list[str] = []
    for name in columns:
        unique, number = name, 1
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def as_object(names: Sequence[str], row: Sequence[Any]) -> bytes:
    """A row as an object of JSON."""
    return _ENCODER.encode(dict(zip(names, map(plain, row), strict=True)))


def plain(value: Any) -> Any:  # noqa: PLR0911 (a table)
    """A value of Spark's as JSON has it: numbers are numbers (those that JSON has no number for are the words NaN,
    Infinity and -Infinity), bytes base64, moments ISO 8601 in UTC, structs and maps objects."""
    match value:
        case bool() | int() | str() | None:
            return value
        case float() | Decimal():
            return value if math.isfinite(value) else _no_number(float(value))
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case datetime():
            return _moment(value)
        case date():
            return value.isoformat()
        case dict():
            return {_key(key): plain(one) for key, one in value.items()}
        case tuple() if hasattr(value, "__fields__"):  # a row of Spark's
            return dict(zip(names_of(value.__fields__), map(plain, value), strict=True))
        case list() | tuple():
            return [plain(one) for one in value]
    if hasattr(value, "toPython"):  # a variant
        return plain(value.toPython())
    return str(value)


def shown(value: Any) -> str | int:  # noqa: PLR0911 (a table)
    """The same as people read it; whole numbers stay numbers, and stand to the right."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | str():
            return value
        case float():
            return f"{value:g}" if abs(value) < 1e15 and value == round(value, 6) else repr(value)
        case bytes() | bytearray():
            return _text(bytes(value))
        case datetime():
            return value.replace(tzinfo=None).isoformat(sep=" ")
        case Decimal():
            return str(value)
    found = plain(value)
    return found if isinstance(found, str) else _ENCODER.encode(found).decode()


def json_array(rows: Iterable[bytes]) -> bytes:
    """Objects as one array, as people can read it, too."""
    whole = b"[" + b",".join(rows) + b"]"
    return msgspec.json.format(whole, indent=2)


def _key(key: Any) -> str:
    found = plain(key)
    return found if isinstance(found, str) else json.dumps(found, default=str)


def _moment(value: datetime) -> str:
    """One without a zone is a TIMESTAMP_NTZ, and stays so."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _no_number(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
