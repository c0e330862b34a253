"""Rows to bytes by a topic's schema: what INSERT and pipelines write where a schema is AVRO or Protobuf.

Row by row, by fastavro and protobuf's runtime: who writes very many rows writes JSON, which Spark itself does.

Rows as Arrow gives them, made into what fastavro writes: by the schema, since a row does not tell a map without
entries from a list, nor which member of a union it has.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from json import loads
from struct import Struct
from typing import Any
from uuid import UUID

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

from weir.model.errors import WireError
from weir.spark.values.protobuf import TIMESTAMP, descriptor_of, entry_of, is_map

Convert = Callable[[Any], Any]

#: What errors call the whole of it.
_ROW = "the row"
#: Unions of these are one column, of the wider type.
_NUMBERS = ({"int", "long"}, {"float", "double"})


def for_avro(schema: Any) -> Convert:
    """For a schema as fastavro has parsed it. ValueError names the part of a row that does not fit."""
    return _of(schema, _ROW, {})


def _of(schema: Any, path: str, named: dict[str, Any]) -> Convert:
    if isinstance(schema, list):
        return _union(schema, path, named)
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    if schema["type"] == "null":
        return _as_it_is
    if "name" in schema:
        named[schema["name"]] = schema
    return _there(_converted(schema, path, named), path)


def _converted(schema: Any, path: str, named: dict[str, Any]) -> Convert:
    """Of a value that is there."""
    match schema["type"]:
        case "record":
            before = "" if path == _ROW else f"{path}."
            parts = {one["name"]: _of(one["type"], before + one["name"], named) for one in schema["fields"]}
            return lambda row: {name: parts[name](value) for name, value in row.items()}
        case "array":
            item = _of(schema["items"], f"an item of {path}", named)
            return lambda values: [item(value) for value in values]
        case "map":
            entry = _of(schema["values"], f"an entry of {path}", named)
            return lambda pairs: {key: entry(value) for key, value in _pairs(pairs)}
        case "enum":
            return lambda value: _symbol(value, schema["symbols"], path)
        case "string" if schema.get("logicalType") == "uuid":
            return lambda value: _uuid(value, path)
    return _as_it_is


def _union(schema: list[Any], path: str, named: dict[str, Any]) -> Convert:
    """A column of its only type, or a struct of its members, of which one is given."""
    members = [one for one in schema if one != "null"]
    convert = [_of(one, path, named) for one in members]
    names = {one if isinstance(one, str) else one["type"] for one in members}
    if len(members) == 1 or any(names <= numbers for numbers in _NUMBERS):
        found = convert[0] if members else _as_it_is
    else:

        def found(value: Any) -> Any:
            given = [
                (at, value[f"member{at}"]) for at in range(len(members)) if value.get(f"member{at}") is not None
            ]
            if len(given) > 1:
                raise ValueError(f"{path} has several members of its union")
            if not given:
                return _null(schema, path)
            at, one = given[0]
            branch, made = members[at], convert[at](one)
            # Two records may have the same fields; their names tell them apart.
            full = branch if isinstance(branch, str) else branch.get("name")
            return (full, made) if full in named and named[full]["type"] == "record" else made

    return lambda value: _null(schema, path) if value is None else found(value)


def _null(schema: list[Any], path: str) -> None:
    if "null" not in schema:
        raise ValueError(f"{path} must not be null")


def _as_it_is(value: Any) -> Any:
    return value


def _there(convert: Convert, path: str) -> Convert:
    def found(value: Any) -> Any:
        if value is None:
            raise ValueError(f"{path} must not be null")
        return convert(value)

    return found


def _pairs(value: Any) -> Any:
    """Arrow gives maps as lists of pairs."""
    return value.items() if isinstance(value, Mapping) else value


def _symbol(value: Any, symbols: list[str], path: str) -> Any:
    if value not in symbols:
        raise ValueError(f"{path} is {value!r}, and none of {', '.join(symbols)}")
    return value


def _uuid(value: Any, path: str) -> str:
    try:
        return str(UUID(str(value)))
    except ValueError:
        raise ValueError(f"{path} is {value!r}, which is no UUID") from None


Row = Mapping[str, Any]
Encode = Callable[[Row], bytes]

#: How plain values are packed, by the kind of their schema.
PACKED = {
    "BOOLEAN": ">?",
    "INT8": ">b",
    "INT16": ">h",
    "INT32": ">i",
    "INT64": ">q",
    "FLOAT": ">f",
    "DOUBLE": ">d",
}
_INTEGERS = frozenset(
    {
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_SINT32,
        FieldDescriptor.TYPE_SINT64,
        FieldDescriptor.TYPE_FIXED32,
        FieldDescriptor.TYPE_FIXED64,
        FieldDescriptor.TYPE_SFIXED32,
        FieldDescriptor.TYPE_SFIXED64,
    }
)


def row_encoder(kind: str, definition: str, about: str) -> Encode:
    """By a schema of the kinds AVRO, PROTOBUF_NATIVE and PROTOBUF; `about` names the topic in errors."""
    return _avro(definition, about) if kind == "AVRO" else _protobuf(definition, about)


def arrow_encoder(kind: str, definition: str, about: str) -> Callable[[Any], Any]:
    """The same of an Arrow array of structs; null where the struct is. Spark wants its types."""

    def encode(rows: pa.Array) -> pa.Array:
        write = row_encoder(kind, definition, about)
        return pa.array([None if row is None else write(row) for row in rows.to_pylist()], pa.binary())

    return encode


def plain_encoder(kind: str) -> Callable[[Any], Any]:
    """Numbers and booleans as Pulsar's plain schemas have them."""

    def encode(values: pa.Array) -> pa.Array:
        write = Struct(PACKED[kind]).pack
        return pa.array([None if value is None else write(value) for value in values.to_pylist()], pa.binary())

    return encode


