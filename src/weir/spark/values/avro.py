"""Avro values as columns: by a compiled loop where a record is flat, else by fastavro, message by message.

Flat is a record of numbers, texts, bytes, enums, fixed ones, dates, times and decimals, each alone or in a union
with null, and of records of these. Arrays, maps, records that may be null and other unions have no such loop yet.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.model.errors import ConfigError
from weir.spark.records.decoder import binary_array
from weir.spark.records.kernels import Ints, bytes_of
from weir.spark.values import avro_types as k
from weir.spark.values.avro_types import AvroType, raw_type, record_type
from weir.spark.values.columns import UNFIT, Decode, Decoded, finished, one_by_one, spans_of, struct

#: In place of where a value begins: it is not as it should be.
_BAD = -2
_STEPS = {
    "boolean": k.BOOLEAN,
    "int": k.INTEGER,
    "long": k.INTEGER,
    "enum": k.INTEGER,
    "float": k.FLOAT,
    "double": k.DOUBLE,
    "bytes": k.BYTES,
    "string": k.BYTES,
    "fixed": k.FIXED,
}


def avro_decoder(definition: str, about: str, kind: Any, writer: str | None = None) -> Decode:
    """From binary values to a column of `kind`, by a definition; `writer` is the one they were written by, if it
    is another: then Avro's rules say what becomes of them."""
    one = record_type(definition, about)
    read = _reader(definition, writer or definition, about)
    slow = _Slow(one, kind, read)
    if writer is not None and json.loads(writer) != json.loads(definition):
        return slow
    leaves = list(_leaves(one))
    return slow if any(leaf.kind not in _STEPS for leaf in leaves) else _Fast(one, kind, leaves, slow)


@dataclass(frozen=True)
class _Slow:
    one: AvroType
    kind: Any
    read: Callable[[bytes], Any]

    def __call__(self, values: Any) -> Decoded:
        tell, read = _teller(self.one), self.read
        raw = raw_type(self.one, text=False)
        return one_by_one(
            values,
            read if tell is None else lambda data: tell(read(data)),
            raw,
            lambda array: finished(array, self.one, self.kind),
        )


@dataclass(frozen=True)
class _Fast:
    one: AvroType
    kind: Any
    leaves: list[AvroType]
    slow: _Slow

    def __call__(self, values: Any) -> Decoded:
        spans = spans_of(values)
        steps = [(_STEPS[leaf.kind], leaf.null_branch, leaf.size) for leaf in self.leaves]
        found, sizes = np.empty((2, len(self.leaves), len(values)), np.int64)
        view = bytes_of(values.buffers()[2] or b"")
        k.scan_avro(view, spans, np.array(steps, np.int64).reshape(-1, 3), found, sizes)
        spans[_unknown_words(self.leaves, found, sizes), 0] = _BAD
        bad: list[int] = np.flatnonzero(spans[:, 0] == _BAD).tolist()
        sizes[:, spans[:, 0] < 0] = -1
        columns = (_raw(view, leaf, found[at], sizes[at]) for at, leaf in enumerate(self.leaves))
        try:
            return _assembled(self.one, self.kind, columns, spans[:, 0] < 0), bad
        except pa.ArrowException:  # text that is none, a time too far away
            return self.slow(values)


def _leaves(one: AvroType) -> Iterator[AvroType]:
    """What is in a record, in the order of its bytes; records in it that are always there are taken apart."""
    for part in one.parts:
        if part.kind == "record" and part.null_branch < 0:
            yield from _leaves(part)
        else:
            yield part


def _assembled(one: AvroType, kind: Any, columns: Iterator[Any], null: NDArray[np.bool_]) -> Any:
    parts = [
        _assembled(part, kind.field(at).type, columns, null)
        if part.kind == "record"
        else finished(next(columns), part, kind.field(at).type)
        for at, part in enumerate(one.parts)
    ]
    return struct(parts, kind, null)


