"""What one seed decides about a run of queues over a storage cluster."""

from dataclasses import dataclass
from random import Random

from weir.broker.settings import BrokerSettings
from weir.model.ledger import Quorum
from weir.stream.settings import StreamSettings
from weir.testing.storage.plan import Fault, Plan
from weir.testing.storage.plan_below import FAULTS_BELOW, storage_below
from weir.testing.unload_times import unload_time

#: The more often it is in here, the more often a run has it. Clocks are right: times to live are told by them.
_FAULTS = (
    *([Fault.CRASH_CLIENT] * 5),
    *([Fault.PAUSE] * 2),
    *([Fault.LEASES] * 2),
    *([Fault.LOST_CONNECTIONS] * 2),
    Fault.RESTART_BOOKIE,
    *(fault for fault in FAULTS_BELOW if fault is not Fault.CLOCK),
)
_QUORUMS = (Quorum(3, 2, 2), Quorum(3, 3, 2), Quorum(2, 2, 2))


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """`brokers`: each has a worker that publishes and consumes, its own queues and those of others."""

    storage: Plan
    brokers: int
    #: Messages that each worker publishes at the most.
    messages: int
    #: Of a message, how likely a consumer rejects it, or gives it back; else it is acknowledged, or held.
    rejects: float
    requeues: float
    ttl_ms: int
    moves: bool
    #: Of a message, how likely it is transient: gone with its broker, and else where it was published.
    transient: float
    streams: StreamSettings
    broker: BrokerSettings

    def __str__(self) -> str:
        faults = ", ".join(fault.value for fault in self.storage.faults) or "no faults"
        moves = ", moves" if self.moves else ""
        moves += f", {self.transient:.0%} transient" if self.transient else ""
        return (
            f"{self.brokers} brokers, {self.storage.bookies} bookies, {self.messages} messages, "
            f"{self.rejects:.0%} rejected, {self.ttl_ms} ms to live{moves}; {faults}"
        )


def make_queue_plan(rng: Random) -> QueuePlan:
    """Throw the dice for one run."""
    quorum = rng.choice(_QUORUMS)
    return QueuePlan(
        storage=storage_below(rng, quorum, _FAULTS, bookies=(3, 3, 4), duration_s=(4.0, 7.0)),
        brokers=rng.choice((1, 2, 2, 3)),
        messages=rng.choice((20, 40, 80)),
        rejects=rng.choice((0.2, 0.5, 0.9)),
        requeues=rng.choice((0.0, 0.1, 0.3)),
        ttl_ms=rng.choice((0, 100, 400)),
        moves=rng.random() < 0.4,
        transient=rng.choice((0.0, 0.3, 0.8)),
        streams=StreamSettings(
            quorum=quorum,
            roll_entries=rng.choice((15, 1000)),
            state_pause_s=rng.choice((0.05, 0.3, 2.0)),
            retry_pause_s=0.05,
            state_roll_bytes=rng.choice((500, 5000)),
            readers=2,
        ),
        broker=BrokerSettings(read_pause_s=0.1, maintenance_s=1.0, sweep_s=0.3, unload_s=unload_time(rng)),
    )
