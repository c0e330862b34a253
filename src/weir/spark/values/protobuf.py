"""Protobuf messages as columns: by a compiled loop where a message is flat, else by protobuf's runtime.

Flat is a message of single numbers, texts and bytes. Repeated fields, maps, messages in messages, and fields of
which one excludes another are parsed by the runtime, message by message; columns are built of all of them.

Protobuf schemas of the registry: descriptors, and Spark's types for them.

The compiled loop that reads protobuf messages without repeated or nested fields.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]
from pyspark.sql import types as t

from weir.model.errors import ConfigError
from weir.spark.records.decoder import binary_array
from weir.spark.records.kernels import Bytes, Ints, bytes_of, compiled, inlined
from weir.spark.values.columns import UNFIT, Decode, Decoded, spans_of, struct

#: How a field comes: protobuf's wire types.
VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5


@inlined
def varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """64 bits, the highest as a sign, and the place after them; that is -1 if there are none before `end`."""
    low = middle = high = 0
    for index in range(10):
        if at >= end:
            return 0, -1
        byte = data[at] & 0xFF
        at += 1
        if index < 4:
            low |= (byte & 0x7F) << (7 * index)
        elif index < 8:
            middle |= (byte & 0x7F) << (7 * index - 28)
        else:
            high |= (byte & 0x7F) << (7 * index - 56)
        if byte < 0x80:
            high &= 0xFF
            return ((high - 256 if high > 127 else high) << 56) | (middle << 28) | low, at
    return 0, -1


@inlined
def fixed(data: Bytes, at: int, size: int) -> int:
    """A number of `size` bytes, little-endian; of eight, the highest bit is a sign."""
    found = 0
    for index in range(size):
        byte = data[at + index] & 0xFF
        found |= (byte - 256 if index == 7 and byte > 127 else byte) << (8 * index)
    return found


@inlined
def slot_of(fields: Ints, number: int, wire: int, guess: int) -> int:
    """Which field has this number and wire type, -1 if none; fields mostly come in their order."""
    if guess < len(fields) and fields[guess, 0] == number:
        return guess if fields[guess, 1] == wire else -1
    for index in range(len(fields)):
        if fields[index, 0] == number:
            return index if fields[index, 1] == wire else -1
    return -1


@compiled
def scan_proto(data: Bytes, spans: Ints, fields: Ints, found: Ints, sizes: Ints) -> int:
    """Read the messages at `spans` (begin and end; a begin of -1 is a null). `fields` has numbers and wire types.

    `found[field, row]` is the number, the bits of the float, or where the bytes begin; `sizes[field, row]` their
    size, -1 where the field is not there. Answers the first row that has something else in it, -1 if none has.
    """
    for row in range(len(spans)):
        at, end = spans[row, 0], spans[row, 1]
        for field in range(len(fields)):
            found[field, row] = 0
            sizes[field, row] = -1
        guess = 0
        while 0 <= at < end:
            began = at
            tag, at = varint(data, at, end)
            number, wire = tag >> 3, tag & 7
            if at < 0 or at - began > 5 or number <= 0 or number > 0x1FFFFFFF:
                return row
            value, size = 0, 0
            if wire == VARINT:
                value, at = varint(data, at, end)
            elif wire == SIZED:
                began = at
                size, at = varint(data, at, end)
                if at < 0 or at - began > 5 or size < 0 or size > end - at:
                    return row
                value = at
                at += size
            elif wire in (FIXED64, FIXED32):
                size = 8 if wire == FIXED64 else 4
                if size > end - at:
                    return row
                value = fixed(data, at, size)
                at += size
            else:  # groups, and what is none
                return row
            if at < 0:
                return row
            slot = slot_of(fields, number, wire, guess)
            if slot >= 0:
                found[slot, row] = value
                sizes[slot, row] = size
                guess = slot + 1
    return -1


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


_WIRES = {
    _F.TYPE_DOUBLE: FIXED64,
    _F.TYPE_FIXED64: FIXED64,
    _F.TYPE_SFIXED64: FIXED64,
    _F.TYPE_FLOAT: FIXED32,
    _F.TYPE_FIXED32: FIXED32,
    _F.TYPE_SFIXED32: FIXED32,
    _F.TYPE_STRING: SIZED,
    _F.TYPE_BYTES: SIZED,
}
_UNSIGNED_64 = (_F.TYPE_UINT64, _F.TYPE_FIXED64)
_UNSIGNED_32 = (_F.TYPE_UINT32, _F.TYPE_FIXED32)
_US = 1_000_000


def proto_decoder(definition: str, about: str, kind: Any) -> Decode:
    """From binary values to a column of `kind`."""
    descriptor = descriptor_of(definition, about)
    parse: Callable[[bytes], Message] = GetMessageClass(descriptor).FromString
    fields = list(descriptor.fields)
    table = np.array([(one.number, _WIRES.get(one.type, VARINT)) for one in fields], np.int64).reshape(-1, 2)

    def slow(values: Any) -> Decoded:
        messages: list[Message | None] = []
        bad: list[int] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                messages.append(None if value is None else parse(value))
            except UNFIT:
                bad.append(row)
                messages.append(None)
        try:
            return _structs(messages, descriptor, kind), bad
        except UNFIT:  # a moment too far away
            for row, message in enumerate(messages):
                if not _fits(message, descriptor, kind):
                    bad.append(row)
                    messages[row] = None
        return _structs(messages, descriptor, kind), sorted(bad)

    def fast(values: Any) -> Decoded:
        spans = spans_of(values)
        found, sizes = np.empty((2, len(fields), len(values)), np.int64)
        view = bytes_of(values.buffers()[2] or b"")
        if scan_proto(view, spans, table, found, sizes) >= 0:
            return slow(values)
        null = spans[:, 0] < 0
        try:
            columns = [
                _column(view, field, found[at], _presence(field, sizes[at], null), kind.field(at).type)
                for at, field in enumerate(fields)
            ]
        except pa.ArrowException:  # text that is none
            return slow(values)
        return struct(columns, kind, null), []

    return fast if fields and all(map(_flat, fields)) else slow


def _fits(message: Message | None, descriptor: Descriptor, kind: Any) -> bool:
    try:
        _structs([message], descriptor, kind)
    except UNFIT:
        return False
    return True


# --- the loop's columns ---------------------------------------------------------------------------------------


def _flat(field: FieldDescriptor) -> bool:
    choice, words = field.containing_oneof, field.enum_type
    return not (
        field.is_repeated
        or field.is_required
        or field.message_type is not None
        or (choice is not None and len(choice.fields) > 1)
        or (words is not None and words.is_closed)
    )


def _presence(field: FieldDescriptor, sizes: Ints, null: Any) -> Ints:
    """What is not there is null, or zero if the schema does not tell these apart."""
    if field.has_presence:
        return sizes
    return np.where((sizes < 0) & ~null, 0, sizes)


def _column(  # noqa: PLR0911 (one per kind of number)
    view: Any, field: FieldDescriptor, found: Ints, sizes: Ints, kind: Any
) -> Any:
    if _WIRES.get(field.type) == SIZED:
        return binary_array(pa.binary(), view, found, sizes).cast(kind)
    null = sizes < 0
    match field.type:
        case _F.TYPE_DOUBLE:
            return pa.array(found.view(np.float64), kind, mask=null)
        case _F.TYPE_FLOAT:
            return pa.array(found.astype(np.uint32).view(np.float32), kind, mask=null)
        case _F.TYPE_BOOL:
            return pa.array(found != 0, mask=null)
        case _F.TYPE_SINT32 | _F.TYPE_SINT64:
            if field.type == _F.TYPE_SINT32:
                found = found & 0xFFFFFFFF  # as the runtime does: what a longer number has above is cut off first
            found = ((found >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(found & 1)
        case _F.TYPE_ENUM:
            return _words(found.astype(np.int32), null, field.enum_type)
    if field.type in _UNSIGNED_64:
        return _unsigned(found, null, kind)
    if field.type in _UNSIGNED_32:
        return pa.array(found.astype(np.uint32).astype(np.int64), kind, mask=null)
    return pa.array(found if pa.types.is_int64(kind) else found.astype(np.int32), kind, mask=null)


def _words(numbers: Any, null: Any, enum: EnumDescriptor) -> Any:
    """The names of an enum's numbers; a number that has none is itself."""
    known, index = np.unique(numbers, return_inverse=True)
    names = [_word(enum, number) for number in known.tolist()]
    return pa.array(names, pa.string()).take(pa.array(index, mask=null))


