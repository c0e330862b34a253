"""Mistakes that balance could make, and the checker that has to find each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from weir.broker.balance import balance_plan
from weir.broker.balance import balance_plan as planning
from weir.broker.balance.balance_round import History, Round
from weir.model.check import Steps
from weir.testing.balance.checkers import (
    BalanceChecker,
    counts_are_even,
    isolation_holds,
    load_is_even,
    moves_are_worth_it,
    nothing_flaps,
    overload_is_relieved,
)
from weir.testing.balance.plan import QUIET, SMALL, BalancePlan


@dataclass(frozen=True, slots=True)
class BalanceMutation:
    """While it is applied, an attribute of `target` is `instead`."""

    sin: str
    found_by: BalanceChecker
    target: Any
    attribute: str
    instead: Callable[..., Any]
    #: One in which the mistake matters.
    plan: BalancePlan = SMALL

    @contextmanager
    def applied(self) -> Iterator[None]:
        with patch.object(self.target, self.attribute, self.instead):
            yield


def _nothing(round_: Round) -> Steps[None]:
    yield 1


def _any_broker(round_: Round, namespace: str) -> Any:
    return _POOL_OF(round_, "")


_POOL_OF = Round.pool_of
#: Brokers are looked at again in the very next round.
_HASTY = replace(SMALL.settings, limits=replace(SMALL.limits, broker_pause_s=0.0))

MUTATIONS = {
    "no-cool-down": BalanceMutation(
        "A bundle may be moved again at once.",
        nothing_flaps,
        History,
        "bundle_rests",
        lambda history, bundle, limits, now: False,
        replace(SMALL, noise=0.08, burst_s=240.0, settings=_HASTY),
    ),
    "no-minimum-gain": BalanceMutation(
        "Moves are made however little they gain.",
        moves_are_worth_it,
        balance_plan,
        "keep_if_worth",
        lambda round_, moves: len(moves),
    ),
    "isolation-ignored": BalanceMutation(
        "Everything may go everywhere.", isolation_holds, Round, "pool_of", _any_broker
    ),
    "nothing-evened-out": BalanceMutation(
        "Hot brokers are left alone.", load_is_even, planning, "even_out", _nothing
    ),
    "counts-ignored": BalanceMutation(
        "Brokers without topics get none.", counts_are_even, planning, "even_out_counts", _nothing, QUIET
    ),
    "nothing-split": BalanceMutation(
        "Bundles are never split, however hot.",
        overload_is_relieved,
        Round,
        "split",
        lambda round_, bundle, broker: False,
        replace(SMALL, skew=1.0),
    ),
}
