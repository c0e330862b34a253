"""What a seed decides about the storage, and what is held in it, below brokers of whatever protocol."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from weir.model.ledger import Quorum
from weir.stream.settings import HoldingSettings
from weir.testing.storage.plan import Fault, Plan, make_plan

#: Of the storage and of what is between: brokers see them from afar.
FAULTS_BELOW = (
    Fault.CRASH_BOOKIE,
    Fault.KILL_BOOKIE,
    Fault.PARTITION,
    Fault.ONE_WAY,
    Fault.SLOW_LINK,
    Fault.SLOW_DISK,
    Fault.STUCK_DISK,
    Fault.FAILING_DISK,
    Fault.CLOCK,
    Fault.META_LOSS,
    Fault.META_OUTAGE,
)
#: A broker's clock may be this wrong, by jumps and by running fast or slow for a whole run.
SKEW_S = 2.5


def storage_below(
    rng: Random,
    quorum: Quorum,
    faults: Sequence[Fault],
    *,
    bookies: Sequence[int],
    duration_s: tuple[float, float],
) -> Plan:
    """A cluster without racks and repair, and some of the faults."""
    return replace(
        make_plan(rng),
        quorum=quorum,
        bookies=rng.choice(bookies) if len(bookies) > 1 else bookies[0],
        racks=1,
        repair=False,
        faults=_choose(rng, faults),
        fault_every_s=rng.choice((0.4, 0.8, 1.6)),
        duration_s=rng.uniform(*duration_s),
    )


def _choose(rng: Random, faults: Sequence[Fault]) -> tuple[Fault, ...]:
    if rng.random() < 0.05:
        return ()
    chosen = [rng.choice(faults) for _ in range(rng.choice((1, 2, 3, 4)))]
    return tuple(fault for fault in Fault if fault in chosen)


def make_holding(rng: Random) -> HoldingSettings:
    """Small and hasty."""
    return HoldingSettings(
        window_s=rng.choice((0.7, 3.0, 30.0)),
        fine_windows=3,
        load_ahead_s=rng.choice((0.5, 2.0)),
        index_entries=rng.choice((8, 1000)),
        tick_s=0.3,
        group_entries=rng.choice((2, 50)),
        in_flight=8,
        cover_messages=rng.choice((3, 1000)),
        release_pause_s=0.01,
        readers=2,
    )