def _word(enum: EnumDescriptor, number: int) -> str:
    return enum.values_by_number[number].name if number in enum.values_by_number else str(number)


def _unsigned(found: Ints, null: Any, kind: Any) -> Any:
    words = np.zeros((len(found), 2), np.int64)
    words[:, 0] = found
    valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(kind, len(found), [valid, pa.py_buffer(words)])


# --- by the runtime -------------------------------------------------------------------------------------------


def _structs(messages: Sequence[Any], descriptor: Descriptor, kind: Any) -> Any:
    """Messages, or None, as a column."""
    parts = [_of_field(messages, field, kind.field(at).type) for at, field in enumerate(descriptor.fields)]
    return struct(parts, kind, np.array([message is None for message in messages], bool))


def _of_field(messages: Sequence[Any], field: FieldDescriptor, kind: Any) -> Any:
    name = field.name
    if not field.is_repeated:
        there = field.has_presence
        return _singles(
            [
                None if message is None or (there and not message.HasField(name)) else getattr(message, name)
                for message in messages
            ],
            field,
            kind,
        )
    lists = [() if message is None else getattr(message, name) for message in messages]
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum([len(one) for one in lists], out=offsets[1:])
    if not is_map(field):
        child = _singles([item for one in lists for item in one], field, kind.value_type)
    else:
        key, value = entry_of(field)
        keys = _singles([item for one in lists for item in one], key, kind.key_type)
        items = _singles([one[item] for one in lists for item in one], value, kind.item_type)
        child = struct([keys, items], pa.struct([kind.key_field, kind.item_field]))
    return pa.Array.from_buffers(kind, len(lists), [None, pa.py_buffer(offsets)], children=[child])


def _singles(values: list[Any], field: FieldDescriptor, kind: Any) -> Any:
    if field.enum_type is not None:
        return pa.array([None if one is None else _word(field.enum_type, one) for one in values], kind)
    if field.message_type is None:
        return pa.array(values, kind)
    if field.message_type.full_name == TIMESTAMP:
        moments = [None if one is None else one.seconds * _US + one.nanos // 1000 for one in values]
        return pa.array(moments, pa.int64()).cast(kind)
    return _structs(values, field.message_type, kind)
