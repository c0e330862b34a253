"""What one seed decides about a run of retries over a storage cluster."""

from dataclasses import dataclass
from random import Random

from weir.broker.settings import BrokerSettings
from weir.stream.settings import StreamSettings
from weir.testing.queues.plan import make_queue_plan
from weir.testing.storage.plan import Plan


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """`fails`, `rejects`: of a message that is delivered, how likely it fails, or is given up at once; else it is
    acknowledged, or stays with its consumer, which may be lost. `redrives`: whether dead letters are put back."""

    storage: Plan
    brokers: int
    messages: int
    fails: float
    rejects: float
    wait_ms: int
    max_deliveries: int
    redrives: bool
    moves: bool
    streams: StreamSettings
    broker: BrokerSettings

    def __str__(self) -> str:
        faults = ", ".join(fault.value for fault in self.storage.faults) or "no faults"
        more = (", put back" if self.redrives else "") + (", moves" if self.moves else "")
        return (
            f"{self.brokers} brokers, {self.messages} messages, {self.fails:.0%} fail, "
            f"{self.rejects:.0%} rejected, {self.max_deliveries} deliveries, {self.wait_ms} ms{more}; {faults}"
        )


def make_retry_plan(rng: Random) -> RetryPlan:
    """Throw the dice for one run."""
    below = make_queue_plan(rng)
    return RetryPlan(
        below.storage,
        below.brokers,
        messages=rng.choice((10, 20, 40)),
        fails=rng.choice((0.3, 0.6, 0.9)),
        rejects=rng.choice((0.0, 0.1)),
        wait_ms=rng.choice((0, 50, 400)),
        max_deliveries=rng.choice((1, 2, 4)),
        redrives=rng.random() < 0.5,
        moves=below.moves,
        streams=below.streams,
        broker=below.broker,
    )
