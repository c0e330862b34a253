"""What one seed decides about a run of brokers over a storage cluster.

As in `weir.testing.storage.plan`, a run gets only some kinds of faults. Disks are neither lost nor rot here: that
the storage survives it is its own scenario's business, and a broker sees no more of it than a bookie that is
away.
"""

from dataclasses import dataclass
from random import Random

from weir.broker.settings import BrokerSettings
from weir.model.ledger import Quorum
from weir.stream.settings import HoldingSettings, StreamSettings
from weir.testing.storage.plan import Fault, Plan
from weir.testing.storage.plan_below import FAULTS_BELOW, SKEW_S, make_holding, storage_below
from weir.testing.unload_times import unload_time

SUBSCRIPTIONS = ("exclusive", "shared", "failover", "key-shared")
#: The more often it is in here, the more often a run has it.
_FAULTS = (
    *([Fault.CRASH_CLIENT] * 3),
    *([Fault.PAUSE] * 2),
    *([Fault.LEASES] * 2),
    *([Fault.LOST_CONNECTIONS] * 2),
    Fault.RESTART_BOOKIE,
    *FAULTS_BELOW,
)
_QUORUMS = (Quorum(3, 2, 2), Quorum(3, 3, 2), Quorum(2, 2, 2), Quorum(2, 2, 1))


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """One run."""

    #: The cluster below, and the faults.
    storage: Plan
    brokers: int
    topics: int
    producers: int
    #: Messages that each producer sends.
    messages: int
    #: Per topic, each with one to three consumers.
    subscriptions: tuple[str, ...]
    consumers: int
    keys: int
    deduplication: bool
    #: How many of a producer's messages are delayed, and what part of those is cancelled.
    delayed: float
    cancelled: float
    batches: bool
    seeks: bool
    #: Bundles are handed over, let go of and split, and topics unloaded, now and then.
    moves: bool
    #: How many of these are splits.
    splits: float
    streams: StreamSettings
    broker: BrokerSettings
    holding: HoldingSettings

    @property
    def skew_s(self) -> float:
        """How wrong any broker's clock may be."""
        return SKEW_S if Fault.CLOCK in self.storage.faults else 0.0

    def __str__(self) -> str:
        faults = ", ".join(fault.value for fault in self.storage.faults) or "no faults"
        features = [
            name
            for name, on in (
                ("deduplication", self.deduplication),
                ("delays", self.delayed > 0),
                ("batches", self.batches),
                ("seeks", self.seeks),
                ("moves", self.moves),
            )
            if on
        ]
        return (
            f"{self.brokers} brokers, {self.storage.bookies} bookies, {self.topics} topics, "
            f"{self.producers} producers, "
            f"{'+'.join(self.subscriptions)}, {', '.join(features) or 'plain'}; {faults}"
        )


def make_broker_plan(rng: Random) -> BrokerPlan:
    """Throw the dice for one run."""
    quorum = rng.choice(_QUORUMS)
    return BrokerPlan(
        storage=storage_below(rng, quorum, _FAULTS, bookies=(3, 3, 4), duration_s=(5.0, 9.0)),
        brokers=rng.choice((2, 2, 3)),
        topics=rng.choice((1, 1, 2)),
        producers=rng.choice((1, 2)),
        messages=rng.choice((20, 40, 60)),
        subscriptions=tuple(name for name in SUBSCRIPTIONS if rng.random() < 0.5) or (rng.choice(SUBSCRIPTIONS),),
        consumers=rng.choice((1, 2, 2, 3)),
        keys=rng.choice((1, 3, 8)),
        deduplication=rng.random() < 0.65,
        delayed=rng.choice((0.0, 0.0, 0.1, 0.5)),
        cancelled=rng.choice((0.0, 0.0, 0.3)),
        batches=rng.random() < 0.5,
        seeks=rng.random() < 0.3,
        moves=rng.random() < 0.4,
        splits=0.1,
        streams=StreamSettings(
            quorum=quorum,
            roll_entries=rng.choice((4, 15, 1000)),
            state_pause_s=rng.choice((0.05, 0.3, 2.0)),
            retry_pause_s=0.05,
            state_roll_bytes=rng.choice((500, 5000)),
            readers=2,
        ),
        broker=_broker(rng),
        holding=make_holding(rng),
    )


def _broker(rng: Random) -> BrokerSettings:
    return BrokerSettings(
        delivery_bytes=rng.choice((300, 1_000_000)),
        read_bytes=rng.choice((300, 100_000)),
        read_pause_s=0.1,
        look_ahead=rng.choice((3, 20, 20_000)),
        dedup_snapshot_every=rng.choice((1, 5, 1000)),
        maintenance_s=1.0,
        sweep_s=0.3,
        unload_s=unload_time(rng),
    )
