"""Protobuf schemas of the registry: descriptors, and Spark's types for them."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from pyspark.sql import types as t

from weir.model.errors import ConfigError
from weir.spark.values.columns_of import UNFIT

TIMESTAMP = "google.protobuf.Timestamp"
#: Where Pulsar's PROTOBUF schemas, whose definitions are Avro's, keep the numbers of the fields.
_NUMBERS = "__PARSING_INFO__"
_F = FieldDescriptor
#: Unsigned numbers in the next wider type, so that all of them fit.
_PLAIN: dict[int, t.DataType] = {
    _F.TYPE_DOUBLE: t.DoubleType(),
    _F.TYPE_FLOAT: t.FloatType(),
    _F.TYPE_INT64: t.LongType(),
    _F.TYPE_SINT64: t.LongType(),
    _F.TYPE_SFIXED64: t.LongType(),
    _F.TYPE_UINT64: t.DecimalType(20, 0),
    _F.TYPE_FIXED64: t.DecimalType(20, 0),
    _F.TYPE_INT32: t.IntegerType(),
    _F.TYPE_SINT32: t.IntegerType(),
    _F.TYPE_SFIXED32: t.IntegerType(),
    _F.TYPE_UINT32: t.LongType(),
    _F.TYPE_FIXED32: t.LongType(),
    _F.TYPE_BOOL: t.BooleanType(),
    _F.TYPE_STRING: t.StringType(),
    _F.TYPE_BYTES: t.BinaryType(),
    _F.TYPE_ENUM: t.StringType(),
}


def native_definition(data: str) -> str:
    """The definition of a PROTOBUF_NATIVE schema, which the admin REST gives in base64."""
    return data if data.lstrip().startswith("{") else b64decode(data).decode()


def numbered_definition(properties: Mapping[str, str], about: str) -> str:
    """What a PROTOBUF schema says of its fields' numbers, as a definition of a PROTOBUF_NATIVE schema.

    Only its own: of nested messages and enums the registry has no numbers.
    """
    proto = descriptor_pb2.FileDescriptorProto(name="weir.proto", syntax="proto2")
    message = proto.message_type.add(name="Value")
    try:
        for one in json.loads(properties[_NUMBERS]):
            kind = one["type"].upper()
            if kind in ("MESSAGE", "GROUP"):
                raise _unsupported(about, one["name"], "a message whose fields have no numbers in the registry")
            message.field.add(
                name=one["name"],
                number=int(one["number"]),
                label=one.get("label", "LABEL_OPTIONAL").replace("REQUIRED", "OPTIONAL"),
                type="TYPE_INT32" if kind == "ENUM" else f"TYPE_{kind}",
            )
    except UNFIT as bad:
        raise ConfigError(
            f"the PROTOBUF schema of {about} does not say the numbers of its fields",
            hint="use PROTOBUF_NATIVE, or leave valueFormat out",
        ) from bad
    files = descriptor_pb2.FileDescriptorSet(file=[proto])
    return json.dumps(
        {"fileDescriptorSet": b64encode(files.SerializeToString()).decode(), "rootMessageTypeName": "Value"}
    )


def descriptor_of(definition: str, about: str) -> Descriptor:
    """The message that the definition of a PROTOBUF_NATIVE schema describes."""
    try:
        given = json.loads(definition)
        files = descriptor_pb2.FileDescriptorSet.FromString(b64decode(given["fileDescriptorSet"]))
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(given["rootMessageTypeName"].lstrip("."))
    except UNFIT as bad:
        raise ConfigError(
            f"the schema of {about} has no descriptor that can be read: {bad}",
            hint="leave valueFormat out, and parse the value in the query",
        ) from bad


def message_type(descriptor: Descriptor, about: str, above: tuple[str, ...] = ()) -> t.StructType:
    """A struct of a message's fields; ConfigError if it contains itself."""
    if descriptor.full_name in above:
        raise _unsupported(about, descriptor.full_name, "a message that contains itself")
    above = (*above, descriptor.full_name)
    return t.StructType(
        [t.StructField(field.name, _field_type(field, about, above)) for field in descriptor.fields]
    )


def _field_type(field: FieldDescriptor, about: str, above: tuple[str, ...]) -> t.DataType:
    if is_map(field):
        key, value = entry_of(field)
        return t.MapType(_single_type(key, about, above), _single_type(value, about, above))
    single = _single_type(field, about, above)
    return t.ArrayType(single) if field.is_repeated else single


def _single_type(field: FieldDescriptor, about: str, above: tuple[str, ...]) -> t.DataType:
    message = field.message_type
    if message is None:
        return _PLAIN[field.type]
    return t.TimestampType() if message.full_name == TIMESTAMP else message_type(message, about, above)


def is_map(field: FieldDescriptor) -> bool:
    message: Any = field.message_type
    return message is not None and field.is_repeated and message.GetOptions().map_entry


def entry_of(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """The key and the value of a map."""
    names = field.message_type.fields_by_name
    return names["key"], names["value"]


def _unsupported(about: str, name: str, why: str) -> ConfigError:
    return ConfigError(
        f"{name} in the schema of {about} is {why}, which can be no column",
        hint="leave valueFormat out, and parse the value in the query",
    )
