"""JSON values as columns: by Arrow's reader, all at once; message by message where there are maps, decimals or
several types in one field, which Arrow's reader does not know."""

import json
from decimal import Decimal
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from weir.spark.values.avro_types import AvroType, raw_type, record_type
from weir.spark.values.columns_of import Decode, Decoded, finished, one_by_one

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
