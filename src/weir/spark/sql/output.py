"""The rows of a query as messages: a key, a JSON value, and the schema that makes the topic a table in turn."""

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from weir.model.errors import SqlError
from weir.model.message import CANCEL, DELAY_ID, DELIVER_AFTER, DELIVER_AT
from weir.spark.sql.queries import quoted
from weir.wire.pulsar.translation import SCHEMA_VERSION

#: Columns that are not part of the value, and what a sink calls them.
_KEY, _HEADERS, _TIME = ("key", "__raw_key", "__key"), ("headers", "__headers"), ("__timestamp",)
#: Headers that hold where a message was, and nowhere else: by which version of the topic's schema it was written,
#: and a delay, which is over.
_OF_THE_SOURCE = (SCHEMA_VERSION, *(name.decode() for name in (DELIVER_AT, DELIVER_AFTER, DELAY_ID, CANCEL)))
_PLAIN: dict[type[t.DataType], str] = {
    t.BooleanType: "boolean",
    t.ByteType: "int",
    t.ShortType: "int",
    t.IntegerType: "int",
    t.LongType: "long",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.DecimalType: "double",
    t.StringType: "string",
}


@dataclass(frozen=True, slots=True)
class Messages:
    """What a sink writes. `schema`: the value's, as the registry has it; None if the value is written as it is."""

    frame: DataFrame
    schema: str | None


def messages(frame: DataFrame, record: str) -> Messages:
    """`record`: the name of the record in the schema."""
    columns, definition = message_columns(frame.schema, record)
    return Messages(frame.select(*columns), definition)


def message_columns(schema: t.StructType, record: str) -> tuple[list[Column], str | None]:
    """What is selected of rows with these columns to write them, and the value's schema."""
    _check_names(schema)
    columns = [field for field in schema if not is_about(field.name)]
    written = [column.alias(name) for column, name in written_beside(schema)]
    if [field.name for field in columns] == ["value"] and isinstance(columns[0].dataType, _RAW):
        return [f.col("value"), *written], None
    if not columns:
        raise SqlError("there is nothing to be written", hint="select columns besides the key")
    fields = [part for field in columns for part in _fields(field, quoted(field.name), field.name)]
    twice = [name for name, count in Counter(name.lower() for name, _, _ in fields).items() if count > 1]
    if twice:
        raise SqlError(f"two columns are called {twice[0]}", hint="give them names with AS")
    value = f.to_json(f.struct(*(column.alias(name) for name, column, _ in fields))).alias("value")
    definition = {
        "type": "record",
        "name": _record_name(record),
        "fields": [{"name": name, "type": ["null", kind], "default": None} for name, _, kind in fields],
    }
    return [value, *written], json.dumps(definition)


_RAW = (t.StringType, t.BinaryType)


def is_about(name: str, own: Collection[str] = ()) -> bool:
    """Whether a column is about a message rather than in its value. `own`: the fields that values have, in small
    letters: these are what they are there, whatever they are called."""
    return name.lower() not in own and (name.startswith("__") or name.lower() in (*_KEY, *_HEADERS))


def written_beside(schema: t.StructType, own: Collection[str] = ()) -> list[tuple[Column, str]]:
    """Key, headers and time, and the names that a sink has for them."""
    found = []
    fields = {field.name.lower(): field for field in schema if is_about(field.name, own)}
    for names, called in ((_KEY, "key"), (_HEADERS, "headers"), (_TIME, "timestamp")):
        field = next((fields[name] for name in names if name in fields), None)
        if field is None or (called == "timestamp" and not isinstance(field.dataType, t.TimestampType)):
            continue
        column = f.col(quoted(field.name))
        if field.name.lower() == "__headers":
            column = f.filter(column, lambda header: ~header["key"].isin(*_OF_THE_SOURCE))
        if called == "key" and isinstance(field.dataType, t.StructType):
            column = f.to_json(column)
        elif called == "key" and not isinstance(field.dataType, _RAW):
            column = column.cast("string")
        found.append((column, called))
    return found


def _check_names(schema: t.StructType) -> None:
    counted = Counter(field.name.lower() for field in schema)
    for field in schema:
        if counted[field.name.lower()] > 1:
            raise SqlError(f"two columns are called {field.name}", hint="give them names with AS")
        if not (field.name.isascii() and field.name.isidentifier()):
            raise SqlError(f"{field.name!r} cannot be a field of a message", hint="give it a name with AS")


def _fields(field: t.StructField, path: str, name: str) -> list[tuple[str, Column, Any]]:
    """A column as fields of the value: each one's name, what is written, and its type in the schema. The parts of
    a struct, such as a window, become fields of their own."""
    if isinstance(field.dataType, t.StructType):
        inner = [(one, f"{path}.{quoted(one.name)}", f"{name}_{one.name}") for one in field.dataType]
        return [part for one in inner for part in _fields(*one)]
    column, kind = _field(f.col(path), field.dataType)
    return [(name, column, kind)]


def _field(column: Column, kind: t.DataType) -> tuple[Column, Any]:
    match kind:
        case t.TimestampType():
            return f.unix_millis(column), {"type": "long", "logicalType": "timestamp-millis"}
        case t.DateType():
            return f.unix_date(column), {"type": "int", "logicalType": "date"}
        case t.BinaryType():
            return f.base64(column), "string"
        case t.ArrayType() | t.MapType():
            return f.to_json(column), "string"
    plain = next((word for one, word in _PLAIN.items() if isinstance(kind, one)), None)
    return (column.cast("string"), "string") if plain is None else (column, plain)


def _record_name(name: str) -> str:
    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in name)
    return plain if plain[:1].isalpha() else f"s_{plain}"
