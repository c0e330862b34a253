"""The plan of a balance round: a pure decision, in bounded work, which bundles to move and to split.

Load shedding moves bundles from hot to cold brokers. A broker is hot from `start` above the mean of its pool until
it is within `stop` of it; cold likewise below. A move leaves both of its brokers within `band` of the mean, which
is less than `start`: so a move never makes another broker hot or cold, and never makes the target the next
hottest.

Evictions move bundles off drained brokers and off brokers that their namespace is not bound to. They need no gain,
so the thresholds of load shedding do not apply. They are bounded per round, and a bundle that a binding moves has
a pause like others: a binding that changes repeatedly moves it no more often.

Splits divide bundles that are hot or large, if that can help.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from weir.broker.balance.balance_round import (
    BUNDLES_PER_UNIT,
    BYTES_PER_MESSAGE,
    FEWEST_TOPICS,
    Action,
    BalanceLimits,
    Candidates,
    History,
    Isolation,
    Move,
    Pool,
    Reason,
    Round,
)
from weir.broker.balance.leader_counts import even_out_counts
from weir.model.check import Steps, finish
from weir.model.cluster import BrokerLoad

#: Work units of a decision about one broker.
_UNITS = 8


def even_out(round_: Round) -> Steps[None]:
    """Plan moves for all brokers outside of their pools' thresholds: full brokers first, then by distance."""
    pools = [_PoolShedding(round_, pool) for pool in round_.pools]
    hot = _hottest_first(round_, pools)
    cold = {broker for pool in pools for broker in pool.cold}
    round_.history.hot = frozenset(broker for broker, _ in hot)
    round_.history.cold = frozenset(cold)
    left = round_.limits.moves(len(round_.loads), len(hot) + len(cold))
    for source, givers in hot:
        if left <= 0:
            break
        left -= relieve(source, givers, left)
        yield _UNITS
    for pool in pools:
        left = pool.spare_memory(left)
        yield _UNITS
    for pool in reversed(pools):
        left = yield from pool.fill(left)


def _hottest_first(round_: Round, pools: list["_PoolShedding"]) -> list[tuple[str, list["_PoolShedding"]]]:
    """Overloaded brokers, each with the pools in which they are, the widest pool first: a bundle that may run on
    any broker leaves before a bound one."""
    usage, full = round_.usage, round_.limits.full
    found: dict[str, list[_PoolShedding]] = {}
    for pool in pools:
        for broker in pool.hot:
            found.setdefault(broker, []).append(pool)
    return sorted(
        found.items(),
        key=lambda item: (usage[item[0]] < full, min(p.pool.level for p in item[1]) - usage[item[0]], item[0]),
    )


def relieve(source: str, pools: list["_PoolShedding"], left: int) -> int:
    """Move at most `left` bundles off a broker if the total gain is sufficient; return how many. A bundle that is
    too large for every target is split, and moved in a later round."""
    round_ = pools[0].round
    moves: list[Move] = []
    for pool in pools:
        moves += pool.relieve(source, left - len(moves))
    kept = keep_if_worth(round_, moves)
    for pool in pools:
        pool.make_movable(source)
    return kept


def keep_if_worth(round_: Round, moves: list[Move]) -> int:
    """Keep the last moves if their total gain is sufficient, else undo all of them; return how many stay."""
    if sum(move.usage for move in moves) >= round_.limits.min_gain:
        return len(moves)
    round_.undo(moves)
    return 0


