"""Bundles: ranges of the hashes of a namespace's topics. Ownership, and with it leadership, goes by bundle."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

from weir.model.errors import InvalidNameError, NotAllowedError
from weir.model.topics import NamespaceName, TopicName

#: The largest hash. The last bundle of a namespace is written with it as its end, and holds it.
LAST_HASH = 0xFFFFFFFF
#: Bundles of a namespace of which nobody said how many it has.
DEFAULT_BUNDLES = 4
#: A namespace has no more: each is a record that every broker knows.
MAX_BUNDLES = 65_536

_RANGE = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})", re.IGNORECASE)


def topic_hash(topic: TopicName) -> int:
    """Where the topic is among its namespace's bundles: the CRC-32 of its name; each partition by its own."""
    return crc32(str(topic).encode())


def partition_hashes(topic: TopicName, partitions: Iterable[int]) -> list[int]:
    """`topic_hash` of these partitions of the topic."""
    before = crc32(str(topic.at(0)).removesuffix("0").encode())
    return [crc32(b"%d" % partition, before) for partition in partitions]


@dataclass(frozen=True, slots=True, order=True)
class BundleName:
    """Topics of the namespace whose hash is in [low, high), as Pulsar writes it:
    `tenant/ns/0x00000000_0x40000000`. The namespace's last bundle ends with LAST_HASH and holds it too."""

    namespace: NamespaceName
    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> "BundleName":
        namespace, _, bounds = text.rpartition("/")
        return cls.of_range(NamespaceName.parse(namespace), bounds)

    @classmethod
    def of_range(cls, namespace: NamespaceName, text: str) -> "BundleName":
        """From the range alone: `0x00000000_0x40000000`."""
        found = _RANGE.fullmatch(text)
        if found is None or int(found[1], 16) >= int(found[2], 16):
            raise InvalidNameError(
                f"{text[:80]!r} is not a bundle's range", hint="write it as 0x00000000_0x40000000"
            )
        return cls(namespace, int(found[1], 16), int(found[2], 16))

    @property
    def range(self) -> str:
        return f"0x{self.low:08x}_0x{self.high:08x}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"

    def has_hash(self, value: int) -> bool:
        return self.low <= value < self.high or value == self.high == LAST_HASH

    def holds(self, topic: TopicName) -> bool:
        return topic.namespace == self.namespace and self.has_hash(topic_hash(topic))

    def halves(self, at: int | None = None) -> tuple["BundleName", "BundleName"]:
        """The two that it splits into, in the middle if nobody says where; NotAllowedError if it cannot be."""
        middle = (self.low + self.high) // 2 if at is None else at
        if not self.low < middle < self.high:
            raise NotAllowedError(f"{self} cannot be split at 0x{middle:08x}", hint="split it within its range")
        return BundleName(self.namespace, self.low, middle), BundleName(self.namespace, middle, self.high)


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where a namespace's bundles begin and end: from 0 to LAST_HASH, rising."""

    points: tuple[int, ...]

    def __post_init__(self) -> None:
        points = self.points
        rising = all(one < other for one, other in pairwise(points))
        if len(points) < 2 or not rising or points[0] != 0 or points[-1] != LAST_HASH:
            raise InvalidNameError(
                "a namespace's bundles go from 0x00000000 to 0xffffffff without gaps",
                hint="give the boundaries in rising order, with both ends",
            )

    @classmethod
    def even(cls, count: int = DEFAULT_BUNDLES) -> "Boundaries":
        """So many ranges of about the same size."""
        if not 0 < count <= MAX_BUNDLES:
            raise NotAllowedError(f"a namespace has 1 to {MAX_BUNDLES} bundles, not {count}")
        step = (LAST_HASH + 1) // count
        return cls((*(step * number for number in range(count)), LAST_HASH))

    @classmethod
    def apart(cls, hashes: Iterable[int]) -> "Boundaries":
        """As many as there are hashes, each in a bundle of its own."""
        middles = ((one + other + 1) // 2 for one, other in pairwise(sorted(set(hashes))))
        return cls((0, *middles, LAST_HASH))

    def bundles(self, namespace: NamespaceName) -> list[BundleName]:
        return [BundleName(namespace, low, high) for low, high in pairwise(self.points)]

    def bundle_of(self, topic: TopicName) -> BundleName:
        return self.bundle_at(topic.namespace, self.index_of(topic_hash(topic)))

    def index_of(self, value: int) -> int:
        """Which of the bundles holds this hash, counted from 0."""
        return min(bisect_right(self.points, value), len(self.points) - 1) - 1

    def bundle_at(self, namespace: NamespaceName, index: int) -> BundleName:
        return BundleName(namespace, self.points[index], self.points[index + 1])

    def has(self, bundle: BundleName) -> bool:
        """Whether there is such a bundle."""
        at = bisect_right(self.points, bundle.low)
        return at < len(self.points) and self.points[at - 1] == bundle.low and self.points[at] == bundle.high

    def split(self, bundle: BundleName, at: int) -> "Boundaries":
        """With one more boundary; the same object if it is there already. NotAllowedError if there is no such
        bundle, or there are too many."""
        if at in self.points:
            return self
        if not self.has(bundle):
            raise NotAllowedError(f"{bundle} is no bundle of its namespace any more", hint="look at its bundles")
        if len(self.points) > MAX_BUNDLES:
            raise NotAllowedError(f"{bundle.namespace} has as many bundles as it may have")
        return Boundaries(tuple(sorted((*self.points, at))))


@dataclass(frozen=True, slots=True)
class BundleClaim:
    """Who has a bundle: a start of a broker, or nobody (""). `epoch` is one more with each change of hands.
    `next`: who is to have it next, while it is handed over. `split`: the hash at which it is being made two, 0
    if it is not; whoever has such a claim ends the split before anything else."""

    owner: str = ""
    instance: str = ""
    epoch: int = 0
    next: str = ""
    split: int = 0
