"""What one seed decides about a run of RocketMQ's clients over a storage cluster."""

from dataclasses import dataclass, replace
from random import Random

from weir.broker.settings import BrokerSettings, HalfSettings
from weir.stream.settings import StreamSettings
from weir.testing.queues.plan import make_queue_plan
from weir.testing.storage.plan import Plan


@dataclass(frozen=True, slots=True)
class RocketmqPlan:
    """`halves`: of a message, how likely it is sent as a half message. `acks`: how likely it is acknowledged when
    it is received; else it comes again."""

    storage: Plan
    brokers: int
    messages: int
    halves: float
    acks: float
    moves: bool
    streams: StreamSettings
    broker: BrokerSettings

    def __str__(self) -> str:
        faults = ", ".join(fault.value for fault in self.storage.faults) or "no faults"
        return (
            f"{self.brokers} brokers, {self.messages} messages, {self.halves:.0%} half, "
            f"{self.acks:.0%} acknowledged{', moves' if self.moves else ''}; {faults}"
        )


def make_rocketmq_plan(rng: Random) -> RocketmqPlan:
    """Throw the dice for one run."""
    below = make_queue_plan(rng)
    return RocketmqPlan(
        below.storage,
        below.brokers,
        messages=rng.choice((15, 30)),
        halves=rng.choice((0.0, 0.3, 0.6)),
        acks=rng.choice((0.5, 0.9)),
        moves=below.moves,
        streams=below.streams,
        broker=replace(below.broker, half=HalfSettings(recovery_s=1.0, interval_s=1.0, checks=5)),
    )
