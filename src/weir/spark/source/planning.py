"""Which partitions a query reads, and from where to where: options turned into offsets by asking the brokers."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.offsets import NONE, bounds, ends, list_offsets
from weir.model.errors import ConfigError, DataLostError
from weir.spark.source.options import EARLIEST, LATEST, OffsetSpec, SourceOptions
from weir.spark.source.ranges import Range

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
