"""What a run of the balance scenario is made of."""

from dataclasses import dataclass, field, replace

from weir.broker.balance.balance_round import BalanceLimits
from weir.broker.balance.balancer import BalanceSettings


@dataclass(frozen=True, slots=True)
class BalancePlan:
    """Times in virtual seconds since the beginning, when every bundle is where a hash puts it."""

    brokers: int = 1000
    bundles: int = 100_000
    namespaces: int = 5000
    #: The n-th busiest bundle has 1 / n ** skew of the busiest one's load.
    skew: float = 0.7
    #: Of what all brokers can do together, before any is lost.
    mean_usage: float = 0.5
    #: Namespaces that are bound, and the brokers that they are bound to, as shares; in so many groups.
    bound: float = 0.10
    groups: int = 3
    #: How much the load of a namespace rises and falls, over how long; and how many times it is for a burst.
    wave: float = 0.4
    wave_s: float = 7200.0
    burst: float = 4.0
    bursts_at_once: int = 10
    burst_s: float = 1200.0
    #: What a broker measures is off by so much.
    noise: float = 0.02
    settled_s: float = 1200.0
    lost_s: float = 2400.0
    lost_share: float = 0.05
    #: How long it takes until a lost broker's bundles are taken by those whom everyone would choose.
    lease_s: float = 6.0
    joined_s: float = 4200.0
    drained_s: float = 6000.0
    end_s: float = 7200.0
    settings: BalanceSettings = field(default_factory=BalanceSettings)

    @property
    def limits(self) -> BalanceLimits:
        return self.settings.limits


FULL = BalancePlan()
#: The same in little, for tests.
SMALL = BalancePlan(
    brokers=30,
    bundles=1500,
    namespaces=300,
    bursts_at_once=2,
    settled_s=1200.0,
    lost_s=1800.0,
    joined_s=3000.0,
    drained_s=4200.0,
    end_s=5400.0,
)
#: Brokers with next to nothing to do, so that only the numbers of their topics are evened out.
QUIET = replace(SMALL, mean_usage=0.001, bound=0.0, drained_s=5300.0)
