"""What to move and to split: a pure decision over everyone's load, in bounded work."""

from collections.abc import Sequence

from weir.broker.balance.actions import Action
from weir.broker.balance.counting import even_out_counts
from weir.broker.balance.evening import even_out
from weir.broker.balance.evicting import evict_bundles
from weir.broker.balance.history import History
from weir.broker.balance.isolation import Isolation
from weir.broker.balance.limits import BalanceLimits
from weir.broker.balance.round import Round
from weir.broker.balance.splitting import split_bundles
from weir.model.load import BrokerLoad
from weir.model.steps import Steps, finish


def plan_moves(
    loads: Sequence[BrokerLoad], limits: BalanceLimits, isolation: Isolation, history: History, now: float
) -> list[Action]:
    """All steps of `plan_in_steps` at once."""
    return finish(plan_in_steps(loads, limits, isolation, history, now))


def plan_in_steps(
    loads: Sequence[BrokerLoad], limits: BalanceLimits, isolation: Isolation, history: History, now: float
) -> Steps[list[Action]]:
    """What one round asks for. No I/O and no clock: the same arguments give the same answer. `loads`: of every
    broker that answered; one that did not neither gives nor gets. `history`: what was asked for before; this round
    is noted in it. `now`: seconds of any clock that never goes back.

    A bundle that nobody has is no business of this: it goes to whom all brokers would choose when somebody asks.
    """
    round_ = Round(loads, limits, isolation, history, now)
    yield from round_.survey()
    yield from split_bundles(round_)
    yield from evict_bundles(round_)
    yield from even_out(round_)
    yield from even_out_counts(round_)
    history.note(round_.actions, limits, now)
    return round_.actions
