"""Bytes and values by one schema of the registry: both ways, for every kind that functions know."""

import io
import json
import struct
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from weir.functions.protocol import SchemaVersion
from weir.wire.key_values import KIND as KEY_VALUE
from weir.wire.protobuf_schemas import NUMBERS, native_class, numbered_class

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]

#: As Pulsar's clients write them.
_NUMBERS = {
    "INT8": ">b",
    "INT16": ">h",
    "INT32": ">i",
    "INT64": ">q",
    "FLOAT": ">f",
    "DOUBLE": ">d",
    "BOOLEAN": ">?",
}
#: The REST tells definitions of these in base64.
_BINARY = ("PROTOBUF_NATIVE", KEY_VALUE)


def plain(value: Any) -> bytes | None:
    """Without a schema: bytes and text as they are, and anything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def definition_of(schema: SchemaVersion) -> bytes:
    """As the registry has it."""
    text = schema.definition
    if schema.kind not in _BINARY or text.lstrip().startswith("{"):
        return text.encode()
    return b64decode(text)


def decoder(writer: SchemaVersion, latest: SchemaVersion) -> Decode:
    """Of what was written by the one, read as the other. What there is nothing known of stays bytes."""
    kind = latest.kind
    if kind == "JSON":
        return json.loads
    if kind == "STRING":
        return bytes.decode
    if kind in _NUMBERS:
        layout = struct.Struct(_NUMBERS[kind])
        return lambda data: layout.unpack(data)[0]
    if kind == "AVRO":
        from fastavro import parse_schema, schemaless_reader

        written, read = parse_schema(json.loads(writer.definition)), parse_schema(json.loads(latest.definition))
        return lambda data: schemaless_reader(io.BytesIO(data), written, read)
    message = _message(latest)
    if message is None:
        return lambda data: data
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

    return lambda data: MessageToDict(message.FromString(data), preserving_proto_field_name=True)


def encoder(latest: SchemaVersion) -> Encode:
    kind = latest.kind
    if kind in _NUMBERS:
        layout = struct.Struct(_NUMBERS[kind])
        return layout.pack
    if kind == "AVRO":
        from fastavro import parse_schema, schemaless_writer

        schema = parse_schema(json.loads(latest.definition))

        def write(value: Any) -> bytes:
            into = io.BytesIO()
            schemaless_writer(into, schema, value)
            return into.getvalue()

        return write
    if kind == "JSON":
        return lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    message = _message(latest)
    if message is None:
        return lambda value: plain(value) or b""
    from google.protobuf.json_format import ParseDict

    return lambda value: ParseDict(value, message()).SerializeToString()


def _message(schema: SchemaVersion) -> Any:
    """The class of Protobuf's messages; None if these are none, or their fields have no numbers."""
    if schema.kind == "PROTOBUF_NATIVE":
        return native_class(definition_of(schema))
    if schema.kind == "PROTOBUF" and NUMBERS in schema.properties:
        return numbered_class(schema.properties)
    return None
