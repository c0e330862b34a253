"""One round of balance: what is known, what was decided so far, and what that makes of everyone's usage."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from weir.broker.balance.actions import Action, Move, Reason
from weir.broker.balance.history import History
from weir.broker.balance.isolation import Isolation
from weir.broker.balance.limits import BalanceLimits
from weir.broker.balance.usage import broker_usage, cost, usage_per_cost
from weir.model.load import BrokerLoad, BundleLoad

#: What a bundle without load counts, so that many of them do not all go to one broker.
LEAST_USAGE = 1e-5


class Pool:
    """Brokers that may have the same bundles."""

    def __init__(self, members: Sequence[str], usage: dict[str, float]) -> None:
        """`members`: sorted, those only that may be given something."""
        self.members = members
        self._usage = usage
        self._set = frozenset(members)
        self._heap = [(usage[broker], broker) for broker in members]
        heapify(self._heap)

    def has(self, broker: str) -> bool:
        return broker in self._set

    def mean(self) -> float:
        """Of its members' usage by now."""
        return sum(self._usage[broker] for broker in self.members) / len(self.members) if self.members else 0.0

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


@dataclass(slots=True)
class Candidates:
    """Bundles of one broker that one pool may have: their usage, rising, beside their names."""

    usages: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def take(self, need: float, most: float) -> tuple[str, float] | None:
        """The smallest that is at least `need`, else the largest; in any case at most `most`."""
        at = bisect_left(self.usages, need)
        if at == len(self.usages) or self.usages[at] > most:
            at = bisect_right(self.usages, most) - 1
            if at < 0:
                return None
        return self.names.pop(at), self.usages.pop(at)


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
        self.actions: list[Action] = []
        self._isolation = isolation
        self._takers = frozenset(b for b, load in self.loads.items() if not load.draining)
        self._pools: dict[frozenset[str], Pool] = {}
        self._pool_of: dict[str, Pool] = {}
        self._pools_at: dict[str, list[Pool]] = {}
        self._busy: set[str] = set()
        self._given: dict[str, int] = {}

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

    def pools_at(self, broker: str) -> list[Pool]:
        """The pools that the broker has bundles of."""
        found = self._pools_at.get(broker)
        if found is None:
            namespaces = {bundle.bundle.rpartition("/")[0] for bundle in self.loads[broker].bundles}
            found = self._pools_at[broker] = list(
                {id(pool): pool for pool in map(self.pool_of, namespaces)}.values()
            )
        return found

    def holders(self) -> dict[Pool, list[str]]:
        """By pool, the brokers that have bundles of it."""
        found: dict[Pool, list[str]] = {}
        for broker in self.loads:
            for pool in self.pools_at(broker):
                found.setdefault(pool, []).append(broker)
        return found

    def candidates(self, broker: str, pool: Pool) -> Candidates:
        """What the broker has of the pool that may move now."""
        rows = sorted(
            (self.bundle_usage(broker, bundle), bundle.bundle)
            for bundle in self.loads[broker].bundles
            if self.pool_of(bundle.namespace) is pool
            and bundle.bundle not in self._busy
            and not self.history.bundle_rests(bundle.bundle, self.limits, self.now)
        )
        return Candidates([usage for usage, _ in rows], [name for _, name in rows])

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

    def has_turn(self, broker: str) -> bool:
        """Whether one more move from or to it fits in this round."""
        return self._given.get(broker, 0) < self.limits.moves_per_broker

    def may_take(self, broker: str) -> bool:
        """Whether it can be given a bundle to even things out."""
        return self.has_turn(broker) and not self.memory_full(broker) and not self.rests(broker)

    # --- what is decided ----------------------------------------------------------------------------------------

    def decide(self, action: Action) -> None:
        self.actions.append(action)
        self._busy.add(action.bundle)

    def move(self, bundle: str, source: str, target: str, reason: Reason, usage: float) -> Move:
        """Decide it, and count it from now on."""
        move = Move(bundle, source, target, reason, usage)
        self.decide(move)
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
        for broker in (move.source, move.target):
            self._given[broker] = self._given.get(broker, 0) + sign
