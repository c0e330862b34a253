"""Evening out: hot brokers give, cold brokers get, and no move is the reason for the next.

A broker is hot from `start` above the mean of its pool on until it is within `stop` of it; cold likewise below.
A move leaves both of its brokers within `band` of the mean, which is less than `start`: so it makes nobody hot or
cold who was not, and never the target the next hottest.
"""

from heapq import heapify, heappop, heappush
from math import inf

from weir.broker.balance.actions import Move, Reason
from weir.broker.balance.round import Candidates, Pool, Round

#: Brokers that are asked in vain for something that fits, before one is given up for this round.
_TRIES = 16


def even_out(round_: Round) -> None:
    """All pools, those with the hottest brokers first."""
    pools = [_Evening(round_, pool, holders) for pool, holders in round_.holders().items() if pool.members]
    left = round_.limits.moves(len(round_.loads))
    round_.history.hot = frozenset(broker for pool in pools for broker in pool.hot)
    round_.history.cold = frozenset(broker for pool in pools for broker in pool.cold)
    pools.sort(key=lambda pool: (-pool.worst, pool.pool.members))
    for pool in pools:
        left = pool.relieve(left)
    for pool in pools:
        left = pool.spare_memory(left)
    for pool in pools:
        left = pool.fill(left)


class _Evening:
    """One pool's share of a round."""

    def __init__(self, round_: Round, pool: Pool, holders: list[str]) -> None:
        self.pool = pool
        self._round = round_
        self._holders = holders
        self._candidates: dict[str, Candidates] = {}
        limits, usage, mean = round_.limits, round_.usage, pool.mean()
        self._mean = mean
        self.hot = [
            broker
            for broker in holders
            if usage[broker] > mean + limits.stop
            and (usage[broker] > min(mean + limits.start, limits.full) or broker in round_.history.hot)
        ]
        self.cold = [
            broker
            for broker in pool.members
            if usage[broker] < mean - limits.stop
            and (usage[broker] < mean - limits.start or broker in round_.history.cold)
        ]
        self.worst = max((usage[broker] - mean for broker in self.hot), default=-inf)

    # --- hot ----------------------------------------------------------------------------------------------------

    def relieve(self, left: int) -> int:
        """Take from the hot ones, the hottest first, at most `left` bundles; how many are left then."""
        usage = self._round.usage
        for source in sorted(self.hot, key=lambda broker: (-usage[broker], broker)):
            if left <= 0:
                break
            if not self._round.rests(source):
                left -= self._keep_if_worth(self._relieve(source, left))
        return left

    def _relieve(self, source: str, left: int) -> list[Move]:
        round_, limits, mean = self._round, self._round.limits, self._mean
        moves: list[Move] = []
        candidates = self._of(source)
        left_out: list[str] = []
        while len(moves) < left and round_.has_turn(source):
            need = round_.usage[source] - (mean + limits.stop)
            target = self._taker(left_out)
            if need <= 0 or target is None:
                break
            room = mean + limits.band - round_.usage[target]
            found = candidates.take(need, min(room, round_.usage[source] - (mean - limits.band)))
            if found is None:
                break
            moves.append(round_.move(found[0], source, target, Reason.HOT, found[1]))
        for broker in left_out:
            self.pool.put_back(broker)
        return moves

    def _taker(self, left_out: list[str]) -> str | None:
        """The coldest that may be given something; those that may not are left out, and noted."""
        while (target := self.pool.coldest()) is not None and not self._round.may_take(target):
            left_out.append(self.pool.leave_out())
        return target

    # --- memory -------------------------------------------------------------------------------------------------

    def spare_memory(self, left: int) -> int:
        """One bundle, the busiest that fits elsewhere, off each broker whose memory is full."""
        round_ = self._round
        for source in self._holders:
            if left <= 0 or not round_.memory_full(source) or round_.memory_rests(source) or round_.rests(source):
                continue
            left_out: list[str] = []
            target = self._taker(left_out)
            if target is not None:
                found = self._of(source).take(inf, self._mean + round_.limits.band - round_.usage[target])
                if found is not None:
                    round_.move(found[0], source, target, Reason.MEMORY, found[1])
                    left -= 1
            for broker in left_out:
                self.pool.put_back(broker)
        return left

    # --- cold ---------------------------------------------------------------------------------------------------

    def fill(self, left: int) -> int:
        """Give to the cold ones, the coldest first, what those above the mean have too much of."""
        usage = self._round.usage
        if not self.cold or left <= 0:
            return left
        sources = [(-usage[b], b) for b in self._holders if usage[b] > self._mean and not self._round.rests(b)]
        heapify(sources)
        for target in sorted(self.cold, key=lambda broker: (usage[broker], broker)):
            if left <= 0 or not sources:
                break
            left -= self._keep_if_worth(self._fill(target, sources, left))
        return left

    def _fill(self, target: str, sources: list[tuple[float, str]], left: int) -> list[Move]:
        round_, limits, mean = self._round, self._round.limits, self._mean
        moves: list[Move] = []
        passed: list[str] = []
        while len(moves) < left and len(passed) < _TRIES and round_.may_take(target) and sources:
            need = mean - limits.stop - round_.usage[target]
            if need <= 0:
                break
            noted, source = heappop(sources)
            if noted != -round_.usage[source]:
                heappush(sources, (-round_.usage[source], source))
                continue
            spare = round_.usage[source] - mean
            found = self._of(source).take(need, min(need + limits.stop, spare)) if self._gives(source) else None
            if found is not None:
                moves.append(round_.move(found[0], source, target, Reason.COLD, found[1]))
            passed.append(source)
        for source in passed:
            heappush(sources, (-round_.usage[source], source))
        return moves

    def _gives(self, source: str) -> bool:
        return self._round.has_turn(source) and self._round.usage[source] > self._mean

    # --- both ---------------------------------------------------------------------------------------------------

    def _of(self, source: str) -> Candidates:
        found = self._candidates.get(source)
        if found is None:
            found = self._candidates[source] = self._round.candidates(source, self.pool)
        return found

    def _keep_if_worth(self, moves: list[Move]) -> int:
        """How many of them stay."""
        if sum(move.usage for move in moves) >= self._round.limits.min_gain:
            return len(moves)
        self._round.undo(moves)
        return 0
