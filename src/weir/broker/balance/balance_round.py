"""One round of balance: what is known, what was decided so far, and what that makes of everyone's usage.

What balance aims at, and the bounds that keep it calm.

Pools: brokers that may have the same bundles, and the level that their work comes to when it is shared out.

What was done of late, so that nothing is done again too soon.

Load as one number: the share of a broker that is used, and a bundle's part of it.

What a round of balance asks for.

Which brokers may have a namespace's bundles, as balance asks it.
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
    """Why a bundle is moved."""

    DRAIN = "drain"
    ISOLATION = "isolation"
    HOT = "hot"
    COLD = "cold"
    MEMORY = "memory"
    #: To serve about as many topics as others.
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Move:
    """`source` is asked to hand the bundle over. `usage`: about what share of a broker it is."""

    bundle: str
    source: str
    target: str
    reason: Reason = Reason.HOT
    usage: float = 0.0


@dataclass(frozen=True, slots=True)
class Split:
    """`broker` is asked to make two of the bundle, where its topics' load is halved."""

    bundle: str
    broker: str


Action = Move | Split


class Pool:
    """The unbound namespaces' pool has all brokers, that of a group has the group's: a broker is in several."""

    def __init__(self, members: Sequence[str], usage: dict[str, float]) -> None:
        """`members`: sorted, those only that may be given something. `usage`: of every broker, by now."""
        self.members = members
        #: Usage by the pool's bundles, by the broker that has them; holders need not be members.
        self.held: dict[str, float] = {}
        #: What each member comes to when the work is shared out; of a narrow pool not less than of a wider one.
        self.level = 0.0
        self._usage = usage
        self._set = frozenset(members)
        self._heap = [(usage[broker], broker) for broker in members]
        heapify(self._heap)

    def has(self, broker: str) -> bool:
        return broker in self._set

    def within(self, other: "Pool") -> bool:
        """Whether each member of it is one of the other's, which has more."""
        return len(self._set) < len(other._set) and self._set <= other._set

    def coldest(self) -> str | None:
        """The member with the lowest usage by now, but those that were left out."""
        while self._heap:
            noted, broker = self._heap[0]
            if noted == self._usage[broker]:
                return broker
            heappop(self._heap)
            heappush(self._heap, (self._usage[broker], broker))
        return None

    def leave_out(self) -> str:
        """Consider the coldest no more, and say who it was; `put_back` undoes it."""
        return heappop(self._heap)[1]

    def put_back(self, broker: str) -> None:
        heappush(self._heap, (self._usage[broker], broker))


def set_levels(pools: Sequence[Pool], usage: dict[str, float]) -> None:
    """Each pool's work over its members. What a member has of narrower pools cannot leave it for this pool's sake;
    what it has of wider ones can, so it is not counted: unbound work makes room for bound work, never the other
    way round."""
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
    """How high it stands when so much is poured over ground of these heights: the lowest are covered first."""
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
        """Those among the live brokers that may have its bundles, a fallback taken into account. For namespaces
        that are bound alike it is the same or an equal set; it is empty only if nobody lives."""


class NoIsolation:
    """Every broker may have everything."""

    def allowed(self, namespace: str, live: frozenset[str]) -> Set[str]:
        return live


@dataclass(frozen=True, slots=True)
class BalanceLimits:
    """Usage is a share of what one broker can do: 0.1 is a tenth of a broker.

    A broker further than `start` from the mean of those that share its work is evened out, and that is over when
    it is within `stop`: the gap between the two is what keeps measures that waver from moving anything.
    """

    start: float = 0.10
    stop: float = 0.04
    #: A broker that has so much to do is relieved even if the others have nearly as much.
    full: float = 0.90
    #: So much of its memory in use: it is given nothing more, and relieved.
    memory_full: float = 0.90
    #: What all moves from or to one broker in a round must gain together, or none of them is worth a pause.
    min_gain: float = 0.01
    #: A bundle that was moved stays for so long, whatever is measured; a drained broker's excepted.
    bundle_pause_s: float = 600.0
    #: A broker that gave or got a bundle is measured anew for so long before it gives or gets another.
    broker_pause_s: float = 60.0
    #: Moves of a round that even out: this many, or as many as there are brokers to even out, whichever is more,
    #: but no more than this share of the number of brokers: quick after a loss and slow while all is well.
    moves_per_round: int = 10
    moves_share: float = 0.5
    #: Of these, from one broker, and to one: an empty one gets its share bit by bit.
    moves_from_broker: int = 8
    moves_to_broker: int = 4
    #: Moves of a round away from drained brokers and from brokers that a namespace is not bound to.
    evictions_per_round: int = 200
    #: Splits of a round: this many, or this share of the number of brokers; and of one broker.
    splits_per_round: int = 10
    splits_share: float = 0.05
    splits_per_broker: int = 4
    #: A bundle above any of these is split, if it has two topics and its namespace has room for one more.
    split_usage: float = 0.30
    split_messages_per_s: float = 30_000.0
    split_bytes_per_s: float = 100e6
    split_topics: int = 1000
    bundles_per_namespace: int = 128
    #: Numbers of topics are evened out for brokers that are further from the mean than this share of it, and than
    #: so many topics, until they are within `count_stop` of it.
    count_start: float = 0.25
    count_stop: float = 0.15
    count_least: float = 3.0
    #: What a broker can do besides its CPU, for machines where the network is what ends first; 0: not known.
    broker_messages_per_s: float = 0.0
    broker_bytes_per_s: float = 0.0

    @property
    def band(self) -> float:
        """How far from the mean a move may bring any broker: half-way between the two thresholds, so that no move
        is the reason for the next."""
        return (self.start + self.stop) / 2

    def moves(self, brokers: int, uneven: int) -> int:
        """How many moves of a round even out, among so many brokers of which so many are far from their level."""
        return max(self.moves_per_round, min(uneven, int(self.moves_share * brokers)))

    def splits(self, brokers: int) -> int:
        """How many bundles are split in a round, among so many brokers."""
        return max(self.splits_per_round, int(self.splits_share * brokers))


