"""JSON values as columns: by Arrow's reader, all at once; message by message where there are maps, decimals or
several types in one field, which Arrow's reader does not know.

Topics whose schema is KEY_VALUE: where key and value are, and by which schemas.

With INLINE both are in the message's value, each behind its length; with SEPARATED the key is the message's own.

Values of Pulsar's plain schemas as columns: numbers, booleans and moments, whole arrays at a time.
"""

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, replace
from decimal import Decimal
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from numpy.typing import NDArray
from pyspark.sql import types as t

from weir.client.schemas import TopicSchema
from weir.model.errors import WireError
from weir.spark.records.decoder import binary_array
from weir.spark.records.kernels import Ints, bytes_of
from weir.spark.values.avro_types import AvroType, raw_type, record_type
from weir.spark.values.columns import Decode, Decoded, finished, one_by_one, spans_of
from weir.wire import schema_values as wire

_US_PER_MS, _US_PER_S, _NS_PER_US = 1000, 1_000_000, 1000
_US_PER_DAY = 86_400 * _US_PER_S
_MOST_US = (1 << 63) - 1
_MOST_DAYS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class _Plain:
    """How Pulsar's clients write a type: one or two numbers, big-endian."""

    spark: t.DataType
    fields: str
    #: Of a moment: the microseconds in one of its first number. The second, if there is one, is nanoseconds.
    unit_us: int = 0


PLAIN: dict[str, _Plain] = {
    "BOOLEAN": _Plain(t.BooleanType(), "u1"),
    "INT8": _Plain(t.ByteType(), "i1"),
    "INT16": _Plain(t.ShortType(), ">i2"),
    "INT32": _Plain(t.IntegerType(), ">i4"),
    "INT64": _Plain(t.LongType(), ">i8"),
    "FLOAT": _Plain(t.FloatType(), ">f4"),
    "DOUBLE": _Plain(t.DoubleType(), ">f8"),
    "LOCAL_DATE": _Plain(t.DateType(), ">i8"),
    "DATE": _Plain(t.TimestampType(), ">i8", _US_PER_MS),
    "TIMESTAMP": _Plain(t.TimestampType(), ">i8", _US_PER_MS),
    "INSTANT": _Plain(t.TimestampType(), ">i8,>i4", _US_PER_S),
    "LOCAL_DATE_TIME": _Plain(t.TimestampNTZType(), ">i8,>i8", _US_PER_DAY),
}


def plain_decoder(name: str, kind: Any) -> Decode:
    """From binary values to the column of `kind`; a value of another size, or too far a moment, does not fit."""
    plain = PLAIN[name]
    layout = np.dtype([(f"f{at}", field) for at, field in enumerate(plain.fields.split(","))])

    def decode(values: Any) -> Decoded:
        spans = spans_of(values)
        there = spans[:, 0] >= 0
        fits = there & (spans[:, 1] - spans[:, 0] == layout.itemsize)
        raw = np.zeros((len(values), layout.itemsize), np.uint8)
        if fits.any():
            data = np.frombuffer(values.buffers()[2], np.uint8)
            raw[fits] = data[spans[fits, :1] + np.arange(layout.itemsize)]
        column, known = _column(plain, raw.view(layout)[:, 0])
        fits &= known
        return pa.array(column, mask=~fits).cast(kind), np.flatnonzero(there & ~fits).tolist()

    return decode


