"""What one seed decides about a run of half, delayed and grouped messages over a storage cluster."""

from dataclasses import dataclass
from random import Random

from weir.broker.settings import BrokerSettings, HalfSettings
from weir.model.ledger import Quorum
from weir.stream.settings import HoldingSettings, StreamSettings
from weir.testing.storage.plan import Fault, Plan
from weir.testing.storage.plan_below import FAULTS_BELOW, storage_below
from weir.testing.unload_times import unload_time

#: Clocks are right: moments are told by them.
_FAULTS = (
    *([Fault.CRASH_CLIENT] * 5),
    *([Fault.PAUSE] * 2),
    *([Fault.LEASES] * 2),
    Fault.RESTART_BOOKIE,
    *(fault for fault in FAULTS_BELOW if fault is not Fault.CLOCK),
)
_QUORUMS = (Quorum(3, 2, 2), Quorum(3, 3, 2), Quorum(2, 2, 2))


@dataclass(frozen=True, slots=True)
class HalfPlan:
    """`brokers`: each has workers that use the topics while it has them."""

    storage: Plan
    brokers: int
    #: Messages of each kind that each worker sends at the most.
    messages: int
    #: Whether what nothing is heard of is rolled back within the run.
    gives_up: bool
    #: Of a half message, how likely its producer answers when it is asked.
    answers: float
    #: Of a delayed message, how likely it is cancelled, about when it is due.
    cancels: float
    groups: int
    #: Of a message of a group, how likely it is given back; else it is acknowledged.
    fails: float
    #: Which kinds of messages there are: half, recall, groups.
    kinds: tuple[str, ...]
    streams: StreamSettings
    broker: BrokerSettings
    holding: HoldingSettings

    def __str__(self) -> str:
        faults = ", ".join(fault.value for fault in self.storage.faults) or "no faults"
        given_up = ", some given up" if self.gives_up else ""
        return (
            f"{self.brokers} brokers, {self.storage.bookies} bookies, {self.messages} of each of "
            f"{', '.join(self.kinds)}{given_up}, {self.groups} groups, {self.fails:.0%} given back; {faults}"
        )


def make_half_plan(rng: Random) -> HalfPlan:
    """Throw the dice for one run."""
    quorum = rng.choice(_QUORUMS)
    gives_up = rng.random() < 0.3
    return HalfPlan(
        storage=storage_below(rng, quorum, _FAULTS, bookies=(3, 3, 4), duration_s=(4.0, 7.0)),
        brokers=rng.choice((1, 2, 2, 3)),
        messages=rng.choice((10, 20, 40)),
        gives_up=gives_up,
        answers=rng.choice((0.0, 0.5, 1.0)),
        cancels=rng.choice((0.2, 0.5, 0.9)),
        groups=rng.choice((1, 2, 4)),
        fails=rng.choice((0.0, 0.2, 0.5)),
        kinds=("half", "recall", "groups"),
        streams=StreamSettings(
            quorum=quorum,
            roll_entries=rng.choice((8, 1000)),
            state_pause_s=rng.choice((0.05, 0.3, 2.0)),
            retry_pause_s=0.05,
            state_roll_bytes=rng.choice((500, 5000)),
            readers=2,
        ),
        broker=BrokerSettings(
            read_pause_s=0.1,
            maintenance_s=1.0,
            sweep_s=0.3,
            unload_s=unload_time(rng),
            look_ahead=rng.choice((2, 100)),
            half=HalfSettings(
                recovery_s=rng.choice((0.1, 0.6)),
                interval_s=rng.choice((0.3, 1.0)),
                tick_s=0.3,
            ),
        ),
        holding=HoldingSettings(window_s=2.0, tick_s=0.3, fence_s=rng.choice((1.0, 600.0))),
    )