class History:
    """Of one leader. A new leader begins with none: what the last one moved may move once more, and no more."""

    def __init__(self) -> None:
        #: Brokers that are being relieved, or filled, until they are within the inner threshold.
        self.hot: frozenset[str] = frozenset()
        self.cold: frozenset[str] = frozenset()
        #: The same by numbers of topics: too many, and too few.
        self.many: frozenset[str] = frozenset()
        self.few: frozenset[str] = frozenset()
        self._bundles: dict[str, float] = {}
        self._brokers: dict[str, float] = {}
        self._memory: dict[str, float] = {}

    def bundle_rests(self, bundle: str, limits: BalanceLimits, now: float) -> bool:
        """Whether it was moved so recently that it stays."""
        at = self._bundles.get(bundle)
        return at is not None and now - at < limits.bundle_pause_s

    def broker_rests(self, broker: str, limits: BalanceLimits, now: float) -> bool:
        """Whether what is measured of it may still be of before its last move."""
        at = self._brokers.get(broker)
        return at is not None and now - at < limits.broker_pause_s

    def memory_rests(self, broker: str, limits: BalanceLimits, now: float) -> bool:
        """Whether it gave a bundle for its memory's sake a while ago: a process gives memory back late or never,
        so one more each round would leave it empty and no better."""
        at = self._memory.get(broker)
        return at is not None and now - at < limits.bundle_pause_s

    def note(self, actions: Iterable[Action], limits: BalanceLimits, now: float) -> None:
        """Remember what is asked for now, done or not; forget what has rested long enough. Splits are not among
        it: the halves are where they were, are measured by their topics, and may move at once."""
        self._bundles = {b: at for b, at in self._bundles.items() if now - at < limits.bundle_pause_s}
        self._brokers = {b: at for b, at in self._brokers.items() if now - at < limits.broker_pause_s}
        self._memory = {b: at for b, at in self._memory.items() if now - at < limits.bundle_pause_s}
        for action in actions:
            if isinstance(action, Move):
                self._bundles[action.bundle] = now
                self._brokers[action.source] = self._brokers[action.target] = now
                if action.reason is Reason.MEMORY:
                    self._memory[action.source] = now


#: So many bytes cost a broker about as much as one more message (docs/internals/benchmarks.md: CPU per message
# and per MB).
BYTES_PER_MESSAGE = 4096.0


def broker_usage(load: BrokerLoad, limits: BalanceLimits) -> float:
    """What ends first: CPU, or what the operator said of messages and bytes. Memory is no part of it: a process
    does not give it back with its bundles, so relieving it again and again would not lower it."""
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
    """`cost`, of rates that are no report yet."""
    return messages_in + messages_out + (bytes_in + bytes_out) / BYTES_PER_MESSAGE


def usage_per_cost(load: BrokerLoad, usage: float) -> float:
    """How much of the broker one unit of work takes, as measured there; 0 for one that does no work."""
    total = cost(load)
    return usage / total if total > 0 else 0.0


#: What a bundle without load counts, so that many of them do not all go to one broker.
LEAST_USAGE = 1e-5
#: Bundles that are looked at in about the time of one unit of work.
BUNDLES_PER_UNIT = 16
#: A bundle of one topic has nothing to split.
FEWEST_TOPICS = 2
#: A broker that is full may give so many times as much in a round as others.
_MANY_TIMES = 4


