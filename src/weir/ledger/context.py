"""Services and settings that the parts of a ledger client share, and one timer for chores of many writers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from weir.ledger.bookie_directory import BookieDirectory, Quarantine
from weir.ledger.interfaces import BookiePool
from weir.ledger.losses import Losses
from weir.ledger.records import LedgerRecords
from weir.ledger.replicas import ReplicaReads
from weir.ledger.settings import LedgerSettings
from weir.ledger.write_freeze import WriteHold
from weir.meta.interfaces import MetaStore
from weir.runtime.interfaces import Clock, Runtime, Timer

Chore = Callable[[], None]


class Rounds:
    """Each chore is done once, one to two intervals after it was asked for. Asking costs no timer, however
    many ledgers are open."""

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._asked: dict[Chore, None] = {}  # since the last round
        self._due: dict[Chore, None] = {}  # in the next one
        self._timer: Timer | None = None

    def ask(self, chore: Chore) -> None:
        """Have it done; asking again before it is done changes nothing."""
        if chore not in self._due:
            self._asked[chore] = None
        if self._timer is None:
            self._timer = self._clock.call_later(self._interval_s, self._round)

    def _round(self) -> None:
        due, self._due, self._asked = self._due, self._asked, {}
        self._timer = self._clock.call_later(self._interval_s, self._round) if self._due else None
        for chore in due:
            chore()


@dataclass(frozen=True, slots=True)
class LedgerContext:
    """The world, the metadata and the bookies, as one client sees them."""

    runtime: Runtime
    meta: MetaStore
    records: LedgerRecords
    directory: BookieDirectory
    quarantine: Quarantine
    pool: BookiePool
    reads: ReplicaReads
    settings: LedgerSettings
    #: What readers left out because it is damaged everywhere.
    losses: Losses
    #: For writers: to say the last-add-confirmed of a ledger that went idle, and to look for overdue answers.
    confirming: Rounds
    watching: Rounds
    #: Writes wait for it.
    hold: WriteHold = field(default_factory=WriteHold)
