"""What one seed decides about a run: the cluster, the quorums, the workload, and which faults strike.

Each run gets only some kinds of faults ("swarm testing"): a run with all of them at once never gets far enough
to reach the rare states that two or three kinds alone lead to.

The promises have preconditions, and a plan keeps to them:
- Of the disks that hold an entry, at most `Qa - 1` may be lost or rotten before repair has made up for it. With
  `Qa = 1` none: an acknowledged entry then survives crashes and restarts, but not the loss of its one disk.
- A bookie whose disk is lost never comes back under its old id.
- The bookies sync always (the default policy).
- Clocks may be wrong by any amount, and run fast or slow by less than a tenth.
"""

from dataclasses import dataclass
from enum import Enum
from random import Random

from weir.model.ledger import Quorum


class Fault(Enum):
    """A kind of trouble."""

    CRASH_BOOKIE = "crash-bookie"
    KILL_BOOKIE = "kill-bookie"
    RESTART_BOOKIE = "restart-bookie"
    CRASH_CLIENT = "crash-client"
    PAUSE = "pause"
    PARTITION = "partition"
    ONE_WAY = "one-way"
    SLOW_LINK = "slow-link"
    LOST_CONNECTIONS = "lost-connections"
    SLOW_DISK = "slow-disk"
    STUCK_DISK = "stuck-disk"
    BIT_FLIPS = "bit-flips"
    NO_SPACE = "no-space"
    FAILING_DISK = "failing-disk"
    CLOCK = "clock"
    META_LOSS = "meta-loss"
    META_OUTAGE = "meta-outage"
    LEASES = "leases"
    LOST_DISK = "lost-disk"
    ROT = "rot"


#: Quorum settings with how often each is chosen.
_QUORUMS: tuple[tuple[Quorum, int], ...] = (
    (Quorum(3, 3, 2), 5),
    (Quorum(4, 3, 2), 4),
    (Quorum(5, 3, 2), 3),
    (Quorum(5, 3, 3), 3),
    (Quorum(3, 2, 2), 3),
    (Quorum(3, 2, 1), 2),
    (Quorum(4, 4, 3), 2),
    (Quorum(1, 1, 1), 1),
)
_MAX_BOOKIES = 6
#: This part of all runs has no faults at all: what fails there fails plainly.
_CALM = 0.04


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    quorum: Quorum
    bookies: int
    racks: int
    writers: int
    readers: int
    recoverers: int
    #: Ledgers that each writer writes, at most, and entries in each.
    ledgers: int
    appends: int
    max_payload: int
    #: Whether ledgers are deleted now and then.
    deletes: bool
    #: Whether lost copies are repaired while faults strike; if not, they are counted first, and repaired then.
    repair: bool
    #: Each way to the metadata and back takes up to this long, faults or not.
    meta_delay_s: float
    faults: tuple[Fault, ...]
    #: On average, so much time passes between two faults.
    fault_every_s: float
    #: After this much virtual time all faults are healed, and everything is read back.
    duration_s: float

    @property
    def losable_disks(self) -> int:
        """How many disks may be lost or rotten at a time."""
        return self.quorum.ack - 1

    def __str__(self) -> str:
        quorum = self.quorum
        faults = ", ".join(fault.value for fault in self.faults) or "no faults"
        return (
            f"{self.bookies} bookies, E={quorum.ensemble} Qw={quorum.write} Qa={quorum.ack}, "
            f"{self.writers} writers, {self.readers} readers, {self.recoverers} recoverers, {faults}"
        )


def make_plan(rng: Random) -> Plan:
    """Throw the dice for one run."""
    quorum = rng.choices([q for q, _ in _QUORUMS], [weight for _, weight in _QUORUMS])[0]
    bookies = rng.randint(max(3, quorum.ensemble), _MAX_BOOKIES)
    return Plan(
        quorum=quorum,
        bookies=bookies,
        racks=rng.choice((1, 1, 2, 3)),
        writers=rng.randint(1, 3),
        readers=rng.randint(1, 2),
        recoverers=rng.randint(0, 2),
        ledgers=rng.randint(2, 5),
        appends=rng.choice((3, 12, 40)),
        max_payload=rng.choice((30, 300, 3000)),
        deletes=rng.random() < 0.4,
        repair=rng.random() < 0.5,
        meta_delay_s=rng.choice((0.0, 0.005, 0.05)),
        faults=_choose_faults(rng, quorum),
        fault_every_s=rng.choice((0.3, 0.8, 2.0)),
        duration_s=rng.uniform(6.0, 14.0),
    )


def _choose_faults(rng: Random, quorum: Quorum) -> tuple[Fault, ...]:
    if rng.random() < _CALM:
        return ()
    possible = [fault for fault in Fault if quorum.ack > 1 or fault not in (Fault.LOST_DISK, Fault.ROT)]
    count = rng.choice((1, 2, 3, 4, 6))
    return tuple(sorted(rng.sample(possible, count), key=lambda fault: fault.value))
