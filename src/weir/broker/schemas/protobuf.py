"""Protobuf schemas by descriptor (PROTOBUF_NATIVE): reading them, and whether messages of one parse as another.

The definition is Pulsar's: a JSON object with a base64 FileDescriptorSet and the name of the root message. As in
Pulsar the root message must keep its name; beyond that, a field number must keep a type of the same encoding, and
a required field must have been written.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.model.errors import InvalidSchemaError

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
        DescriptorProto,
        FieldDescriptorProto,
    )

# Types by FieldDescriptorProto.Type that encode alike: one can be read as another.
_VARINT, _ZIGZAG, _FIXED32, _FIXED64, _TEXT = "varint", "zigzag", "fixed32", "fixed64", "text"
_ENCODINGS = {
    1: "double",
    2: "float",
    3: _VARINT,
    4: _VARINT,
    5: _VARINT,
    6: _FIXED64,
    7: _FIXED32,
    8: _VARINT,
    9: _TEXT,
    10: "group",
    11: "message",
    12: _TEXT,
    13: _VARINT,
    14: _VARINT,
    15: _FIXED32,
    16: _FIXED64,
    17: _ZIGZAG,
    18: _ZIGZAG,
}
_REQUIRED = 2


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """The root message's full name, and every message by its full name."""

    root: str
    messages: "dict[str, DescriptorProto]"


def parse_protobuf(data: bytes) -> ProtobufSchema:
    """InvalidSchemaError if it is not a definition, or does not hold what it refers to."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        definition = json.loads(data)
        root = definition["rootMessageTypeName"]
        files = FileDescriptorSet.FromString(base64.b64decode(definition["fileDescriptorSet"], validate=True))
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error, DecodeError) as bad:
        raise InvalidSchemaError(f"this is not a Protobuf schema: {type(bad).__name__}: {bad}"[:300]) from None
    messages: dict[str, DescriptorProto] = {}
    for file in files.file:
        messages.update(_named(file.package, file.message_type))
    schema = ProtobufSchema(str(root).removeprefix("."), messages)
    if schema.root not in messages:
        raise InvalidSchemaError(f"the Protobuf schema does not hold its root message {schema.root[:80]!r}")
    for message in messages.values():
        for field in message.field:
            if field.type not in _ENCODINGS:
                raise InvalidSchemaError(f"field {field.name[:80]} has no type")
            if _is_message(field) and field.type_name.removeprefix(".") not in messages:
                raise InvalidSchemaError(f"the Protobuf schema does not hold {field.type_name[:80]!r}")
    return schema


def _named(scope: str, messages: "Iterable[DescriptorProto]") -> "Iterator[tuple[str, DescriptorProto]]":
    for message in messages:
        name = f"{scope}.{message.name}" if scope else message.name
        yield name, message
        yield from _named(name, message.nested_type)


def _is_message(field: "FieldDescriptorProto") -> bool:
    return _ENCODINGS[field.type] in ("message", "group")


def unparsable(reader: ProtobufSchema, writer: ProtobufSchema) -> str | None:
    """Why the reader cannot parse what the writer wrote, or None if it can."""
    if reader.root != writer.root:
        return f"the root message was {writer.root} and became {reader.root}"
    pending = [(reader.root, writer.root)]
    seen = dict.fromkeys(pending)
    while pending:
        reads, writes = pending.pop()
        written = {field.number: field for field in writer.messages[writes].field}
        for field in reader.messages[reads].field:
            source = written.get(field.number)
            problem = _field_problem(field, source)
            if problem is not None:
                return f"{reads}.{field.name}: {problem}"
            if source is not None and _is_message(field):
                pair = (field.type_name.removeprefix("."), source.type_name.removeprefix("."))
                if pair not in seen:
                    seen[pair] = None
                    pending.append(pair)
    return None


def _field_problem(reads: "FieldDescriptorProto", writes: "FieldDescriptorProto | None") -> str | None:
    if writes is None or (reads.label == _REQUIRED and writes.label != _REQUIRED):
        return "it is required, and may not have been written" if reads.label == _REQUIRED else None
    if _ENCODINGS[reads.type] != _ENCODINGS[writes.type]:
        return f"number {reads.number} has another encoding"
    return None
