"""Ranges of offsets: cut into pieces for parallel reads, and shortened to what one trigger may read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weir.client.kafka.cluster import Partition

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
