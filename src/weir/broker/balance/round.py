"""One round of balance: what is known, what was decided so far, and what that makes of everyone's usage."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from weir.broker.balance.actions import Action, Move, Reason, Split
from weir.broker.balance.history import History
from weir.broker.balance.isolation import Isolation
from weir.broker.balance.limits import BalanceLimits
from weir.broker.balance.pools import Pool, set_levels
from weir.broker.balance.usage import broker_usage, cost, usage_per_cost
from weir.model.load import BrokerLoad, BundleLoad
from weir.model.steps import Steps

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
