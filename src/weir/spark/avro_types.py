"""Avro definitions of the registry as Spark's types, and as the steps by which a value is read."""

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as t

from weir.model.errors import ConfigError

#: Steps, as the compiled loop knows them: how a field's bytes are read.
NULL, BOOLEAN, INTEGER, FLOAT, DOUBLE, BYTES = range(6)

_PLAIN: dict[str, tuple[int, t.DataType]] = {
    "null": (NULL, t.NullType()),
    "boolean": (BOOLEAN, t.BooleanType()),
    "int": (INTEGER, t.IntegerType()),
    "long": (INTEGER, t.LongType()),
    "float": (FLOAT, t.FloatType()),
    "double": (DOUBLE, t.DoubleType()),
    "bytes": (BYTES, t.BinaryType()),
    "string": (BYTES, t.StringType()),
}
_LOGICAL: dict[tuple[str, str], t.DataType] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
}


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record. `null_branch`: which branch of its union is null, -1 if it is no union."""

    name: str
    step: int
    kind: t.DataType
    null_branch: int = -1
    #: An enum's words, in their order.
    symbols: tuple[str, ...] = ()
    #: How many of its units are a millisecond; for timestamps.
    logical: str = ""


def fields_of(definition: str, about: str) -> list[AvroField]:
    """The fields of a record; ConfigError names one whose type cannot be a column yet."""
    try:
        parsed = json.loads(definition)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ConfigError(f"the schema of {about} is no record", hint="leave valueFormat out and cast the value")
    return [_field(one, about) for one in parsed.get("fields", ())]


def _field(given: dict[str, Any], about: str) -> AvroField:
    name, kind, null_branch = str(given.get("name")), given.get("type"), -1
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        if len(kind) != 2 or len(others) != 1:
            raise _unsupported(about, name, kind)
        null_branch, kind = kind.index("null"), others[0]
    logical = ""
    if isinstance(kind, dict) and kind.get("type") == "enum":
        return AvroField(name, INTEGER, t.StringType(), null_branch, tuple(kind.get("symbols", ())))
    if isinstance(kind, dict):
        logical, kind = str(kind.get("logicalType", "")), kind.get("type")
    if not isinstance(kind, str) or kind not in _PLAIN or kind == "null":
        raise _unsupported(about, name, kind)
    step, plain = _PLAIN[kind]
    found = _LOGICAL.get((kind, logical))
    return AvroField(name, step, found or plain, null_branch, logical=logical if found else "")


def _unsupported(about: str, name: str, kind: object) -> ConfigError:
    return ConfigError(
        f"field {name} of the schema of {about} has type {json.dumps(kind)}, which is no column yet",
        hint="leave valueFormat out, and parse the value in the query",
    )


def spark_type(fields: list[AvroField]) -> t.StructType:
    return t.StructType([t.StructField(field.name, field.kind) for field in fields])