class Candidates:
    """Bundles of one broker that one pool may have, by their usage."""

    def __init__(self, rows: list[tuple[float, str, int]]) -> None:
        """`rows`: usage, name and loaded topics of each."""
        self._rows = sorted(rows)
        self._usages = [usage for usage, _, _ in self._rows]

    def take(self, need: float, most: float, least: float = 0.0) -> tuple[str, float] | None:
        """The smallest that is at least `need`, else the largest; in any case from `least` to `most`."""
        at = bisect_left(self._usages, need)
        if at == len(self._usages) or self._usages[at] > most:
            at = bisect_right(self._usages, most) - 1
            if at < 0 or self._usages[at] < least:
                return None
        usage, name, _ = self._rows.pop(at)
        self._usages.pop(at)
        return name, usage

    def divisible(self, least: float) -> Iterator[tuple[float, str]]:
        """Those left with at least so much usage and more than one topic, the largest first."""
        for usage, name, topics in reversed(self._rows):
            if usage < least:
                return
            if topics >= FEWEST_TOPICS:
                yield usage, name


class Round:
    """Everything that the steps of a round share."""

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
        #: Of each broker's bundles, beside them.
        self.costs: dict[str, list[float]] = {}
        self.actions: list[Action] = []
        self._isolation = isolation
        self._takers = frozenset(b for b, load in self.loads.items() if not load.draining)
        self._pools: dict[frozenset[str], Pool] = {}
        self._pool_of: dict[str, Pool] = {}
        self._pools_at: dict[str, list[Pool]] = {}
        #: Bundles of each namespace that are reported, and those that splits will make.
        self._counts: Counter[str] = Counter()
        self._splits = Counter[str]()
        self._full = frozenset(broker for broker, used in self.usage.items() if used >= limits.full)
        self._busy: set[str] = set()
        self._given: dict[str, int] = {}
        self._taken: dict[str, int] = {}

    # --- what is known ------------------------------------------------------------------------------------------

    def pool_of(self, namespace: str) -> Pool:
        """Who may be given the namespace's bundles."""
        pool = self._pool_of.get(namespace)
        if pool is None:
            allowed = frozenset(self._isolation.allowed(namespace, self._takers))
            pool = self._pools.get(allowed)
            if pool is None:
                pool = self._pools[allowed] = Pool(sorted(allowed & self._takers), self.usage)
            self._pool_of[namespace] = pool
        return pool

    def survey(self) -> Steps[None]:
        """Which pools there are, what each broker has of them, and what level that comes to. It has to be done
        before anything is decided."""
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
        """All that have members, the widest first."""
        found = [pool for pool in self._pools.values() if pool.members]
        return sorted(found, key=lambda pool: (-len(pool.members), pool.members))

    def pools_at(self, broker: str) -> list[Pool]:
        """The pools that the broker has bundles of."""
        return self._pools_at[broker]

    def candidates(self, broker: str, pool: Pool) -> Candidates:
        """What the broker has of the pool that may move now."""
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
        """About what share of a broker it is, as measured where it is."""
        return max(LEAST_USAGE, cost(bundle) * self.per_cost[broker])

    def rests(self, broker: str) -> bool:
        return self.history.broker_rests(broker, self.limits, self.now)

    def is_busy(self, bundle: str) -> bool:
        """Whether something was decided about it in this round."""
        return bundle in self._busy

    def memory_full(self, broker: str) -> bool:
        return self.loads[broker].memory >= self.limits.memory_full

    def memory_rests(self, broker: str) -> bool:
        return self.history.memory_rests(broker, self.limits, self.now)

    def may_give(self, broker: str, *, many: bool = False) -> bool:
        """Whether one more move from it fits in this round."""
        most = self.limits.moves_from_broker * (_MANY_TIMES if many else 1)
        return self._given.get(broker, 0) < most and not self.rests(broker)

    def is_full(self, broker: str) -> bool:
        """Whether it had about as much as it can do when the round began: what it was to do may be more."""
        return broker in self._full

    def may_take(self, broker: str) -> bool:
        """Whether it can be given a bundle to even things out."""
        return (
            self._taken.get(broker, 0) < self.limits.moves_to_broker
            and not self.memory_full(broker)
            and not self.rests(broker)
        )

    # --- what is decided ----------------------------------------------------------------------------------------

    def split(self, bundle: str, broker: str) -> bool:
        """Decide it, if there is room for one more; whether there is."""
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
        """Decide it, and count it from now on."""
        move = Move(bundle, source, target, reason, usage)
        self._decide(move)
        self._count(move, 1)
        return move

    def undo(self, moves: Sequence[Move]) -> None:
        """The last ones that were decided are not worth it."""
        for move in moves:
            self._count(move, -1)
            self._busy.discard(move.bundle)
        del self.actions[len(self.actions) - len(moves) :]

    def _count(self, move: Move, sign: int) -> None:
        self.usage[move.source] -= sign * move.usage
        self.usage[move.target] += sign * move.usage
        self._given[move.source] = self._given.get(move.source, 0) + sign
        self._taken[move.target] = self._taken.get(move.target, 0) + sign
