"""Types of Arrow and of Avro, each as the other has it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

_TO_ARROW = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
}


def columns_of(schema: Any) -> list[tuple[str, Any]]:
    """A Parquet file's columns; what Avro has no plain type for becomes text."""
    return [(field.name, _avro(field.type)) for field in schema]


def _avro(kind: Any) -> Any:  # noqa: PLR0911 - a table of types
    types = pa.types
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind):
        return "int" if kind.bit_width < 32 or (kind.bit_width == 32 and types.is_signed_integer(kind)) else "long"
    if types.is_floating(kind):
        return "double" if kind.bit_width == 64 else "float"
    if types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    return "string"


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, Any]]) -> Any:
    """Rows as a table: columns of the schema have its types, the others those of their values."""
    fields = []
    names = {name: None for row in rows for name in row}
    typed = {name: _TO_ARROW.get(_shape(kind)) for name, kind in columns}
    for name in dict.fromkeys([*typed, *names]):
        values = [row.get(name) for row in rows]
        kind = typed.get(name)
        array = pa.array(values, kind) if kind is not None else pa.array(values)
        fields.append((name, array))
    return pa.table([array for _, array in fields], names=[name for name, _ in fields])


def odd_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, Any]]) -> dict[int, str]:
    """Rows that make no table with those before them, by their number, and why. Of values that are alike one is
    tried: a look at each row is enough, however many of them are odd."""
    kinds = {name: _TO_ARROW.get(_shape(kind)) for name, kind in columns}
    found: dict[int, str] = {}
    fine: dict[str, list[Any]] = {}
    known: dict[tuple[str, Any], str] = {}
    for at, row in enumerate(rows):
        for name, value in row.items():
            if value is None:
                continue
            like = (name, _likeness(value))
            if like not in known:
                tried = [*fine.get(name, ()), value]
                known[like] = _refusal(tried, kinds.get(name))
                if not known[like]:
                    fine[name] = tried
            if known[like]:
                found[at] = known[like]
                break
    return found


def _refusal(values: list[Any], kind: Any) -> str:
    """Why they make no column; empty if they do."""
    try:
        pa.array(values, kind)
    except (pa.ArrowException, OverflowError) as bad:
        return str(bad)
    return ""


def _likeness(value: Any) -> Any:
    """What is the same of values that go with the same columns."""
    match value:
        case dict():
            return tuple((name, _likeness(one)) for name, one in value.items())
        case list():
            return "list", tuple(dict.fromkeys(map(_likeness, value)))
        case int() if not isinstance(value, bool):
            return "int", (value.bit_length() > 31) + (value.bit_length() > 63)
    return type(value).__name__


def _shape(kind: Any) -> str:
    if isinstance(kind, dict):
        return str(kind.get("logicalType") or kind.get("type"))
    return kind if isinstance(kind, str) else ""