class _PoolShedding:
    """Load shedding within one pool in a round."""

    def __init__(self, round_: Round, pool: Pool) -> None:
        self.pool = pool
        self.round = round_
        self._candidates: dict[str, Candidates] = {}
        limits, usage, level = round_.limits, round_.usage, pool.level
        self._level = level
        self.hot = [
            broker
            for broker, held in pool.held.items()
            if held >= limits.min_gain
            and usage[broker] > level + limits.stop
            and (
                usage[broker] > min(level + limits.start, limits.full)
                # A broker that cannot reach the inner threshold by giving all of its bundles of this pool is left
                # alone once it is within the outer one.
                or (broker in round_.history.hot and usage[broker] - held < level + limits.stop)
            )
        ]
        #: Hot brokers that the bundles of other pools alone fill up to this pool's level.
        self._filled = {broker for broker in self.hot if usage[broker] - pool.held[broker] >= level - limits.stop}
        self.cold = [
            broker
            for broker in pool.members
            if usage[broker] < level - limits.stop
            and (usage[broker] < level - limits.start or broker in round_.history.cold)
        ]

    # --- hot ----------------------------------------------------------------------------------------------------

    def relieve(self, source: str, left: int) -> list[Move]:
        """Move bundles to the coldest brokers, until the source is within the inner threshold. Small bundles only
        if that ends soon: the broker is full, or its other bundles fill it and it gives up this pool
        completely."""
        round_, limits, level = self.round, self.round.limits, self._level
        moves: list[Move] = []
        candidates = self._of(source)
        clears = round_.is_full(source) or source in self._filled
        least = 0.0 if clears else limits.min_gain / 4
        while len(moves) < left and round_.may_give(source, many=clears):
            need, target = self._need(source), self._taker()
            if need <= 0 or target is None:
                break
            room = level + limits.band - round_.usage[target]
            found = candidates.take(need, min(room, round_.usage[source] - (level - limits.band)), least)
            if found is None:
                break
            moves.append(round_.move(found[0], source, target, Reason.HOT, found[1]))
        return moves

    def make_movable(self, source: str) -> None:
        """If the source must give more and no remaining bundle fits a target, split the largest ones."""
        round_, limits = self.round, self.round.limits
        need, target = self._need(source), self._taker()
        if target is None or round_.rests(source):
            return
        room = self._level + limits.band - round_.usage[target]
        for usage, bundle in self._of(source).divisible(max(room, 2 * limits.min_gain)):
            if need <= 0 or not round_.split(bundle, source):
                return
            need -= usage

    def _need(self, source: str) -> float:
        """The usage that the source must give to be within the inner threshold."""
        return self.round.usage[source] - (self._level + self.round.limits.stop)

    def _taker(self) -> str | None:
        """The coldest eligible target; ineligible ones are excluded for the rest of the round."""
        while (target := self.pool.coldest()) is not None and not self.round.may_take(target):
            self.pool.leave_out()
        return target

    # --- memory -------------------------------------------------------------------------------------------------

    def spare_memory(self, left: int) -> int:
        """Move one bundle, the busiest that fits elsewhere, off each broker whose memory is full."""
        round_ = self.round
        for source in self.pool.held:
            if left <= 0 or not round_.memory_full(source) or round_.memory_rests(source) or round_.rests(source):
                continue
            target = self._taker()
            if target is not None:
                found = self._of(source).take(inf, self._level + round_.limits.band - round_.usage[target])
                if found is not None:
                    round_.move(found[0], source, target, Reason.MEMORY, found[1])
                    left -= 1
        return left

    # --- cold ---------------------------------------------------------------------------------------------------

    def fill(self, left: int) -> Steps[int]:
        """Move bundles from brokers above the level to the cold ones, the coldest first."""
        usage = self.round.usage
        if not self.cold or left <= 0:
            return left
        least = self.round.limits.min_gain
        sources = [(-usage[b], b) for b, held in self.pool.held.items() if held >= least and self._has_surplus(b)]
        heapify(sources)
        for target in sorted(self.cold, key=lambda broker: (usage[broker], broker)):
            if left <= 0 or not sources:
                break
            left -= keep_if_worth(self.round, self._fill(target, sources, left))
            yield _UNITS
        return left

    def _fill(self, target: str, sources: list[tuple[float, str]], left: int) -> list[Move]:
        round_, limits, level = self.round, self.round.limits, self._level
        moves: list[Move] = []
        passed: list[str] = []
        while len(moves) < left and round_.may_take(target) and sources:
            need = level - limits.stop - round_.usage[target]
            if need <= 0:
                break
            noted, source = heappop(sources)
            if noted != -round_.usage[source]:
                heappush(sources, (-round_.usage[source], source))
                continue
            spare = round_.usage[source] - level
            found = (
                self._of(source).take(need, min(need + limits.stop, spare)) if self._has_surplus(source) else None
            )
            if found is not None:  # else none of its bundles fits, for other targets either
                moves.append(round_.move(found[0], source, target, Reason.COLD, found[1]))
                passed.append(source)
        for source in passed:
            heappush(sources, (-round_.usage[source], source))
        return moves

    def _has_surplus(self, source: str) -> bool:
        return self.round.may_give(source) and self.round.usage[source] > self._level

    # --- both ---------------------------------------------------------------------------------------------------

    def _of(self, source: str) -> Candidates:
        found = self._candidates.get(source)
        if found is None:
            found = self._candidates[source] = self.round.candidates(source, self.pool)
        return found


