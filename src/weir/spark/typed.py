"""Values as typed columns, by the schema that the registry has for the topic: AVRO and JSON records, and STRING.

The value becomes a struct with the schema's fields. A value that does not fit is an error that names its offset,
or null with `mode=PERMISSIVE`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from numpy.typing import NDArray
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from weir.client.registry import TopicSchema
from weir.model.errors import ConfigError, WireError
from weir.spark import avro_types
from weir.spark.avro_kernels import scan_avro
from weir.spark.avro_types import AvroField, fields_of, spark_type
from weir.spark.decode import binary_array
from weir.spark.kernels import Ints, bytes_of

KINDS = ("AVRO", "JSON", "STRING")
_US_PER_MS = 1000
#: In place of where a value begins: it is not as it should be.
_BAD = -2
#: What codecs raise at values that are not as they should be; which of these depends on the bytes.
_UNFIT = (ValueError, TypeError, LookupError, ArithmeticError, EOFError, AttributeError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """What a topic's values are; travels to the tasks."""

    topic: str
    kind: str
    definition: str = ""
    permissive: bool = False

    @property
    def type(self) -> t.DataType:
        """The column's type."""
        return t.StringType() if self.kind == "STRING" else spark_type(self.fields)

    @property
    def fields(self) -> list[AvroField]:
        return fields_of(self.definition, self.topic)

    def decoder(self) -> Callable[[Any], Any]:
        """A function from an Arrow batch with binary values to one with typed values."""
        kind = to_arrow_type(self.type, timezone="UTC")
        decode = {"AVRO": self._avro, "JSON": self._json, "STRING": self._string}[self.kind]
        fields = [] if self.kind == "STRING" else self.fields

        def typed(batch: Any) -> Any:
            at = batch.schema.get_field_index("value")
            column, bad = decode(batch.column(at), fields, kind)
            if len(bad) and not self.permissive:
                where = (
                    f"{self.topic}-{batch.column('partition')[0]} at offset {batch.column('offset')[int(bad[0])]}"
                )
                raise WireError(
                    f"the value of {where} is not as the topic's schema says",
                    hint="set mode=PERMISSIVE to read such values as null",
                )
            return batch.set_column(at, pa.field("value", kind), column)

        return typed

    def _string(self, values: Any, fields: list[AvroField], kind: Any) -> tuple[Any, list[int]]:
        try:
            return values.cast(kind), []
        except pa.ArrowInvalid:
            return _one_by_one(values, lambda raw: raw.decode(), kind)

    def _avro(self, values: Any, fields: list[AvroField], kind: Any) -> tuple[Any, Any]:
        spans = _spans(values)
        steps = np.array([(field.step, field.null_branch) for field in fields], np.int64).reshape(-1, 2)
        found, sizes = np.empty((2, len(fields), len(values)), np.int64)
        view = bytes_of(values.buffers()[2] or b"")
        scan_avro(view, spans, steps, found, sizes)
        spans[_unknown_words(fields, found, sizes), 0] = _BAD
        bad: list[int] = np.flatnonzero(spans[:, 0] == _BAD).tolist()
        sizes[:, spans[:, 0] < 0] = -1
        try:
            columns = [
                _column(view, field, found[at], sizes[at], kind.field(at).type) for at, field in enumerate(fields)
            ]
        except pa.ArrowException:  # text that is none, a time too far away
            return _one_by_one(values, _avro_reader(self.definition), kind)
        return _struct(columns, kind, spans[:, 0] < 0), bad

    def _json(self, values: Any, fields: list[AvroField], kind: Any) -> tuple[Any, list[int]]:
        present = pc.drop_null(values)
        raw = pa.schema([(field.name, _raw_json(field)) for field in fields])
        try:
            table = _parse_json(present, raw)
            if table.num_rows != len(present):
                raise pa.ArrowInvalid("not one object per value")
            columns = [
                _from_json(table.column(at).combine_chunks(), field, kind.field(at).type)
                for at, field in enumerate(fields)
            ]
        except pa.ArrowException:
            return _one_by_one(values, lambda text: _fit(json.loads(text), fields), kind)
        dense = pa.StructArray.from_arrays(columns, fields=list(kind)) if columns else pa.nulls(len(present), kind)
        if len(present) == len(values):
            return dense, []
        there = np.asarray(values.is_valid())
        index = np.where(there, np.cumsum(there) - 1, 0)
        return dense.take(pa.array(index, mask=~there)), []


