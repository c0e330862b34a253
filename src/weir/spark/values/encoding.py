"""Rows to bytes by a topic's schema: what INSERT and pipelines write where a schema is AVRO or Protobuf.

Row by row, by fastavro and protobuf's runtime: who writes very many rows writes JSON, which Spark itself does.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from json import loads
from struct import Struct
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

from weir.model.errors import WireError
from weir.spark.values.avro_rows import for_avro
from weir.spark.values.proto_types import TIMESTAMP, descriptor_of, entry_of, is_map

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
