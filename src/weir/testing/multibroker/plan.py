"""What one seed decides about a run of several brokers: as for Kafka's clients, and how many share the work."""

from dataclasses import dataclass, fields
from random import Random

from weir.testing.kafka.plan import KafkaPlan, make_kafka_plan
from weir.testing.storage.plan import Fault
from weir.testing.storage.plan_below import FAULTS_BELOW, storage_below

#: The more often it is in here, the more often a run has it.
_FAULTS = (
    *([Fault.CRASH_CLIENT] * 4),
    *([Fault.LEASES] * 3),
    *([Fault.PARTITION] * 2),
    *([Fault.ONE_WAY] * 2),
    *([Fault.LOST_CONNECTIONS] * 2),
    *([Fault.PAUSE] * 3),
    *([Fault.RESTART_BOOKIE] * 2),
    *([Fault.META_LEADER] * 2),
    *([Fault.EARLY_LEASES] * 2),
    *([Fault.LATE_WATCHES] * 2),
    *FAULTS_BELOW,
)


@dataclass(frozen=True, slots=True)
class MultiBrokerPlan(KafkaPlan):
    """One run."""

    brokers: int = 3
    #: Of groups and transactional ids.
    shards: int = 4
    #: Bundles are handed over now and then, sometimes to several at once; so many of these times they are split.
    moves: bool = False
    splits: float = 0.0
    #: On average, so much time passes between two of them, at one broker.
    move_every_s: float = 1.6

    def __str__(self) -> str:
        moves = ", moves" if self.moves else ""
        return f"{self.brokers} brokers, {self.shards} shards{moves}, {KafkaPlan.__str__(self)}"


def make_multibroker_plan(rng: Random) -> MultiBrokerPlan:
    """Throw the dice for one run."""
    plan = make_kafka_plan(rng)
    known = {field.name: getattr(plan, field.name) for field in fields(plan)}
    known |= {
        "storage": storage_below(
            rng, plan.streams.quorum, _FAULTS, bookies=(3, 3, 3, 4, 5, 6), duration_s=(5.0, 8.0)
        ),
        "in_parts": rng.choice((2, 3, 4)),
        "out_parts": rng.choice((1, 2, 3)),
    }
    return MultiBrokerPlan(
        **known,
        brokers=rng.choice((3, 3, 4, 5)),
        shards=rng.choice((2, 4)),
        moves=rng.random() < 0.6,
        splits=rng.choice((0.0, 0.2)),
        move_every_s=rng.choice((0.4, 1.6)),
    )
