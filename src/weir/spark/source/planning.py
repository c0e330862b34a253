"""Which partitions a query reads, and from where to where: options turned into offsets by asking the brokers.

Filters on topic, partition, offset and timestamp that decide what is read at all.

Those on the first three hold by what is read, and Spark need not look at them again. One on the timestamp moves
the beginning, and the end only where the query says that times grow along a partition: they need not, so Spark
still looks at every row.

Ranges of offsets: cut into pieces for parallel reads, and shortened to what one trigger may read.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

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

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.fetch import NONE, bounds, ends, list_offsets
from weir.model.errors import ConfigError, DataLostError
from weir.spark.options import EARLIEST, LATEST, OffsetSpec, SourceOptions

#: A larger range is read by several tasks, unless the query says how.
_LARGE = 1_000_000


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, from `start` on and below `end`."""

    partition: Partition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def split(self, parts: int) -> list["Range"]:
        """About equal pieces; no more of them than offsets."""
        parts = max(1, min(parts, self.size))
        edges = [self.start + self.size * at // parts for at in range(parts + 1)]
        return [Range(self.partition, a, b) for a, b in pairwise(edges)]


def split(ranges: Sequence[Range], min_partitions: int | None, max_records: int | None) -> list[Range]:
    """Pieces for tasks: none larger than `max_records`, and about `min_partitions` in all, more of large ranges.

    Empty ranges are left out.
    """
    ranges = [one for one in ranges if one.size > 0]
    most = max_records or (None if min_partitions else _LARGE)
    if most is not None:
        ranges = [piece for one in ranges for piece in one.split(-(-one.size // most))]
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    total = sum(one.size for one in ranges)
    return [piece for one in ranges for piece in one.split(round(one.size / total * min_partitions))]


def limited(starts: Mapping[Partition, int], ends: Mapping[Partition, int], most: int) -> dict[Partition, int]:
    """Ends such that about `most` offsets are read, each partition in proportion to what waits there.

    What is left of a partition with little is read whole: each gets at least one, so none waits for ever.
    """
    sizes = {partition: max(0, end - starts[partition]) for partition, end in ends.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    found = {}
    for partition, end in ends.items():
        share = most * sizes[partition] / total
        take = 1 if 0 < share < 1 else int(share)
        found[partition] = min(end, starts[partition] + take) if sizes[partition] else end
    return found


log = logging.getLogger(__name__)

Offsets = dict[Partition, int]


@dataclass(frozen=True, slots=True)
class Older:
    """Offsets that are wanted and lie before those that brokers have. `named`: somebody has said where to begin,
    so that all of them must be somewhere; else the lake may begin wherever it does."""

    range: Range
    named: bool


@dataclass
class Losses:
    """Offsets that were wanted and are no longer there: an error, or counted and skipped, as the query chose."""

    fail: bool
    count: int = field(default=0)
    #: Where else a loss is told.
    tell: Callable[[Partition, int, int], None] | None = None

    def report(self, partition: Partition, first: int, end: int, why: str = "are no longer in the topic") -> None:
        what = f"offsets {first} to {end - 1} of {partition} {why}"
        if self.fail:
            raise DataLostError(what)
        self.count += max(0, end - first)
        log.warning("%s; skipped", what)
        if self.tell is not None and end > first:
            self.tell(partition, first, end)

    def recreated(self, topic: str, before: str, now: str, what: str) -> None:
        """A topic is another one than that of which the query knows positions. `what` becomes of it, if it is no
        error."""
        found = f"topic {topic} was deleted and created again: the query has read the topic with id {before}"
        if self.fail:
            raise DataLostError(
                f"{found}, and the topic has id {now} now; messages of the deleted topic may be lost",
                hint="set failOnDataLoss=false to read the new topic from its start, or use a new checkpoint",
            )
        log.warning("%s; %s", found, what)

    def taken(self) -> int:
        """How many there were since this was last asked."""
        count, self.count = self.count, 0
        return count


def partitions_of(cluster: Cluster, options: SourceOptions) -> list[Partition]:
    """The partitions that the query reads, as they are now."""
    wanted = options.wanted
    if wanted.partitions:
        there = set(cluster.partitions(sorted({partition.topic for partition in wanted.partitions})))
        missing = [str(partition) for partition in wanted.partitions if partition not in there]
        if missing:
            raise ConfigError(f"there is no {', '.join(missing)}", hint="assign partitions that exist")
        return list(wanted.partitions)
    if wanted.pattern is not None:
        pattern = re.compile(wanted.pattern)
        # Anywhere in the name, as Spark's Kafka source has it.
        return cluster.partitions([name for name in cluster.topics() if pattern.search(name)])
    return cluster.partitions(wanted.topics)


def start_offsets(cluster: Cluster, options: SourceOptions, partitions: Iterable[Partition]) -> Offsets:
    """Where the query begins."""
    found = _resolve(cluster, options, options.start, list(partitions), "startingOffsets")
    late = sorted(partition for partition, offset in found.items() if offset == NONE)
    if late and not options.start_at_end_if_none:
        raise ConfigError(
            f"{', '.join(map(str, late))} has no message that late",
            hint="begin earlier, or set startingOffsetsByTimestampStrategy to latest",
        )
    return found | ends(cluster, late, committed=options.committed)


def end_offsets(cluster: Cluster, options: SourceOptions, partitions: Iterable[Partition]) -> Offsets:
    """Where the query ends: at the end of what there is now, unless it says otherwise."""
    found = _resolve(cluster, options, options.end, list(partitions), "endingOffsets")
    late = [partition for partition, offset in found.items() if offset == NONE]
    return found | ends(cluster, late, committed=options.committed)


def _resolve(
    cluster: Cluster, options: SourceOptions, place: OffsetSpec, partitions: list[Partition], name: str
) -> Offsets:
    """Offsets of a place; NONE where a moment is later than every message."""
    if place.moment is not None:
        return list_offsets(cluster, dict.fromkeys(partitions, place.moment), committed=options.committed)
    if place.moments is not None:
        _all_named(place.moments, partitions, f"{name}ByTimestamp")
        return list_offsets(cluster, place.moments, committed=options.committed)
    offsets = dict(place.offsets or {})
    if place.word is not None:
        offsets = {partition: offsets.get(partition, place.word) for partition in partitions}
    _all_named(offsets, partitions, name)
    words = {partition: offset for partition, offset in offsets.items() if offset in (EARLIEST, LATEST)}
    return offsets | list_offsets(cluster, words, committed=options.committed)


def _all_named(given: Mapping[Partition, int], partitions: list[Partition], name: str) -> None:
    missing = [str(partition) for partition in partitions if partition not in given]
    other = [str(partition) for partition in given if partition not in set(partitions)]
    if missing or other:
        what = f"does not name {', '.join(missing)}" if missing else f"names {', '.join(other)}, which is not read"
        raise ConfigError(f"{name} {what}", hint="name every partition that is read, and no other")


def _check_order(options: SourceOptions, first: Offsets, last: Offsets) -> None:
    """Moments may be the wrong way round, and leave nothing; offsets that were written so are a mistake."""
    given = set(options.start.offsets or ()) & set(options.end.offsets or ())
    wrong = [str(partition) for partition in sorted(given) if last[partition] < first[partition]]
    if wrong:
        raise ConfigError(
            f"endingOffsets lie before startingOffsets: {', '.join(wrong)}", hint="begin early, and end late"
        )


def batch_ranges(
    cluster: Cluster, options: SourceOptions, since_ms: int | None, before_ms: int | None, losses: Losses
) -> tuple[list[Range], list[Older]]:
    """What a batch query reads of what brokers have, where no row older than `since_ms` is wanted, nor any from
    `before_ms` on; and what it wants that lies before."""
    partitions = partitions_of(cluster, options)
    first = start_offsets(cluster, options, partitions)
    last = end_offsets(cluster, options, partitions)
    _check_order(options, first, last)
    oldest, newest = bounds(cluster, partitions, committed=options.committed)
    named = {partition for partition in partitions if not _is_earliest(options.start, partition)}
    # What is trimmed in this moment is no more lost than what was trimmed before.
    first |= {partition: oldest[partition] for partition in partitions if partition not in named}
    wanted = {partition: first[partition] if partition in named else 0 for partition in partitions}
    must = named if since_ms is None else set()  # what a filter may exclude is not missed
    older = [
        Older(Range(partition, wanted[partition], min(oldest[partition], last[partition])), partition in must)
        for partition in partitions
    ]
    if since_ms is not None and since_ms >= 0:  # below, Kafka's protocol has other meanings for a time
        since = list_offsets(cluster, dict.fromkeys(partitions, since_ms), committed=options.committed)
        first = {
            partition: max(first[partition], newest[partition] if offset == NONE else offset)
            for partition, offset in since.items()
        }
    if before_ms is not None and before_ms >= 0 and options.ordered:
        before = list_offsets(cluster, dict.fromkeys(partitions, before_ms), committed=options.committed)
        last |= {partition: min(last[partition], offset) for partition, offset in before.items() if offset != NONE}
    found = []
    for partition in partitions:
        start, end = max(first[partition], oldest[partition]), last[partition]
        if max(start, end) > newest[partition]:
            losses.report(partition, newest[partition], max(start, end), "are not in the topic")
            end = min(end, newest[partition])
        found.append(Range(partition, start, end))
    return [one for one in found if one.size > 0], [one for one in older if one.range.size > 0]


def _is_earliest(place: OffsetSpec, partition: Partition) -> bool:
    """Whether the query begins wherever the partition does."""
    offset = (place.offsets or {}).get(partition, place.word)
    return offset == EARLIEST


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
