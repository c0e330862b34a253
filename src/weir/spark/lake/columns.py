"""The columns of a topic's table, and Arrow batches made to have exactly those."""

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from weir.spark.source.columns import RAW_KEY, RAW_VALUE
from weir.spark.source.decode import SCHEMA_WITH_HEADERS
from weir.spark.values.typed import ValueSchema

#: The bytes of values that are not as the schema says; their `value` is null.
CORRUPT = "corrupt"
#: Types that may become wider, as Iceberg has it and a cast does without loss.
_WIDER = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.large_string(),),
    pa.binary(): (pa.large_binary(),),
}


def topic_schema(values: ValueSchema | None) -> Any:
    """What a topic with such values has as a table: the columns of `format("weir")` without `topic`, the
    producer's protocol, and where values are typed the bytes of those that do not fit, and of all: what is
    replayed is what was sent."""
    fields = [field for field in SCHEMA_WITH_HEADERS if field.name != "topic"]
    if values is not None:
        fields[1] = pa.field("value", to_arrow_type(values.type, timezone="UTC"))
        if values.key_type is not None:
            fields[0] = pa.field("key", to_arrow_type(values.key_type, timezone="UTC"))
    fields.append(pa.field("protocol", pa.string()))
    if values is not None:
        fields.append(pa.field(CORRUPT, pa.binary()))
        if values.key_type is not None:
            fields.append(pa.field(RAW_KEY, pa.binary()))
        fields.append(pa.field(RAW_VALUE, pa.binary()))
    return pa.schema([pa.field(field.name, _nullable(field.type)) for field in fields])


def _nullable(kind: Any) -> Any:
    """The same, and nothing in it must be there: a later schema may do without it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _nullable(one.type)) for one in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    return kind


def storable(kind: Any) -> bool:
    """Whether Parquet can hold it: it has no records without fields."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(storable(one.type) for one in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return storable(kind.value_type)
    if pa.types.is_map(kind):
        return storable(kind.key_type) and storable(kind.item_type)
    return not pa.types.is_null(kind)


def fits(kind: Any, column: Any) -> bool:
    """Whether every value of a type can be in a column of another, as it is."""
    if pa.types.is_struct(column):
        if not pa.types.is_struct(kind):
            return False
        there = {one.name: one.type for one in column}
        return all(one.name in there and fits(one.type, there[one.name]) for one in kind)
    if pa.types.is_list(column) or pa.types.is_large_list(column):
        return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and fits(
            kind.value_type, column.value_type
        )
    if pa.types.is_map(column):
        return (
            pa.types.is_map(kind)
            and fits(kind.key_type, column.key_type)
            and fits(kind.item_type, column.item_type)
        )
    if pa.types.is_decimal(column) and pa.types.is_decimal(kind):
        return bool(kind.scale == column.scale and kind.precision <= column.precision)
    return bool(kind == column or column in _WIDER.get(kind, ()))


def reads_as(column: Any, kind: Any) -> bool:
    """Whether what is in a column can be read as another type: of numbers that are wider by now, and of records
    with more fields, which are null where there were none."""
    if pa.types.is_struct(kind) and pa.types.is_struct(column):
        there = {one.name: one.type for one in column}
        return all(one.name not in there or reads_as(there[one.name], one.type) for one in kind)
    if pa.types.is_list(kind) and pa.types.is_list(column):
        return reads_as(column.value_type, kind.value_type)
    if pa.types.is_map(kind) and pa.types.is_map(column):
        return reads_as(column.key_type, kind.key_type) and reads_as(column.item_type, kind.item_type)
    return fits(kind, column) or fits(column, kind)


def conform(batch: Any, schema: Any) -> Any:
    """The batch with these columns: those that it lacks are null, those that it has beside them are left out."""
    names = set(batch.schema.names)
    arrays = [
        _as(batch.column(field.name), field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as(array: Any, kind: Any) -> Any:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        parts = {field.name: at for at, field in enumerate(array.type)}
        children = [
            _as(array.field(parts[field.name]), field.type)
            if field.name in parts
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        # `field` gives the children without the struct's own nulls.
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return pa.array(array.to_pylist(), kind)  # records in lists and maps, of which some fields are new or gone
