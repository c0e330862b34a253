"""What every part of a ledger client shares."""

from dataclasses import dataclass, field

from weir.ledger.bookies import BookieDirectory, Quarantine
from weir.ledger.hold import WriteHold
from weir.ledger.interfaces import BookiePool
from weir.ledger.losses import Losses
from weir.ledger.records import LedgerRecords
from weir.ledger.replicas import ReplicaReads
from weir.ledger.rounds import Rounds
from weir.ledger.settings import LedgerSettings
from weir.meta.interfaces import MetaStore
from weir.runtime.interfaces import Runtime


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
