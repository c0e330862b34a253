"""What a statement gives: rows, or a word on what was done."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Row
from pyspark.sql import types as t


@dataclass(frozen=True, slots=True)
class Rows:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    #: Whether there are more than these.
    more: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    what: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def with_zones(schema: t.StructType) -> Callable[[Row], tuple[Any, ...]]:
    """A function for rows of this schema: moments, which Spark gives in the machine's time without saying so, say
    their zone. Those of a TIMESTAMP_NTZ have none."""
    fields = [_zoned(field.dataType) for field in schema]
    if not any(fields):
        return tuple
    return lambda row: tuple(
        cell if zoned is None or cell is None else zoned(cell) for zoned, cell in zip(fields, row, strict=True)
    )


def _zoned(kind: t.DataType) -> Callable[[Any], Any] | None:
    """None if there are no moments in values of this type."""
    match kind:
        case t.TimestampType():
            return lambda moment: moment.astimezone()
        case t.ArrayType():
            inner = _zoned(kind.elementType)
            return None if inner is None else lambda items: [one if one is None else inner(one) for one in items]
        case t.MapType():
            return _zoned_map(_zoned(kind.keyType), _zoned(kind.valueType))
        case t.StructType():
            if not any(_zoned(field.dataType) for field in kind):
                return None
            zoned, names = with_zones(kind), Row(*kind.names)
            return lambda row: names(*zoned(row))
    return None


def _zoned_map(
    key: Callable[[Any], Any] | None, value: Callable[[Any], Any] | None
) -> Callable[[Any], Any] | None:
    if key is None and value is None:
        return None

    def zoned(items: Mapping[Any, Any]) -> dict[Any, Any]:
        return {
            (one if key is None else key(one)): (other if value is None or other is None else value(other))
            for one, other in items.items()
        }

    return zoned
