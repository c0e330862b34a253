"""Keys and values that lie one behind the other, each behind its length: what KEY_VALUE schemas are, and say.

With INLINE both are in the message's value; with SEPARATED the key is the message's own.

The messages that PROTOBUF_NATIVE and PROTOBUF schemas of the registry describe, as classes.
"""

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from struct import error as TooShortError
from typing import Any

from weir.model.errors import WireError

KIND = "KEY_VALUE"
#: Before each of the two; -1 says that there is none.
LENGTH = Struct(">i")
#: As Pulsar's clients name the way in which key and value are written; INLINE unless said.
_ENCODING = "kv.encoding.type"


@dataclass(frozen=True, slots=True)
class PartSchema:
    """The schema of the keys, or of the values: type, definition and properties as the registry has them."""

    kind: str
    definition: bytes
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KeyValueSchema:
    """The two schemas of one version, and whether both parts lie in the value."""

    key: PartSchema
    value: PartSchema
    inline: bool


def split(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Key and value; WireError if this is not the two."""
    key, at = _part(data, 0)
    value, at = _part(data, at)
    if at != len(data):
        raise WireError("there are bytes behind key and value")
    return key, value


def joined(key: bytes | None, value: bytes | None) -> bytes:
    return _sized(key) + _sized(value)


def split_schema(definition: bytes, properties: Mapping[str, str]) -> KeyValueSchema:
    """What a KEY_VALUE schema of the registry says; WireError if it is none."""
    try:
        parts = [
            PartSchema(
                properties.get(f"{name}.schema.type", "BYTES"),
                said or b"",
                json.loads(properties.get(f"{name}.schema.properties") or "{}") or {},
            )
            for name, said in zip(("key", "value"), split(definition), strict=True)
        ]
    except ValueError as bad:
        raise WireError(f"this is no KEY_VALUE schema: {bad}") from None
    inline = properties.get(_ENCODING, "INLINE").upper() != "SEPARATED"
    return KeyValueSchema(parts[0], parts[1], inline)


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    """What is behind the length there (-1: null), and where it ends."""
    try:
        (length,) = LENGTH.unpack_from(data, at)
    except TooShortError:
        raise WireError("key and value end too early") from None
    begin = at + LENGTH.size
    if length < -1 or begin + length > len(data):
        raise WireError("a part is longer than the whole")
    return (None, begin) if length < 0 else (data[begin : begin + length], begin + length)


def _sized(part: bytes | None) -> bytes:
    return LENGTH.pack(-1) if part is None else LENGTH.pack(len(part)) + part


#: Where Pulsar's PROTOBUF schemas, whose definitions are Avro's, keep the numbers of the fields.
NUMBERS = "__PARSING_INFO__"


def native_class(definition: bytes) -> Any:
    """Of a PROTOBUF_NATIVE schema: JSON with a set of descriptors, and the name of the message."""
    from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]

    given = json.loads(definition)
    files = descriptor_pb2.FileDescriptorSet.FromString(b64decode(given["fileDescriptorSet"]))
    return _class(files.file, given["rootMessageTypeName"].lstrip("."))


def numbered_class(properties: Mapping[str, str]) -> Any:
    """Of a PROTOBUF schema; KeyError if it does not say the numbers of its fields. The registry has none of nested
    messages, which are bytes, nor of enums, which are numbers."""
    from google.protobuf import descriptor_pb2

    proto = descriptor_pb2.FileDescriptorProto(name="weir.proto", syntax="proto2")
    message = proto.message_type.add(name="Value")
    for one in json.loads(properties[NUMBERS]):
        kind = one["type"].upper()
        shown = {"ENUM": "TYPE_INT32", "MESSAGE": "TYPE_BYTES"}.get(kind, f"TYPE_{kind}")
        label = one.get("label", "LABEL_OPTIONAL").replace("REQUIRED", "OPTIONAL")
        message.field.add(name=one["name"], number=int(one["number"]), label=label, type=shown)
    return _class([proto], "Value")


def _class(files: Any, name: str) -> Any:
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