def value_schema(topic: str, versions: list[TopicSchema], *, permissive: bool) -> ValueSchema:
    """The schema of a topic's values, if it is one that can be a column."""
    latest = versions[-1]
    if latest.kind not in KINDS:
        raise ConfigError(
            f"the schema of {topic} is {latest.kind}; {', '.join(KINDS)} can be columns",
            hint="leave valueFormat out, and parse the value in the query",
        )
    if latest.kind == "AVRO" and any(one.definition != latest.definition for one in versions):
        # Avro's bytes do not say by which version they were written, nor does a Kafka record.
        raise ConfigError(
            f"{topic} has {len(versions)} versions of its AVRO schema, and messages do not say theirs",
            hint="leave valueFormat out, and parse the value in the query",
        )
    found = ValueSchema(topic, latest.kind, latest.definition, permissive)
    found.type  # noqa: B018 (an unsupported field is told now, on the driver)
    return found


# --- Avro -----------------------------------------------------------------------------------------------


def _avro_reader(definition: str) -> Callable[[bytes], Any]:
    schema = fastavro.parse_schema(json.loads(definition))

    def read(raw: bytes) -> Any:
        data = BytesIO(raw)
        found = fastavro.schemaless_reader(data, schema, None)
        if data.read(1):
            raise ValueError("more bytes than the schema says")
        return found

    return read


def _spans(values: Any) -> Ints:
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    spans = np.empty((len(values), 2), np.int64)
    spans[:, 0], spans[:, 1] = offsets[:-1], offsets[1:]
    if values.null_count:
        spans[~np.asarray(values.is_valid()), 0] = -1
    return spans


def _unknown_words(fields: list[AvroField], found: Ints, sizes: Ints) -> NDArray[np.bool_]:
    """The rows that have an enum with a word beyond its last."""
    wrong = np.zeros(found.shape[1], bool)
    for at, field in enumerate(fields):
        if field.symbols:
            wrong |= (sizes[at] >= 0) & ((found[at] < 0) | (found[at] >= len(field.symbols)))
    return wrong


def _column(view: Any, field: AvroField, found: Ints, sizes: Ints, kind: Any) -> Any:
    null = sizes < 0
    if field.symbols:
        index = pa.array(np.clip(found, 0, len(field.symbols) - 1), mask=null)
        return pa.array(field.symbols, pa.string()).take(index)
    if field.step == avro_types.BYTES:
        raw = binary_array(pa.binary(), view, found, sizes)
        return raw.cast(kind) if pa.types.is_string(kind) else raw
    if field.step == avro_types.INTEGER:
        return _number(pa.array(found, mask=null), field, kind)
    numbers: dict[int, Callable[[], Any]] = {
        avro_types.BOOLEAN: lambda: found != 0,
        avro_types.FLOAT: lambda: found.astype(np.uint32).view(np.float32),
        avro_types.DOUBLE: lambda: found.view(np.float64),
    }
    return pa.array(numbers[field.step](), kind, mask=null)


def _number(values: Any, field: AvroField, kind: Any) -> Any:
    """Whole numbers as the column has them: dates and times count from 1970."""
    if field.logical == "timestamp-millis":
        values = pc.multiply_checked(values, _US_PER_MS)
    if pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    return values.cast(kind)


def _struct(columns: list[Any], kind: Any, null: NDArray[np.bool_]) -> Any:
    mask = pa.array(null) if null.any() else None
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


# --- JSON -----------------------------------------------------------------------------------------------


def _parse_json(values: Any, schema: Any) -> Any:
    """All values at once: a text of one object after the other."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    text = pc.binary_join(whole, b"\n")[0].as_buffer()
    if text is None or not len(values):
        return schema.empty_table()
    return pa_json.read_json(
        BytesIO(text),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=max(1, min(text.size + 1, (1 << 31) - 1))),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )


def _raw_json(field: AvroField) -> Any:
    """The type by which a field is parsed; what JSON has no word for is made of it after."""
    if field.step == avro_types.BYTES or field.symbols:
        return pa.string()
    return {avro_types.BOOLEAN: pa.bool_(), avro_types.INTEGER: pa.int64()}.get(field.step, pa.float64())


def _from_json(values: Any, field: AvroField, kind: Any) -> Any:
    return (
        _number(values, field, kind)
        if field.step == avro_types.INTEGER and not field.symbols
        else values.cast(kind)
    )


def _fit(value: Any, fields: list[AvroField]) -> Any:
    if not isinstance(value, dict):
        raise TypeError("no object")
    found: dict[str, Any] = {field.name: value.get(field.name) for field in fields}
    for field in fields:
        if field.logical == "timestamp-millis" and found[field.name] is not None:
            found[field.name] = found[field.name] * _US_PER_MS
    return found


def _one_by_one(values: Any, parse: Callable[[bytes], Any], kind: Any) -> tuple[Any, list[int]]:
    """The slow way, where something does not fit: which it is."""
    found: list[Any] = []
    bad: list[int] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            one = None if value is None else parse(value)
            pa.array([one], kind)
        except _UNFIT:
            bad.append(row)
            one = None
        found.append(one)
    return pa.array(found, kind), bad
