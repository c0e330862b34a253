"""Columns as a codec gives them become columns as Spark wants them: dates, times and decimals, however deep.

Whole arrays at a time. Also the slow way, value by value, which finds those that do not fit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from weir.spark.records.kernels import Ints, bytes_of
from weir.spark.values.avro_types import AvroType, scan_decimals

#: A column, and the rows whose value does not fit and is null in it.
Decoded = tuple[Any, Sequence[int]]
Decode = Callable[[Any], Decoded]

#: What codecs raise at values that are not as they should be; which of these depends on the bytes.
UNFIT = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    AttributeError,
    RecursionError,
    pa.ArrowException,
    fastavro.read.SchemaResolutionError,
    DecodeError,
)
_US_PER_MS = 1000


def finished(array: Any, one: AvroType, kind: Any) -> Any:
    """An array of raw values (see `raw_type`) as the column of `kind`; ArrowException if one cannot be."""
    match one.kind:
        case "record" | "union":
            parts = [finished(array.field(at), part, kind.field(at).type) for at, part in enumerate(one.parts)]
            return struct(parts, kind, np.asarray(array.is_null()))
        case "array":
            items = finished(array.values, one.parts[0], kind.value_type)
            return _with_children(array, kind, items)
        case "map":
            parts = [array.keys, finished(array.items, one.parts[0], kind.item_type)]
            return _with_children(array, kind, struct(parts, pa.struct([kind.key_field, kind.item_field])))
    if one.decimal and not pa.types.is_decimal(array.type):
        return decimals(array, kind)
    if one.logical.endswith("timestamp-millis"):
        array = pc.multiply_checked(array, _US_PER_MS)
    if pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    return array.cast(kind)


def struct(parts: list[Any], kind: Any, null: NDArray[np.bool_] | None = None) -> Any:
    """Columns side by side; `null`: the rows that have none of them."""
    if not parts:
        count = 0 if null is None else len(null)
        valid = None if null is None or not null.any() else pa.py_buffer(np.packbits(~null, bitorder="little"))
        return pa.Array.from_buffers(kind, count, [valid])
    mask = pa.array(null) if null is not None and null.any() else None
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)


def _with_children(array: Any, kind: Any, child: Any) -> Any:
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], array.null_count, array.offset, children=[child]
    )


def decimals(array: Any, kind: Any) -> Any:
    """Binary values, big-endian, as decimals; ArrowInvalid if one has more digits than there may be."""
    spans = spans_of(array)
    words = np.zeros((len(array), 2), np.int64)
    bad = scan_decimals(bytes_of(array.buffers()[2] or b""), spans, words)
    if bad >= 0:
        raise pa.ArrowInvalid("a decimal is too long")
    there = spans[:, 0] >= 0
    valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    found = pa.Array.from_buffers(kind, len(array), [valid, pa.py_buffer(words)])
    found.validate(full=True)
    return found


def spans_of(values: Any) -> Ints:
    """Where in their buffer binary values begin and end; a begin of -1 is a null."""
    spans = np.zeros((len(values), 2), np.int64)
    if not len(values):
        return spans
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    spans[:, 0], spans[:, 1] = offsets[:-1], offsets[1:]
    if values.null_count:
        spans[~np.asarray(values.is_valid()), 0] = -1
    return spans


def one_by_one(values: Any, parse: Callable[[bytes], Any], raw: Any, finish: Callable[[Any], Any]) -> Decoded:
    """The slow way: parse each value in Python, then build the column of all of them at once."""
    found: list[Any] = []
    bad: list[int] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            found.append(None if value is None else parse(value))
        except UNFIT:
            bad.append(row)
            found.append(None)
    try:
        return finish(pa.array(found, raw)), bad
    except UNFIT:  # one of them can be no column: which?
        for row, one in enumerate(found):
            if not _fits(one, raw, finish):
                bad.append(row)
                found[row] = None
    return finish(pa.array(found, raw)), sorted(bad)


def _fits(one: Any, raw: Any, finish: Callable[[Any], Any]) -> bool:
    try:
        finish(pa.array([one], raw))
    except UNFIT:
        return False
    return True
