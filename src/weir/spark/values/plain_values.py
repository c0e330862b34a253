"""Values of Pulsar's plain schemas as columns: numbers, booleans and moments, whole arrays at a time."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import types as t

from weir.spark.values.columns_of import Decode, Decoded, spans_of

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
