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


def _avro(kind: Any) -> Any:
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


def _shape(kind: Any) -> str:
    if isinstance(kind, dict):
        return str(kind.get("logicalType") or kind.get("type"))
    return kind if isinstance(kind, str) else ""
