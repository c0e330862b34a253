"""Fields of JSON values that have no schema, inferred from a sample of them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

#: Messages of a sample, from each end of a topic.
SAMPLE = 500
_PLAIN: dict[type, DataType] = {
    type(None): NullType(),
    bool: BooleanType(),
    float: DoubleType(),
    str: StringType(),
}
_LONG = 2**63
_MOST_DIGITS = 38
#: Fields of one record, and records within records, that are inferred.
_MOST_FIELDS, _DEEPEST = 1_000, 32


def infer_fields(values: Iterable[bytes | None], reserved: Iterable[str] = ()) -> StructType | None:
    """The fields of these values together: what is of several types is a text, and what is null alone, too. None
    unless every value is a JSON object. `reserved`: names of columns that no field may take, in lower case."""
    found: DataType = NullType()
    for value in values:
        if value is None:
            continue
        try:
            said = json.loads(value)
        except (ValueError, RecursionError):
            return None
        if not isinstance(said, dict):
            return None
        found = _merged(found, _type_of(said, 0))
    if not isinstance(found, StructType):
        return None
    taken, fields = set(reserved), []
    for one in found.fields[:_MOST_FIELDS]:
        if one.name.lower() not in taken:
            taken.add(one.name.lower())  # Spark does not tell upper case from lower
            fields.append(StructField(one.name, _known(one.dataType)))
    return StructType(fields) if fields else None


def _type_of(value: Any, depth: int) -> DataType:
    if type(value) in _PLAIN:
        return _PLAIN[type(value)]
    if isinstance(value, int):
        return _whole_number(value)
    if isinstance(value, list) and depth < _DEEPEST:
        items: DataType = NullType()
        for item in value:
            items = _merged(items, _type_of(item, depth + 1))
        return ArrayType(items)
    if isinstance(value, Mapping) and depth < _DEEPEST:
        names: dict[str, str] = {}
        for name in value:
            names.setdefault(name.lower(), name)
        return StructType([StructField(name, _type_of(value[name], depth + 1)) for name in names.values()])
    return StringType()


def _whole_number(value: int) -> DataType:
    if -_LONG <= value < _LONG:
        return LongType()
    return DecimalType(_MOST_DIGITS, 0) if abs(value) < 10**_MOST_DIGITS else DoubleType()


def _merged(one: DataType, other: DataType) -> DataType:
    """A type that both fit; Spark reads whatever fits no other as text."""
    if isinstance(one, NullType) or one == other:
        return other
    if isinstance(other, NullType):
        return one
    if isinstance(one, StructType) and isinstance(other, StructType):
        known = {field.name.lower(): field for field in one.fields}
        for field in other.fields:
            before = known.get(field.name.lower())
            kind = field.dataType if before is None else _merged(before.dataType, field.dataType)
            known[field.name.lower()] = StructField(field.name if before is None else before.name, kind)
        return StructType(list(known.values()))
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merged(one.elementType, other.elementType))
    numbers = (LongType, DecimalType, DoubleType)
    if isinstance(one, numbers) and isinstance(other, numbers):
        return DoubleType() if DoubleType() in (one, other) else DecimalType(_MOST_DIGITS, 0)
    return StringType()


def _known(kind: DataType) -> DataType:
    """With texts in place of what was null alone."""
    if isinstance(kind, NullType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_known(kind.elementType))
    if isinstance(kind, StructType):
        fields = [StructField(one.name, _known(one.dataType)) for one in kind.fields]
        return StructType(fields) if fields else StringType()
    return kind
