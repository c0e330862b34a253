"""The messages that PROTOBUF_NATIVE and PROTOBUF schemas of the registry describe, as classes."""

import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

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
