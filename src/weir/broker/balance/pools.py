"""Pools: brokers that may have the same bundles, and the level that their work comes to when it is shared out."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate


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
