"""What happened in a run of the balance scenario: the only thing that its checkers read."""

from dataclasses import dataclass

from weir.broker.balance.balance_round import Reason
from weir.testing.balance.plan import BalancePlan


@dataclass(frozen=True, slots=True)
class Moved:
    """A round decided it. `allowed`: whether the namespace is bound to the target; `term`: of which leader."""

    at: float
    term: int
    bundle: str
    source: str
    target: str
    reason: Reason
    usage: float
    allowed: bool


@dataclass(frozen=True, slots=True)
class Sampled:
    """All brokers at a moment, by the load that they ought to serve, 1 being all that one can do. `above`: how far
    the 99th of 100 is above the mean, or above the mean of what its group is bound to if that is more.
    `overloaded`: those with more than they can do, though it could be elsewhere; `misplaced`: bundles on brokers
    that they are not bound to; `fewest`, `mean_topics`, `most_topics`: topics of a broker."""

    at: float
    mean: float
    p99: float
    most: float
    above: float
    overloaded: tuple[str, ...]
    misplaced: int
    fewest: int = 0
    mean_topics: float = 0.0
    most_topics: int = 0


@dataclass(frozen=True, slots=True)
class BalanceHistory:
    """`refused`: what brokers were asked in vain; `unserved_s`: how long lost brokers' bundles were nobody's."""

    plan: BalancePlan
    moves: tuple[Moved, ...]
    samples: tuple[Sampled, ...]
    splits: int
    refused: int
    unserved_s: float