def _unknown_words(leaves: list[AvroType], found: Ints, sizes: Ints) -> NDArray[np.bool_]:
    """The rows that have an enum with a word beyond its last."""
    wrong = np.zeros(found.shape[1], bool)
    for at, leaf in enumerate(leaves):
        if leaf.symbols:
            wrong |= (sizes[at] >= 0) & ((found[at] < 0) | (found[at] >= len(leaf.symbols)))
    return wrong


def _raw(view: Any, leaf: AvroType, found: Ints, sizes: Ints) -> Any:
    """The column of one field, of what the loop has found."""
    null = sizes < 0
    if leaf.symbols:
        index = pa.array(np.clip(found, 0, len(leaf.symbols) - 1), mask=null)
        return pa.array(leaf.symbols, pa.string()).take(index)
    if leaf.kind in ("bytes", "string", "fixed"):
        return binary_array(pa.binary(), view, found, sizes)
    if leaf.kind == "boolean":
        return pa.array(found != 0, mask=null)
    if leaf.kind == "float":
        return pa.array(found.astype(np.uint32).view(np.float32), mask=null)
    if leaf.kind == "double":
        return pa.array(found.view(np.float64), mask=null)
    return pa.array(found, mask=null)


# --- by fastavro ----------------------------------------------------------------------------------------------


def _reader(definition: str, writer: str, about: str) -> Callable[[bytes], Any]:
    try:
        plain, other = (_plain(json.loads(one)) for one in (definition, writer))
        ours, theirs = fastavro.parse_schema(plain), fastavro.parse_schema(_renamed(other, plain))
    except (*UNFIT, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as bad:
        raise ConfigError(
            f"the schema of {about} is not Avro's: {bad}",
            hint="leave valueFormat out, and parse the value in the query",
        ) from bad
    by = None if writer == definition else ours

    def read(raw: bytes) -> Any:
        data = BytesIO(raw)
        found = fastavro.schemaless_reader(data, theirs, by)
        if data.read(1):
            raise ValueError("more bytes than the schema says")
        return found

    return read


def _renamed(other: Any, plain: Any) -> Any:
    """With the other's name. The registry does not mind how a topic's record is called, but Avro's rules do."""
    short = str(plain.get("name", "")).rpartition(".")[2]
    return other | {"name": ".".join([*str(other.get("name", "")).split(".")[:-1], short])}


def _plain(given: Any) -> Any:
    """A definition without logical types: what is made of those is made of whole columns."""
    if isinstance(given, list):
        return [_plain(one) for one in given]
    if not isinstance(given, dict):
        return given
    return {
        name: value if name in ("default", "symbols", "aliases", "doc") else _plain(value)
        for name, value in given.items()
        if name != "logicalType"
    }


def _teller(one: AvroType) -> Callable[[Any], Any] | None:
    """A function that names the members of a value's unions; None if there are none in it."""
    inner = [_teller(part) for part in one.parts]
    if one.kind == "union":
        return partial(_member, [(part.class_of(), tell) for part, tell in zip(one.parts, inner, strict=True)])
    if not any(inner):
        return None
    if one.kind == "record":
        return partial(_in_record, [(name, tell) for name, tell in zip(one.names, inner, strict=True) if tell])
    step: Any = _in_list if one.kind == "array" else _in_map
    return partial(step, inner[0])


def _in_record(tellers: list[tuple[str, Callable[[Any], Any]]], value: Any) -> Any:
    if value is not None:
        for name, tell in tellers:
            value[name] = tell(value[name])
    return value


def _in_list(tell: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else [tell(item) for item in value]


def _in_map(tell: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else {name: tell(item) for name, item in value.items()}


def _member(branches: list[tuple[str, Callable[[Any], Any] | None]], value: Any) -> Any:
    if value is None:
        return None
    for at, (name, tell) in enumerate(branches):
        if type(value).__name__ == name:
            return {f"member{at}": value if tell is None else tell(value)}
    raise TypeError("a value of no branch")
