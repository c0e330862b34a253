"""State of a balance round: loads, limits, pools, history and the actions decided so far.

A pool is a set of brokers that may own the same bundles; its level is the usage of its brokers if they share the
work evenly. Load is one number: the used share of a broker, and the part of a bundle in it. The history keeps
a bundle from moving again too soon.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Protocol

from weir.model.check import Steps
from weir.model.cluster import BrokerLoad, BundleLoad


class Reason(Enum):
    """The reason of a move."""

    DRAIN = "drain"
    ISOLATION = "isolation"
    HOT = "hot"
    COLD = "cold"
    MEMORY = "memory"
    #: To even out the number of topics.
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Move:
    """A request to `source` to hand the bundle over. `usage`: approximate share of a broker."""

    bundle: str
    source: str
    target: str
    reason: Reason = Reason.HOT
    usage: float = 0.0


@dataclass(frozen=True, slots=True)
class Split:
    """A request to `broker` to split the bundle, at the point that halves the load of its topics."""

    bundle: str
    broker: str


Action = Move | Split


class Pool:
    """A set of brokers with common bundles: all brokers for unbound namespaces, or those of a group. Pools
    overlap."""

    def __init__(self, members: Sequence[str], usage: dict[str, float]) -> None:
        """`members`: eligible targets, sorted. `usage`: the present usage of every broker."""
        self.members = members
        #: Usage by the pool's bundles, by the broker that owns them; an owner need not be a member.
        self.held: dict[str, float] = {}
        #: Usage of each member if the work is shared evenly; a narrow pool's level is at least that of a wider
        #: one.
        self.level = 0.0
        self._usage = usage
        self._set = frozenset(members)
        self._heap = [(usage[broker], broker) for broker in members]
        heapify(self._heap)

    def has(self, broker: str) -> bool:
        return broker in self._set

    def within(self, other: "Pool") -> bool:
        """Whether the pool is a proper subset of the other."""
        return len(self._set) < len(other._set) and self._set <= other._set

    def coldest(self) -> str | None:
        """The member with the lowest usage now, without excluded ones."""
        while self._heap:
            noted, broker = self._heap[0]
            if noted == self._usage[broker]:
                return broker
            heappop(self._heap)
            heappush(self._heap, (self._usage[broker], broker))
        return None

    def leave_out(self) -> str:
        """Exclude the coldest member and return it; `put_back` reverts that."""
        return heappop(self._heap)[1]

    def put_back(self, broker: str) -> None:
        heappush(self._heap, (self._usage[broker], broker))


def set_levels(pools: Sequence[Pool], usage: dict[str, float]) -> None:
    """Set each pool's level: its work divided among its members. A member's usage by narrower pools is fixed for
    this pool; its usage by wider pools can move elsewhere, so it does not count: unbound work makes room for bound
    work, never the other way round."""
    alone: dict[Pool, float] = {}
    wider = {pool: [other for other in pools if pool.within(other)] for pool in pools}
    for pool in pools:
        counted = (pool, *wider[pool])
        fixed = [
            max(0.0, usage[broker] - sum(other.held.get(broker, 0.0) for other in counted))
            for broker in pool.members
        ]
        alone[pool] = water_level(fixed, sum(pool.held.values()))
    for pool in pools:
        pool.level = max(alone[other] for other in (pool, *wider[pool]))


def water_level(ground: Sequence[float], water: float) -> float:
    """The level if the water covers ground of these heights, the lowest first."""
    heights = sorted(ground)
    level = 0.0
    for covered, (height, total) in enumerate(zip(heights, accumulate(heights), strict=True), 1):
        if covered > 1 and height >= level:
            break
        level = (total + water) / covered
    return level


class Isolation(Protocol):
    """Bindings of namespaces to groups of brokers."""

    def allowed(self, namespace: str, live: frozenset[str]) -> Set[str]:
        """The live brokers that may own the namespace's bundles, including fallbacks. Namespaces with equal
        bindings get equal sets. Empty only if `live` is empty."""


class NoIsolation:
    """Every broker may own every bundle."""

    def allowed(self, namespace: str, live: frozenset[str]) -> Set[str]:
        return live


@dataclass(frozen=True, slots=True)
class BalanceLimits:
    """Limits of balance rounds. Usage is a share of one broker's capacity: 0.1 is a tenth of a broker.

    Load shedding starts when a broker is further than `start` from the mean of its pool, and ends when it is
    within `stop`: this hysteresis prevents moves because of fluctuating measurements.
    """

    start: float = 0.10
    stop: float = 0.04
    #: A broker with this usage is relieved even if the others have nearly as much.
    full: float = 0.90
    #: A broker with this share of its memory in use gets no more bundles, and is relieved.
    memory_full: float = 0.90
    #: Minimum total gain of the moves from or to one broker in a round; less does not justify the interruption.
    min_gain: float = 0.01
    #: Minimum time between moves of a bundle, except from a drained broker.
    bundle_pause_s: float = 600.0
    #: After a move, time to measure a broker again before it is source or target of another move.
    broker_pause_s: float = 60.0
    #: Load shedding moves per round: this number, or the number of unbalanced brokers if that is greater, but at
    #: most this share of all brokers: fast after a broker failure, and slow otherwise.
    moves_per_round: int = 10
    moves_share: float = 0.5
    #: Of these, maximum from one broker and to one broker: an empty broker fills up gradually.
    moves_from_broker: int = 8
    moves_to_broker: int = 4
    #: Moves per round off drained brokers, and off brokers that a namespace is not bound to.
    evictions_per_round: int = 200
    #: Splits per round: this number, or this share of the number of brokers; and per broker.
    splits_per_round: int = 10
    splits_share: float = 0.05
    splits_per_broker: int = 4
    #: A bundle above any of these is split, if it has two topics and its namespace permits one more bundle.
    split_usage: float = 0.30
    split_messages_per_s: float = 30_000.0
    split_bytes_per_s: float = 100e6
    split_topics: int = 1000
    bundles_per_namespace: int = 128
    #: Topic counts are evened out for brokers further from the mean than this share of it and than this number of
    #: topics, until they are within `count_stop` of it.
    count_start: float = 0.25
    count_stop: float = 0.15
    count_least: float = 3.0
    #: Capacity besides CPU, for machines whose network is the bottleneck; 0: unknown.
    broker_messages_per_s: float = 0.0
    broker_bytes_per_s: float = 0.0

    @property
    def band(self) -> float:
        """The distance from the mean that a move may cause: half-way between the thresholds, so that no move
        triggers the next."""
        return (self.start + self.stop) / 2

    def moves(self, brokers: int, uneven: int) -> int:
        """Maximum load shedding moves of a round, by the number of brokers and of unbalanced brokers."""
        return max(self.moves_per_round, min(uneven, int(self.moves_share * brokers)))

    def splits(self, brokers: int) -> int:
        """Maximum splits of a round, by the number of brokers."""
        return max(self.splits_per_round, int(self.splits_share * brokers))


class History:
    """Recent actions of one leader. A new leader starts without: it may move a bundle once more too soon, not
    more."""

    def __init__(self) -> None:
        #: Brokers that give or get bundles until they are within the inner threshold.
        self.hot: frozenset[str] = frozenset()
        self.cold: frozenset[str] = frozenset()
        #: The same for topic counts: brokers with too many, and with too few.
        self.many: frozenset[str] = frozenset()
        self.few: frozenset[str] = frozenset()
        self._bundles: dict[str, float] = {}
        self._brokers: dict[str, float] = {}
        self._memory: dict[str, float] = {}

    def bundle_rests(self, bundle: str, limits: BalanceLimits, now: float) -> bool:
        """Whether it was moved too recently to move again."""
        at = self._bundles.get(bundle)
        return at is not None and now - at < limits.bundle_pause_s

    def broker_rests(self, broker: str, limits: BalanceLimits, now: float) -> bool:
        """Whether its measurements may still be from before its last move."""
        at = self._brokers.get(broker)
        return at is not None and now - at < limits.broker_pause_s

    def memory_rests(self, broker: str, limits: BalanceLimits, now: float) -> bool:
        """Whether it gave a bundle to save memory recently: a process returns memory late or never, so a bundle
        per round would empty the broker without effect."""
        at = self._memory.get(broker)
        return at is not None and now - at < limits.bundle_pause_s

    def note(self, actions: Iterable[Action], limits: BalanceLimits, now: float) -> None:
        """Record planned actions, successful or not; drop old ones. Splits are not recorded: the halves stay on
        their broker, their load is known by topic, and they may move at once."""
        self._bundles = {b: at for b, at in self._bundles.items() if now - at < limits.bundle_pause_s}
        self._brokers = {b: at for b, at in self._brokers.items() if now - at < limits.broker_pause_s}
        self._memory = {b: at for b, at in self._memory.items() if now - at < limits.bundle_pause_s}
        for action in actions:
            if isinstance(action, Move):
                self._bundles[action.bundle] = now
                self._brokers[action.source] = self._brokers[action.target] = now
                if action.reason is Reason.MEMORY:
                    self._memory[action.source] = now


#: Bytes that cost a broker about as much as one message (docs/internals/benchmarks.md: CPU per message and per
#: MB).
BYTES_PER_MESSAGE = 4096.0


def broker_usage(load: BrokerLoad, limits: BalanceLimits) -> float:
    """Usage of the scarcest resource: CPU, or the configured capacity in messages and bytes. Memory does not
    count: a process does not return it with its bundles, so repeated moves would not lower it."""
    usage = load.cpu
    if limits.broker_messages_per_s:
        usage = max(usage, load.messages / limits.broker_messages_per_s)
    if limits.broker_bytes_per_s:
        usage = max(usage, load.bytes / limits.broker_bytes_per_s)
    return usage


def cost(load: BrokerLoad | BundleLoad) -> float:
    """Work, in messages per second."""
    return load.messages_in + load.messages_out + (load.bytes_in + load.bytes_out) * (1 / BYTES_PER_MESSAGE)


def traffic_cost(messages_in: float, bytes_in: float, messages_out: float, bytes_out: float) -> float:
    """`cost` of plain rates."""
    return messages_in + messages_out + (bytes_in + bytes_out) / BYTES_PER_MESSAGE


def usage_per_cost(load: BrokerLoad, usage: float) -> float:
    """The share of the broker that one unit of work takes, as measured; 0 for a broker without work."""
    total = cost(load)
    return usage / total if total > 0 else 0.0


#: Usage of a bundle without load, so that many of them do not all move to one broker.
LEAST_USAGE = 1e-5
#: Bundles that one unit of work covers.
BUNDLES_PER_UNIT = 16
#: Minimum topics of a bundle that can be split.
FEWEST_TOPICS = 2
#: Factor of the moves per round from a full broker.
_MANY_TIMES = 4


class Candidates:
    """Bundles of one broker in one pool, by usage."""

    def __init__(self, rows: list[tuple[float, str, int]]) -> None:
        """`rows`: usage, name and loaded topics of each."""
        self._rows = sorted(rows)
        self._usages = [usage for usage, _, _ in self._rows]

    def take(self, need: float, most: float, least: float = 0.0) -> tuple[str, float] | None:
        """Remove and return the smallest bundle of at least `need`, else the largest; in any case from `least` to
        `most`."""
        at = bisect_left(self._usages, need)
        if at == len(self._usages) or self._usages[at] > most:
            at = bisect_right(self._usages, most) - 1
            if at < 0 or self._usages[at] < least:
                return None
        usage, name, _ = self._rows.pop(at)
        self._usages.pop(at)
        return name, usage

    def divisible(self, least: float) -> Iterator[tuple[float, str]]:
        """Remaining bundles with at least this usage and more than one topic, the largest first."""
        for usage, name, topics in reversed(self._rows):
            if usage < least:
                return
            if topics >= FEWEST_TOPICS:
                yield usage, name


class Round:
    """The state that the steps of a round share."""

    def __init__(
        self,
        loads: Sequence[BrokerLoad],
        limits: BalanceLimits,
        isolation: Isolation,
        history: History,
        now: float,
    ) -> None:
        self.limits = limits
        self.history = history
        self.now = now
        self.loads = {load.broker_id: load for load in loads}
        self.usage = {load.broker_id: broker_usage(load, limits) for load in loads}
        self.per_cost = {broker: usage_per_cost(load, self.usage[broker]) for broker, load in self.loads.items()}
        #: By broker: the cost of each of its bundles, in the same order.
        self.costs: dict[str, list[float]] = {}
        self.actions: list[Action] = []
        self._isolation = isolation
        self._takers = frozenset(b for b, load in self.loads.items() if not load.draining)
        self._pools: dict[frozenset[str], Pool] = {}
        self._pool_of: dict[str, Pool] = {}
        self._pools_at: dict[str, list[Pool]] = {}
        #: Bundles per namespace: those reported, and those that planned splits will add.
        self._counts: Counter[str] = Counter()
        self._splits = Counter[str]()
        self._full = frozenset(broker for broker, used in self.usage.items() if used >= limits.full)
        self._busy: set[str] = set()
        self._given: dict[str, int] = {}
        self._taken: dict[str, int] = {}

    # --- measurements -------------------------------------------------------------------------------------------

    def pool_of(self, namespace: str) -> Pool:
        """The brokers that may get the namespace's bundles."""
        pool = self._pool_of.get(namespace)
        if pool is None:
            allowed = frozenset(self._isolation.allowed(namespace, self._takers))
            pool = self._pools.get(allowed)
            if pool is None:
                pool = self._pools[allowed] = Pool(sorted(allowed & self._takers), self.usage)
            self._pool_of[namespace] = pool
        return pool

    def survey(self) -> Steps[None]:
        """Determine the pools, their usage by broker, and their levels. This must precede all decisions."""
        for broker, load in self.loads.items():
            costs = self.costs[broker] = [cost(bundle) for bundle in load.bundles]
            namespaces = [bundle.bundle.rpartition("/")[0] for bundle in load.bundles]
            self._counts.update(namespaces)
            sums: dict[Pool, float] = {}
            for namespace, work in zip(namespaces, costs, strict=True):
                pool = self.pool_of(namespace)
                sums[pool] = sums.get(pool, 0.0) + work
            for pool, work in sums.items():
                pool.held[broker] = work * self.per_cost[broker]
            self._pools_at[broker] = list(sums)
            yield 1 + len(load.bundles) // BUNDLES_PER_UNIT
        set_levels(self.pools, self.usage)
        yield 1 + len(self.pools) * len(self.loads) // BUNDLES_PER_UNIT

    @property
    def pools(self) -> list[Pool]:
        """All pools with members, the widest first."""
        found = [pool for pool in self._pools.values() if pool.members]
        return sorted(found, key=lambda pool: (-len(pool.members), pool.members))

    def pools_at(self, broker: str) -> list[Pool]:
        """The pools that the broker has bundles of."""
        return self._pools_at[broker]

    def candidates(self, broker: str, pool: Pool) -> Candidates:
        """The broker's bundles of the pool that may move now."""
        per_cost = self.per_cost[broker]
        rows = [
            (max(LEAST_USAGE, work * per_cost), bundle.bundle, bundle.topics)
            for bundle, work in zip(self.loads[broker].bundles, self.costs[broker], strict=True)
            if self.pool_of(bundle.namespace) is pool
            and bundle.bundle not in self._busy
            and not self.history.bundle_rests(bundle.bundle, self.limits, self.now)
        ]
        return Candidates(rows)

    def bundle_usage(self, broker: str, bundle: BundleLoad) -> float:
        """Approximate share of a broker that the bundle uses, as measured on its owner."""
        return max(LEAST_USAGE, cost(bundle) * self.per_cost[broker])

    def rests(self, broker: str) -> bool:
        return self.history.broker_rests(broker, self.limits, self.now)

    def is_busy(self, bundle: str) -> bool:
        """Whether this round has an action for the bundle."""
        return bundle in self._busy

    def memory_full(self, broker: str) -> bool:
        return self.loads[broker].memory >= self.limits.memory_full

    def memory_rests(self, broker: str) -> bool:
        return self.history.memory_rests(broker, self.limits, self.now)

    def may_give(self, broker: str, *, many: bool = False) -> bool:
        """Whether the round permits one more move from the broker."""
        most = self.limits.moves_from_broker * (_MANY_TIMES if many else 1)
        return self._given.get(broker, 0) < most and not self.rests(broker)

    def is_full(self, broker: str) -> bool:
        """Whether it was full at the start of the round; its demand may exceed its capacity."""
        return broker in self._full

    def may_take(self, broker: str) -> bool:
        """Whether it can be a target of load shedding."""
        return (
            self._taken.get(broker, 0) < self.limits.moves_to_broker
            and not self.memory_full(broker)
            and not self.rests(broker)
        )

    # --- decisions ----------------------------------------------------------------------------------------------

    def split(self, bundle: str, broker: str) -> bool:
        """Plan a split if the limits permit one more; return whether they do."""
        limits, namespace = self.limits, bundle.rpartition("/")[0]
        if (
            self._splits.total() >= limits.splits(len(self.loads))
            or self._splits[broker] >= limits.splits_per_broker
            or self._counts[namespace] >= limits.bundles_per_namespace
        ):
            return False
        self._counts[namespace] += 1
        self._splits[broker] += 1
        self._decide(Split(bundle, broker))
        return True

    def _decide(self, action: Action) -> None:
        self.actions.append(action)
        self._busy.add(action.bundle)

    def move(self, bundle: str, source: str, target: str, reason: Reason, usage: float) -> Move:
        """Plan a move, and count its usage from now on."""
        move = Move(bundle, source, target, reason, usage)
        self._decide(move)
        self._count(move, 1)
        return move

    def undo(self, moves: Sequence[Move]) -> None:
        """Remove the last planned moves."""
        for move in moves:
            self._count(move, -1)
            self._busy.discard(move.bundle)
        del self.actions[len(self.actions) - len(moves) :]

    def _count(self, move: Move, sign: int) -> None:
        self.usage[move.source] -= sign * move.usage
        self.usage[move.target] += sign * move.usage
        self._given[move.source] = self._given.get(move.source, 0) + sign
        self._taken[move.target] = self._taken.get(move.target, 0) + sign
