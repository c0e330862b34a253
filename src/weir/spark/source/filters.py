"""Filters on topic, partition, offset and timestamp that decide what is read at all.

Those on the first three hold by what is read, and Spark need not look at them again. One on the timestamp moves
the beginning, and the end only where the query says that times grow along a partition: they need not, so Spark
still looks at every row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql.datasource import (
    ColumnPath,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from weir.spark.source.ranges import Range

#: Columns that never are null.
_ALWAYS_THERE = ("topic", "partition", "offset", "timestamp", "timestampType")
_FOREVER = 1 << 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers from `low` on and below `high`."""

    low: int = -_FOREVER
    high: int = _FOREVER

    def __contains__(self, number: int) -> bool:
        return self.low <= number < self.high

    def within(self, other: "Interval") -> "Interval":
        return Interval(max(self.low, other.low), min(self.high, other.high))


@dataclass(frozen=True, slots=True)
class Pushed:
    """What the filters leave; all of it holds together."""

    topics: frozenset[str] | None = None
    indices: Interval = Interval()
    listed_indices: frozenset[int] | None = None
    offsets: Interval = Interval()
    #: No row with an earlier timestamp (in ms) is wanted.
    since_ms: int | None = None
    #: No row with this or a later timestamp is wanted.
    before_ms: int | None = None

    def narrow(self, ranges: Iterable[Range]) -> list[Range]:
        """What is left of the ranges."""
        found = []
        for one in ranges:
            index = one.partition.index
            if self.topics is not None and one.partition.topic not in self.topics:
                continue
            if index not in self.indices or (self.listed_indices is not None and index not in self.listed_indices):
                continue
            start, end = max(one.start, self.offsets.low), min(one.end, self.offsets.high)
            if start < end:
                found.append(Range(one.partition, start, end))
        return found


def push(filters: Sequence[Filter]) -> tuple[Pushed, list[Filter]]:
    """What the filters leave to read, and those that Spark still has to look at."""
    pushed, left = Pushed(), []
    for one in filters:
        narrowed, done = _push(pushed, one)
        pushed = narrowed
        if not done:
            left.append(one)
    return pushed, left


def _push(pushed: Pushed, one: Filter) -> tuple[Pushed, bool]:
    """With one more filter, and whether that is all there is to it."""
    match one:
        case IsNotNull(attribute=(column,)):
            return pushed, column in _ALWAYS_THERE
        case In():
            return _push_list(pushed, one.attribute, one.value)
        case EqualTo(attribute=("topic",)) | EqualNullSafe(attribute=("topic",)):
            return _push_list(pushed, one.attribute, (one.value,))
        case EqualTo() | EqualNullSafe() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
            return _push_comparison(pushed, one, one.attribute, one.value)
        case _:
            return pushed, False


def _push_comparison(pushed: Pushed, one: Filter, column: ColumnPath, value: object) -> tuple[Pushed, bool]:
    if column == ("timestamp",) and isinstance(value, datetime):
        return _push_time(pushed, one, value), False
    if type(value) is int and column == ("offset",):
        return replace(pushed, offsets=pushed.offsets.within(_interval(one, value))), True
    if type(value) is int and column == ("partition",):
        return replace(pushed, indices=pushed.indices.within(_interval(one, value))), True
    return pushed, False


def _push_list(pushed: Pushed, column: ColumnPath, values: tuple[object, ...]) -> tuple[Pushed, bool]:
    texts = frozenset(value for value in values if isinstance(value, str))
    numbers = frozenset(value for value in values if type(value) is int)
    if column == ("topic",) and len(texts) == len(set(values)):
        return replace(pushed, topics=texts if pushed.topics is None else pushed.topics & texts), True
    if not numbers or len(numbers) != len(set(values)):
        return pushed, False
    if column == ("partition",):
        listed = numbers if pushed.listed_indices is None else pushed.listed_indices & numbers
        return replace(pushed, listed_indices=listed), True
    if column == ("offset",):  # there are gaps between them, which Spark fills
        interval = Interval(min(numbers), max(numbers) + 1)
        return replace(pushed, offsets=pushed.offsets.within(interval)), False
    return pushed, False


def _interval(one: Filter, value: int) -> Interval:
    match one:
        case GreaterThan():
            return Interval(low=value + 1)
        case GreaterThanOrEqual():
            return Interval(low=value)
        case LessThan():
            return Interval(high=value)
        case LessThanOrEqual():
            return Interval(high=value + 1)
        case _:
            return Interval(value, value + 1)


def _push_time(pushed: Pushed, one: Filter, moment: datetime) -> Pushed:
    if moment.tzinfo is None:
        return pushed
    micros = (moment - _EPOCH) // _EPOCH.resolution
    since_ms, before_ms = micros // 1000, micros // 1000 + 1
    if isinstance(one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        pushed = replace(pushed, since_ms=max(since_ms, since_ms if pushed.since_ms is None else pushed.since_ms))
    if isinstance(one, LessThan):
        before_ms = -(-micros // 1000)
    if isinstance(one, EqualTo | EqualNullSafe | LessThan | LessThanOrEqual):
        least = before_ms if pushed.before_ms is None else min(before_ms, pushed.before_ms)
        pushed = replace(pushed, before_ms=least)
    return pushed
