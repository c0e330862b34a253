"""What a statement gives: rows, or a word on what was done."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

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


def zone_of(name: str) -> tzinfo | None:
    """As SET TIME ZONE has it: a region, or hours and minutes from UTC; None, the machine's, of others."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # the last of these: there is no such region
        with suppress(ValueError):
            return datetime.strptime(name, "%z").tzinfo
    return None


def with_zones(schema: t.StructType, zone: tzinfo | None = None) -> Callable[[Row], tuple[Any, ...]]:
    """A function for rows of this schema: moments, which Spark gives in the machine's time without saying so, say
    their zone, which is the session's. Those of a TIMESTAMP_NTZ have none."""
    fields = [_zoned(field.dataType, zone) for field in schema]
    if not any(fields):
        return tuple
    return lambda row: tuple(
        cell if zoned is None or cell is None else zoned(cell) for zoned, cell in zip(fields, row, strict=True)
    )


def _zoned(kind: t.DataType, zone: tzinfo | None) -> Callable[[Any], Any] | None:
    """None if there are no moments in values of this type."""
    match kind:
        case t.TimestampType():
            return lambda moment: moment.astimezone(zone)
        case t.ArrayType():
            inner = _zoned(kind.elementType, zone)
            return None if inner is None else lambda items: [one if one is None else inner(one) for one in items]
        case t.MapType():
            return _zoned_map(_zoned(kind.keyType, zone), _zoned(kind.valueType, zone))
        case t.StructType():
            if not any(_zoned(field.dataType, zone) for field in kind):
                return None
            zoned, names = with_zones(kind, zone), Row(*kind.names)
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