def split_bundles(round_: Round) -> Steps[None]:
    """Split the worst bundles first, a few per broker. The load of the halves is known by topic, so a split does
    not wait for moves, or moves for a split."""
    found: list[tuple[float, str, str]] = []
    for broker, load in round_.loads.items():
        found += [(times, bundle, broker) for times, bundle in _over(round_, broker, load)]
        yield 1 + len(load.bundles) // (4 * BUNDLES_PER_UNIT)
    for _, bundle, broker in sorted(found, key=lambda item: (-item[0], item[1])):
        round_.split(bundle, broker)


def _over(round_: Round, broker: str, load: BrokerLoad) -> Iterator[tuple[float, str]]:
    """Yield bundles over a limit, with the largest ratio of load to limit. This loop covers every bundle of a
    cluster, so it must be fast: work combines messages and bytes, and a bundle with little work is over none of
    these limits."""
    limits = round_.limits
    per_cost = round_.per_cost[broker]
    little = min(limits.split_messages_per_s, limits.split_bytes_per_s / BYTES_PER_MESSAGE)
    if per_cost > 0:
        little = min(little, limits.split_usage / per_cost)
    for bundle, work in zip(load.bundles, round_.costs[broker], strict=True):
        if (work > little or bundle.topics > limits.split_topics) and bundle.topics >= FEWEST_TOPICS:
            times = max(
                bundle.topics / limits.split_topics,
                bundle.messages / limits.split_messages_per_s,
                bundle.bytes / limits.split_bytes_per_s,
                work * per_cost / limits.split_usage,
            )
            if times > 1:
                yield times, bundle.bundle


def evict_bundles(round_: Round) -> Steps[None]:
    """Move misplaced bundles, the largest first, each to the coldest permitted broker."""
    found: list[tuple[float, str, str, Pool, Reason]] = []
    for broker in round_.loads:
        found += _misplaced(round_, broker)
        yield 1
    found.sort(key=lambda item: (-item[0], item[1]))
    for usage, bundle, source, pool, reason in found[: round_.limits.evictions_per_round]:
        target = _target(round_, pool)
        if target is not None:
            round_.move(bundle, source, target, reason, usage)


def _misplaced(round_: Round, broker: str) -> Iterator[tuple[float, str, str, Pool, Reason]]:
    load = round_.loads[broker]
    wrong = {id(pool) for pool in round_.pools_at(broker) if not pool.has(broker)}
    for bundle in load.bundles if wrong else ():
        pool = round_.pool_of(bundle.namespace)
        if id(pool) not in wrong or round_.is_busy(bundle.bundle):
            continue
        reason = Reason.DRAIN if load.draining else Reason.ISOLATION
        if load.draining or not round_.history.bundle_rests(bundle.bundle, round_.limits, round_.now):
            yield round_.bundle_usage(broker, bundle), bundle.bundle, broker, pool, reason


def _target(round_: Round, pool: Pool) -> str | None:
    """The coldest broker with free memory; else the coldest."""
    left_out = []
    while (target := pool.coldest()) is not None and round_.memory_full(target):
        left_out.append(pool.leave_out())
    for broker in left_out:
        pool.put_back(broker)
    return target if target is not None else pool.coldest()


def plan_moves(
    loads: Sequence[BrokerLoad], limits: BalanceLimits, isolation: Isolation, history: History, now: float
) -> list[Action]:
    """Run all steps of `plan_in_steps` at once."""
    return finish(plan_in_steps(loads, limits, isolation, history, now))


def plan_in_steps(
    loads: Sequence[BrokerLoad], limits: BalanceLimits, isolation: Isolation, history: History, now: float
) -> Steps[list[Action]]:
    """Plan one round. No I/O and no clock: the same arguments give the same answer. `loads`: of every broker that
    answered; other brokers are neither source nor target. `history`: earlier actions; the round adds its own.
    `now`: seconds of any monotonic clock.

    Bundles without an owner are out of scope: all brokers choose the same owner when a client looks one up.
    """
    round_ = Round(loads, limits, isolation, history, now)
    yield from round_.survey()
    yield from split_bundles(round_)
    yield from evict_bundles(round_)
    yield from even_out(round_)
    yield from even_out_counts(round_)
    history.note(round_.actions, limits, now)
    return round_.actions
