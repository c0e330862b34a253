"""Bundles that must not stay where they are: on a broker that is drained, or that their namespace is not bound to.

Nothing has to be gained by these moves, so the thresholds of evening out do not apply to them. They are bounded
per round, and a bundle that a binding moves rests like others: bindings that come and go move it no more often.
"""

from collections.abc import Iterator

from weir.broker.balance.actions import Reason
from weir.broker.balance.pools import Pool
from weir.broker.balance.round import Round
from weir.model.steps import Steps


def evict_bundles(round_: Round) -> Steps[None]:
    """The largest first, each to the coldest broker that may have it."""
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
    """The coldest with memory to spare; the coldest, if there is none."""
    left_out = []
    while (target := pool.coldest()) is not None and round_.memory_full(target):
        left_out.append(pool.leave_out())
    for broker in left_out:
        pool.put_back(broker)
    return target if target is not None else pool.coldest()