def _avro(definition: str, about: str) -> Encode:
    schema = parse_schema(loads(definition))
    converted = for_avro(schema)

    def encode(row: Row) -> bytes:
        into = BytesIO()
        try:
            schemaless_writer(into, schema, converted(row))
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as bad:
            raise WireError(f"a row does not fit the schema of {about}: {bad}") from None
        return into.getvalue()

    return encode


def _protobuf(definition: str, about: str) -> Encode:
    descriptor = descriptor_of(definition, about)
    made = GetMessageClass(descriptor)

    def encode(row: Row) -> bytes:
        message = made()
        try:
            _fill(message, descriptor, row)
            return bytes(message.SerializeToString())
        except (ValueError, TypeError, KeyError, AttributeError, EncodeError) as bad:
            raise WireError(f"a row does not fit the schema of {about}: {bad}") from None

    return encode


def _fill(message: Any, descriptor: Descriptor, row: Row) -> None:
    for one in descriptor.oneofs:
        given = [field.name for field in one.fields if row.get(field.name) is not None]
        if len(given) > 1:
            raise ValueError(f"only one of {', '.join(given)} can be given")
    for name, value in row.items():
        field = descriptor.fields_by_name.get(name)
        if field is None or value is None:
            continue
        if is_map(field):
            _fill_map(getattr(message, name), field, dict(value))
        elif field.is_repeated:
            _fill_list(getattr(message, name), field, value)
        elif field.message_type is not None:
            inner = getattr(message, name)
            inner.SetInParent()
            _fill_message(inner, field, value)
        else:
            setattr(message, name, _single(field, value))


def _fill_map(into: Any, field: FieldDescriptor, given: Mapping[Any, Any]) -> None:
    key_field, value_field = entry_of(field)
    for key, value in given.items():
        if value_field.message_type is not None:
            _fill_message(into[_single(key_field, key)], value_field, value)
        else:
            into[_single(key_field, key)] = _single(value_field, value)


def _fill_list(into: Any, field: FieldDescriptor, given: list[Any]) -> None:
    for one in given:
        if field.message_type is not None:
            _fill_message(into.add(), field, one)
        else:
            into.append(_single(field, one))


def _fill_message(into: Any, field: FieldDescriptor, value: Any) -> None:
    if field.message_type.full_name == TIMESTAMP and isinstance(value, datetime):
        into.FromDatetime(value.astimezone(UTC) if value.tzinfo else value)
    else:
        _fill(into, field.message_type, value)


def _single(field: FieldDescriptor, value: Any) -> Any:
    if value is None:
        raise ValueError(f"{field.name} has a null in it")
    if field.enum_type is not None and isinstance(value, str):
        found = field.enum_type.values_by_name.get(value)
        if found is None and not value.lstrip("-").isdecimal():
            raise ValueError(f"{field.name} is {value!r}, and none of {', '.join(field.enum_type.values_by_name)}")
        return int(value) if found is None else found.number
    if isinstance(value, Decimal) and field.type in _INTEGERS:
        return int(value)
    return value
