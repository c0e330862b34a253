"""What one seed decides about a run: the cluster, the quorums, the workload, and which faults strike.

Each run gets only some kinds of faults ("swarm testing"): a run with all of them at once never gets far enough
to reach the rare states that two or three kinds alone lead to.

The promises have preconditions, and a plan keeps to them:
- Of the disks that hold an entry, at most `Qa - 1` may be lost, rotten or cut short before repair has made up for
  it. With `Qa = 1` none is lost or cut short: an acknowledged entry then survives crashes and restarts, but not
  the loss of its disk. One disk may rot, and then exactly what was hit may be left out, with a record.
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
    #: Of many brokers: metadata without a leader, leases that end although they were renewed, late watches.
    META_LEADER = "meta-leader"
    EARLY_LEASES = "early-leases"
    LATE_WATCHES = "late-watches"
    LOST_DISK = "lost-disk"
    ROT = "rot"
    CUT = "cut"


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
#: Only runs with many brokers have these.
_OF_BROKERS = (Fault.META_LEADER, Fault.EARLY_LEASES, Fault.LATE_WATCHES)
#: What costs one copy of all that a disk held, or of what nobody can tell.
_DISK_LOSSES = (Fault.LOST_DISK, Fault.CUT)
_MAX_BOOKIES = 6
#: Half of all runs have one of these on top: what is replayed, replaced and recovered matters most.
_DEATHS = (Fault.CRASH_BOOKIE, Fault.CRASH_BOOKIE, Fault.KILL_BOOKIE, Fault.CRASH_CLIENT)
#: This part of all runs has no faults at all: what fails there fails plainly.
_CALM = 0.04
#: This part of those in which an entry may have one copy, on top.
_ONE_COPY_ROTS = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    quorum: Quorum
    bookies: int
    racks: int
    writers: int
    readers: int
    recoverers: int
    #: Entries that all writers append together, over the whole run, and at most in one ledger.
    appends: int
    ledger_appends: int
    max_payload: int
    #: Whether ledgers are deleted now and then.
    deletes: bool
    #: Whether lost copies are repaired while faults strike; if not, they are counted first, and repaired then.
    repair: bool
    #: How slow metadata, disks and links are, faults or not: the slower, the more is under way at any moment.
    meta_delay_s: float
    sync_s: float
    link_s: float
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
    bookies = min(_MAX_BOOKIES, max(3, quorum.ensemble + rng.choice((0, 1, 1, 2, 3))))
    return Plan(
        quorum=quorum,
        bookies=bookies,
        racks=rng.choice((1, 1, 2, 3)),
        writers=rng.randint(1, 3),
        readers=rng.randint(1, 2),
        recoverers=rng.randint(0, 2),
        appends=rng.choice((100, 200, 400)),
        ledger_appends=rng.choice((8, 40, 150, 400)),
        max_payload=rng.choice((30, 300, 2000)),
        deletes=rng.random() < 0.4,
        repair=rng.random() < 0.5,
        meta_delay_s=rng.choice((0.0, 0.005, 0.05)),
        sync_s=rng.choice((0.0005, 0.01, 0.05)),
        link_s=rng.choice((0.0002, 0.002, 0.02)),
        faults=_choose_faults(rng, quorum),
        fault_every_s=rng.choice((0.2, 0.5, 1.2)),
        duration_s=rng.uniform(6.0, 14.0),
    )


def _choose_faults(rng: Random, quorum: Quorum) -> tuple[Fault, ...]:
    if rng.random() < _CALM:
        return ()
    possible = [f for f in Fault if f not in _OF_BROKERS and (quorum.ack > 1 or f not in _DISK_LOSSES)]
    chosen = rng.sample(possible, rng.choice((1, 2, 3, 4, 6)))
    if rng.random() < 0.5:
        chosen.append(rng.choice(_DEATHS))
    if quorum.ack == 1 and rng.random() < _ONE_COPY_ROTS:
        chosen.append(Fault.ROT)
    return tuple(fault for fault in Fault if fault in chosen)
