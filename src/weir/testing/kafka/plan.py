"""What one seed decides about a run of Kafka's clients on a broker over a storage cluster.

There is one active broker; another stands by. `Fault.LEASES` means here that the other takes over while the first
one, cut off from the metadata, goes on as if nothing had happened.
"""

from dataclasses import dataclass
from random import Random

from weir.broker.settings import BrokerSettings
from weir.broker.transactions.transaction import MAX_EPOCH
from weir.model.ledger import Quorum
from weir.stream.settings import HoldingSettings, StreamSettings
from weir.testing.storage.plan import Fault, Plan
from weir.testing.storage.plan_below import FAULTS_BELOW, SKEW_S, make_holding, storage_below
from weir.testing.unload_times import unload_time

#: The more often it is in here, the more often a run has it.
_FAULTS = (
    *([Fault.CRASH_CLIENT] * 4),
    *([Fault.LEASES] * 3),
    *([Fault.LOST_CONNECTIONS] * 3),
    *([Fault.PAUSE] * 2),
    *([Fault.RESTART_BOOKIE] * 2),
    *FAULTS_BELOW,
)
_QUORUMS = (Quorum(3, 2, 2), Quorum(3, 3, 2), Quorum(2, 2, 2))


@dataclass(frozen=True, slots=True)
class KafkaPlan:
    """One run."""

    #: The cluster below, and the faults.
    storage: Plan
    #: Partitions of the topic that is read and of the one that pipelines write.
    in_parts: int
    out_parts: int
    plain: int
    idempotent: int
    #: Transactional producers that read nothing.
    writers: int
    #: Pipelines that read, process and write in transactions. Each has as many instances, which fence each other;
    #: writers do so, too, if there are several.
    pipelines: int
    instances: int
    #: Members of a consumer group with pipelines' own transactional ids, and of one that commits plainly.
    processors: int
    members: int
    readers: int
    #: Messages that each producer sends.
    messages: int
    #: Whether a Pulsar subscription reads along.
    pulsar: bool
    #: How often a transaction is aborted.
    aborts: float
    streams: StreamSettings
    broker: BrokerSettings
    transaction_ms: int
    session_ms: int
    #: Transactional ids get a new producer id after so many epochs, and idempotent producers count from here on:
    #: both are usual, or near the end of what there is.
    last_epoch: int
    first_sequence: int
    #: Whether somebody follows everything with a fetch session, to the end.
    follows: bool
    #: Members have names of their own, and are back under these; those of the plain group keep what they have.
    static: bool
    cooperative: bool
    #: How much of what transactions write is delayed.
    delayed: float
    #: Whether somebody deletes the beginnings of partitions, and whether there is a compacted topic.
    deletes: bool
    table: bool
    holding: HoldingSettings
    #: How many lives of transactional producers have an epoch for each transaction, which begins by what is sent.
    modern: float
    #: How many transactions also send something else under sequence numbers that were used before.
    overwrites: float

    @property
    def skew_s(self) -> float:
        """How wrong a broker's clock may be."""
        return SKEW_S if Fault.CLOCK in self.storage.faults else 0.0

    def __str__(self) -> str:
        faults = ", ".join(fault.value for fault in self.storage.faults) or "no faults"
        return (
            f"{self.storage.bookies} bookies, {self.in_parts}+{self.out_parts} partitions, "
            f"{self.plain} plain, {self.idempotent} idempotent, {self.writers} transactional producers, "
            f"{self.pipelines}x{self.instances} pipelines, {self.processors} processors, {self.members} members, "
            f"{self.readers} readers{self._features}; {faults}"
        )

    @property
    def _features(self) -> str:
        features = (
            ("pulsar", self.pulsar),
            ("static", self.static),
            ("cooperative", self.cooperative),
            ("delays", self.delayed > 0),
            ("deletes", self.deletes),
            ("table", self.table),
            ("transactions of version 2", self.modern > 0),
        )
        return "".join(f", {name}" for name, there in features if there)


def make_kafka_plan(rng: Random) -> KafkaPlan:
    """Throw the dice for one run."""
    quorum = rng.choice(_QUORUMS)
    pipelines, processors, members = rng.choice(((1, 0, 0), (1, 0, 2), (0, 2, 0), (0, 3, 0), (0, 0, 3), (0, 2, 2)))
    return KafkaPlan(
        storage=storage_below(rng, quorum, _FAULTS, bookies=(3,), duration_s=(3.5, 6.0)),
        in_parts=rng.choice((1, 2, 2, 3)),
        out_parts=rng.choice((1, 2)),
        plain=rng.choice((0, 0, 1)),
        idempotent=rng.choice((0, 1, 1, 2)),
        writers=rng.choice((0, 1, 1, 2)),
        pipelines=pipelines,
        instances=rng.choice((1, 2)),
        processors=processors,
        members=members,
        readers=rng.choice((1, 1, 2)),
        messages=rng.choice((15, 30)),
        pulsar=rng.random() < 0.25,
        aborts=rng.choice((0.1, 0.4)),
        streams=StreamSettings(
            quorum=quorum,
            roll_entries=rng.choice((6, 20, 1000)),
            state_pause_s=rng.choice((0.05, 0.3, 2.0)),
            retry_pause_s=0.05,
            state_roll_bytes=rng.choice((1000, 5000)),
            readers=2,
        ),
        broker=_broker(rng),
        transaction_ms=rng.choice((1_500, 4_000)),
        session_ms=rng.choice((600, 1_500)),
        last_epoch=rng.choice((MAX_EPOCH, MAX_EPOCH, 2)),
        first_sequence=rng.choice((0, 0, 0x7FFFFFFF - 7)),
        follows=rng.random() < 0.4,
        static=rng.random() < 0.3,
        cooperative=rng.random() < 0.3,
        delayed=rng.choice((0.0, 0.0, 0.0, 0.3)),
        deletes=rng.random() < 0.25,
        table=rng.random() < 0.15,
        holding=make_holding(rng),
        modern=rng.choice((0.0, 0.5, 1.0)),
        overwrites=rng.choice((0.0, 0.3)),
    )


def _broker(rng: Random) -> BrokerSettings:
    return BrokerSettings(
        read_bytes=rng.choice((300, 100_000)),
        read_pause_s=0.1,
        stamps_snapshot_every=rng.choice((1, 4, 1000)),
        maintenance_s=1.0,
        sweep_s=0.3,
        unload_s=unload_time(rng),
    )
