"""Protobuf messages as columns: by a compiled loop where a message is flat, else by protobuf's runtime.

Flat is a message of single numbers, texts and bytes. Repeated fields, maps, messages in messages, and fields of
which one excludes another are parsed by the runtime, message by message; columns are built of all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import (  # type: ignore[import-untyped]
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
)
from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

from weir.spark.source.decode import binary_array
from weir.spark.source.kernels import Ints, bytes_of
from weir.spark.values.columns_of import UNFIT, Decode, Decoded, spans_of, struct
from weir.spark.values.proto_kernels import FIXED32, FIXED64, SIZED, VARINT, scan_proto
from weir.spark.values.proto_types import TIMESTAMP, descriptor_of, entry_of, is_map

_F = FieldDescriptor
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