def _column(plain: _Plain, raw: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The column as numbers of this machine, and which rows can be in it."""
    first = raw["f0"].astype(raw["f0"].dtype.newbyteorder("="))
    known = np.ones(len(raw), np.bool_)
    if isinstance(plain.spark, t.BooleanType):
        return first != 0, known
    if isinstance(plain.spark, t.DateType):
        known = np.abs(first.astype(np.float64)) <= _MOST_DAYS
        return np.where(known, first, 0).astype(np.int32), known
    if not plain.unit_us:
        return first, known
    known = np.abs(first.astype(np.float64)) < _MOST_US / plain.unit_us - 1
    moments = np.where(known, first, 0) * plain.unit_us
    if "f1" in (raw.dtype.names or ()):
        moments += raw["f1"].astype(np.int64) // _NS_PER_US
    return moments, known


#: An answer's worth of values is far below what Arrow reads in one block.
_MOST_BLOCK = (1 << 31) - 1


def json_decoder(definition: str, about: str, kind: Any) -> Decode:
    """From binary values to a column of `kind`. Fields that are not in the definition are left out, missing ones
    are null."""
    one = record_type(definition, about)
    raw = raw_type(one, text=True)

    def finish(array: Any) -> Any:
        return finished(array, one, kind)

    def slow(values: Any) -> Decoded:
        return one_by_one(values, lambda text: _fit(_loads(text), one), raw, finish)

    def fast(values: Any) -> Decoded:
        present = pc.drop_null(values)
        try:
            dense = finish(_parsed(present, raw))
        except pa.ArrowException:
            return slow(values)
        if len(present) == len(values):
            return dense, []
        there = np.asarray(values.is_valid())
        index = np.where(there, np.cumsum(there) - 1, 0)
        return dense.take(pa.array(index, mask=~there)), []

    odd = any(part.kind in ("map", "union", "null") or part.decimal for part in one.walk())
    return slow if odd or not one.parts else fast


def _parsed(values: Any, raw: Any) -> Any:
    """All values at once: a text of one object after the other."""
    if not len(values):
        return pa.array([], raw)
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    text = pc.binary_join(whole, b"\n")[0].as_buffer()
    table = pa_json.read_json(
        BytesIO(text),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=max(1, min(text.size + 1, _MOST_BLOCK))),
        parse_options=pa_json.ParseOptions(
            explicit_schema=pa.schema(list(raw)), newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != len(values):
        raise pa.ArrowInvalid("not one object per value")
    return pa.StructArray.from_arrays([column.combine_chunks() for column in table.columns], fields=list(raw))


def _loads(text: bytes) -> Any:
    return json.loads(text, parse_float=Decimal)


def _fit(value: Any, one: AvroType) -> Any:  # noqa: PLR0911 (one per kind of value)
    """What JSON has as the column takes it; TypeError or the like if it is not as the definition says."""
    if value is None:
        return None
    match one.kind:
        case "record":
            if not isinstance(value, dict):
                raise TypeError("no object")
            return {name: _fit(value.get(name), part) for name, part in zip(one.names, one.parts, strict=True)}
        case "array":
            if not isinstance(value, list):
                raise TypeError("no list")
            return [_fit(item, one.parts[0]) for item in value]
        case "map":
            return {name: _fit(item, one.parts[0]) for name, item in value.items()}
        case "union":
            return _member(value, one)
        case "float" | "double" | "wide":
            return _number(value, one)
    if one.decimal:
        return _number(value, one, Decimal)
    return value


def _number(value: Any, one: AvroType, make: Any = None) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | float):
        raise TypeError("no number")
    if make is None:
        make = int if one.kind == "wide" and one.logical == "long" and isinstance(value, int) else float
    return make(value)


def _member(value: Any, one: AvroType) -> Any:
    """JSON says of a number only whether it is whole, and has text for bytes."""
    name = "float" if isinstance(value, Decimal) else type(value).__name__
    for wanted in (name, {"int": "float", "str": "bytes"}.get(name)):
        for at, part in enumerate(one.parts):
            if part.class_of() == wanted:
                return {f"member{at}": _fit(value, part)}
    raise TypeError("a value of no branch")


KIND = wire.KIND
_LENGTH_BYTES = wire.LENGTH.size


@dataclass(frozen=True, slots=True)
class KeyValue:
    """The two schemas of one version, and whether both lie in the value."""

    key: TopicSchema
    value: TopicSchema
    inline: bool


def split_schema(schema: TopicSchema, topic: str) -> KeyValue:
    """The registry tells the two definitions one behind the other, each behind its length, in base64."""
    try:
        both = wire.split_schema(b64decode(schema.definition, validate=True), schema.properties)
        key, value = (
            replace(schema, kind=part.kind, definition=_definition(part), properties=dict(part.properties))
            for part in (both.key, both.value)
        )
    except (Base64Error, ValueError, TypeError, WireError):
        raise WireError(f"the registry's schema of {topic} is no KEY_VALUE") from None
    return KeyValue(key, value, both.inline)


def _definition(part: wire.PartSchema) -> str:
    """As the registry tells it of a topic that has this schema alone."""
    encoded = part.kind == "PROTOBUF_NATIVE"
    return b64encode(part.definition).decode() if encoded else part.definition.decode()


def split_inline(values: Any) -> tuple[Any, Any, list[int]]:
    """Keys and values that lie one behind the other, and the rows where they do not."""
    spans = spans_of(values)
    data = values.buffers()[2] or b""
    view = np.frombuffer(data, np.uint8)
    begins = spans[:, 0].copy()
    ends = spans[:, 1]
    there = begins >= 0
    keys, after = _part(view, begins, ends, there)
    found, after = _part(view, after, ends, there & (after >= 0))
    whole = there & (after == ends)
    bad = np.flatnonzero(there & ~whole).tolist()
    arrays = []
    for starts, sizes in (keys, found):
        sizes[~whole] = -1
        arrays.append(binary_array(pa.binary(), bytes_of(data), starts, sizes))
    return arrays[0], arrays[1], bad


def _part(view: Any, at: Ints, ends: Ints, there: Any) -> tuple[tuple[Ints, Ints], Ints]:
    """Where the parts behind their lengths begin, their sizes (-1: null), and where each ends (-1: beyond all)."""
    there = there & (ends - at >= _LENGTH_BYTES)
    sizes = np.full(len(at), -1, np.int64)
    if there.any():
        raw = view[at[there, None] + np.arange(_LENGTH_BYTES)]
        sizes[there] = np.ascontiguousarray(raw).view(">i4")[:, 0]
    begins = at + _LENGTH_BYTES
    after = begins + np.maximum(sizes, 0)
    after[~there | (sizes < -1) | (after > ends)] = -1
    return (begins, sizes), after
