"""Bundles: ranges of the hashes of a namespace's topics. Ownership, and with it leadership, goes by bundle.

What this build of Weir can do that others must know of: a mixed cluster uses what all of its brokers have.

A broker registers the names (`BrokerInfo.features`). Whatever changes bytes that other brokers read gets a name
here, and whoever writes them asks `FeaturesInUse` each time. Wire versions are names, too: `peer/1`.

What a broker says of its work, for whoever balances a cluster: measured, per second, by bundle.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol
from zlib import crc32

from weir.model.errors import InvalidNameError, NotAllowedError
from weir.model.registry import BrokerInfo
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


#: A report names at most this many bundles, the busiest; the rest counts in the sums alone.
MAX_REPORTED_BUNDLES = 1000


@dataclass(frozen=True, slots=True)
class BundleLoad:
    """Messages and bytes per second that a bundle's topics take in and give out, and how many topics are loaded.
    `bundle` as claims write it: `tenant/namespace/0x00000000_0x40000000`."""

    bundle: str
    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    topics: int = 0

    @property
    def namespace(self) -> str:
        """`tenant/namespace`."""
        return self.bundle.rpartition("/")[0]

    @property
    def messages(self) -> float:
        """Per second, in and out."""
        return self.messages_in + self.messages_out

    @property
    def bytes(self) -> float:
        """Per second, in and out."""
        return self.bytes_in + self.bytes_out


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """A broker's work as a whole. `cpu`: share of the one core that its loop can use; `memory`: share of what it
    may have; both can pass 1. `bundle_count`: of all that it holds, those among them that `bundles` leaves out.
    `draining`: it is to hold nothing soon, so it is given nothing."""

    broker_id: str
    bundles: tuple[BundleLoad, ...] = ()
    cpu: float = 0.0
    memory: float = 0.0
    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    bundle_count: int = 0
    draining: bool = False

    @property
    def messages(self) -> float:
        """Per second, in and out."""
        return self.messages_in + self.messages_out

    @property
    def bytes(self) -> float:
        """Per second, in and out."""
        return self.bytes_in + self.bytes_out


@dataclass(frozen=True, slots=True)
class BalanceLeader:
    """Which broker balances the cluster. `term` differs from one election to the next."""

    broker_id: str
    term: str


#: Entries of topics' state are deflated (`weir.wire.stream`).
DEFLATED_STATE = "state/2"
#: Topics are found by their ids, and by being deleted, without looking at all of them.
TOPIC_INDEX = "topic-index/1"
#: Messages of queues that are in memory only have offsets, and the log has gaps in their places (`memory/end`).
UNWRITTEN = "unwritten/1"
#: Half messages in the holding area (`Batch.origin` is `Prepared`).
HALF_MESSAGES = "half-messages/1"
#: A broker hands a topic over with its last ledger open, which the chain reports as closed
#: (`weir.stream.handover`).
LEFT = "left/1"
#: Ledgers may be gone whose copy in the lake is read instead (`Span.segment`).
TIERED = "tiered/1"

#: Batches for one subscription alone (`Batch.origin` is `Addressed`).
ADDRESSED = "addressed/1"
#: Ownership by bundle, with epochs; calls between brokers; coordinators in shards; transactions over brokers.
FEATURES: tuple[str, ...] = (
    *("bundles/1", "peer/1", "coordinators/1", "transactions/1"),
    DEFLATED_STATE,
    TOPIC_INDEX,
    UNWRITTEN,
    HALF_MESSAGES,
    LEFT,
    TIERED,
    ADDRESSED,
)


class FeaturesInUse(Protocol):
    def uses(self, feature: str) -> bool:
        """Whether every broker has it now, as far as this one knows."""


class EveryFeature:
    """Fills `FeaturesInUse` where nobody else reads."""

    def uses(self, feature: str) -> bool:
        return feature in FEATURES


def common_features(brokers: Iterable[BrokerInfo]) -> frozenset[str]:
    """What every one of them has; nothing if there are none. A broker that says nothing has nothing."""
    every = [frozenset(broker.features) for broker in brokers]
    return frozenset.intersection(*every) if every else frozenset()


def held_back(brokers: Iterable[BrokerInfo]) -> dict[str, list[str]]:
    """Features that some of them have, each with those that lack it."""
    listed = list(brokers)
    known = sorted({feature for broker in listed for feature in broker.features})
    lacking = {name: [b.broker_id for b in listed if name not in b.features] for name in known}
    return {name: who for name, who in lacking.items() if who}
