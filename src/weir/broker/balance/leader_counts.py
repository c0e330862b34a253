"""Evens out topic counts: for Kafka clients, how many partitions each broker leads.

Load has precedence: a move for counts keeps the usage of both brokers within the band, and uses only the moves of
the round that load shedding has left. Moves for a broker start beyond the outer threshold, and end within the
inner one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from weir.broker.balance.balance_round import BUNDLES_PER_UNIT, FEWEST_TOPICS, Move, Pool, Reason, Round
from weir.model.check import Steps
from weir.model.cluster import BundleLoad
from weir.model.registry import SYSTEM_NAMESPACE

#: It has the coordinators: moving one interrupts all of its groups and transactions.
_SYSTEM = str(SYSTEM_NAMESPACE)


def even_out_counts(round_: Round) -> Steps[None]:
    """Plan moves from brokers with the most topics to brokers with the fewest."""
    if any(load.bundle_count > len(load.bundles) for load in round_.loads.values()):
        return  # some bundles are unknown
    many: set[str] = set()
    few: set[str] = set()
    left = round_.limits.moves_per_round - sum(isinstance(action, Move) for action in round_.actions)
    for pool in round_.pools:
        counts = _Counts(round_, pool)
        yield from counts.survey()
        many |= counts.many
        few |= counts.few
        left -= yield from counts.even_out(left)
    round_.history.many, round_.history.few = frozenset(many), frozenset(few)


@dataclass(slots=True)
class _Row:
    """A movable bundle: its topics, and its share of a broker."""

    bundle: str
    topics: int
    usage: float


class _Counts:
    """Topic counts within one pool."""

    def __init__(self, round_: Round, pool: Pool) -> None:
        self._round = round_
        self._pool = pool
        self._topics = dict.fromkeys(pool.members, 0)
        self._rows: dict[str, list[_Row]] = {}
        self._mean = 0.0
        self.many: frozenset[str] = frozenset()
        self.few: frozenset[str] = frozenset()

    def survey(self) -> Steps[None]:
        """Count the topics of each member, and find members far from the mean."""
        for broker in self._pool.members:
            load = self._round.loads[broker]
            self._topics[broker] = sum(bundle.topics for bundle in self._bundles(broker))
            yield 1 + len(load.bundles) // BUNDLES_PER_UNIT
        limits, history = self._round.limits, self._round.history
        self._mean = sum(self._topics.values()) / max(1, len(self._topics))
        outer = max(limits.count_least, limits.count_start * self._mean)
        inner = self._inner
        above = {broker: count - self._mean for broker, count in self._topics.items()}
        self.many = frozenset(
            b for b, over in above.items() if over > outer or (over > inner and b in history.many)
        )
        self.few = frozenset(
            b for b, over in above.items() if -over > outer or (-over > inner and b in history.few)
        )

    @property
    def _inner(self) -> float:
        return max(self._round.limits.count_least / 2, self._round.limits.count_stop * self._mean)

    def _bundles(self, broker: str) -> Iterator[BundleLoad]:
        """The broker's bundles of this pool, without coordinators."""
        for bundle in self._round.loads[broker].bundles:
            if (
                bundle.topics
                and bundle.namespace != _SYSTEM
                and self._round.pool_of(bundle.namespace) is self._pool
            ):
                yield bundle

    def even_out(self, left: int) -> Steps[int]:
        """Plan at most `left` moves; return how many."""
        moved = 0
        refused: set[str] = set()
        while moved < left and len(refused) < self._round.limits.moves_per_round and (self.many or self.few):
            source, target = self._most(refused), self._fewest()
            if source is None or target is None or not self._is_far(source, target):
                break
            row = self._fitting(source, target)
            if row is None:
                self._split(source, target)
                refused.add(source)
                yield 1
                continue
            self._round.move(row.bundle, source, target, Reason.COUNT, row.usage)
            self._topics[source] -= row.topics
            self._topics[target] += row.topics
            self._rows[source].remove(row)
            moved += 1
            yield 1
        return moved

    def _most(self, refused: set[str]) -> str | None:
        found = [b for b in self._pool.members if b not in refused and self._round.may_give(b)]
        return max(found, key=lambda broker: (self._topics[broker], broker), default=None)

    def _fewest(self) -> str | None:
        found = [broker for broker in self._pool.members if self._round.may_take(broker)]
        return min(found, key=lambda broker: (self._topics[broker], broker), default=None)

    def _is_far(self, source: str, target: str) -> bool:
        """Whether one of the two is still unbalanced, beyond the inner threshold."""
        over, under = self._topics[source] - self._mean, self._mean - self._topics[target]
        return (source in self.many and over > self._inner) or (target in self.few and under > self._inner)

    def _room(self, source: str, target: str) -> float:
        """How many topics may move: neither broker passes the other, or the inner threshold."""
        giver, taker, mean, inner = self._topics[source], self._topics[target], self._mean, self._inner
        return min((giver - taker) / 2, mean + inner - taker, giver - (mean - inner))

    def _fitting(self, source: str, target: str) -> _Row | None:
        """The bundle with the most topics that fits, both by its topics and by its load."""
        usage, level, band = self._round.usage, self._pool.level, self._round.limits.band
        room = self._room(source, target)
        work = min(level + band - usage[target], usage[source] - (level - band))
        found = [row for row in self._movable(source) if row.topics <= room and row.usage <= work]
        return max(found, key=lambda row: (row.topics, -row.usage, row.bundle), default=None)

    def _movable(self, source: str) -> list[_Row]:
        rows = self._rows.get(source)
        if rows is None:
            round_ = self._round
            rows = self._rows[source] = [
                _Row(bundle.bundle, bundle.topics, round_.bundle_usage(source, bundle))
                for bundle in self._bundles(source)
                if not round_.is_busy(bundle.bundle)
                and not round_.history.bundle_rests(bundle.bundle, round_.limits, round_.now)
            ]
        return rows

    def _split(self, source: str, target: str) -> None:
        """Split the largest bundle if all have too many topics to move: a half may fit in the next round."""
        room, rows = self._room(source, target), self._movable(source)
        largest = max(rows, key=lambda row: (row.topics, row.bundle), default=None)
        if largest is None or largest.topics < FEWEST_TOPICS or any(row.topics <= room for row in rows):
            return
        self._round.split(largest.bundle, source)
