"""Settings of ledgers, one value per component."""

from dataclasses import dataclass, field

from weir.meta.update import UpdateSettings


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How much a writer keeps in flight, and how patient it is."""

    #: Above either bound `wait_capacity()` waits; above twice the bound `append` refuses.
    window_entries: int = 64 * 1024
    window_bytes: int = 64 * 1024 * 1024
    #: What goes to a bookie in one add; a larger flush is cut into several.
    batch_bytes: int = 1024 * 1024
    #: A bookie that has not answered an add for so long has failed.
    add_timeout_s: float = 10.0
    #: Wait so long before sending again what a busy bookie refused.
    busy_pause_s: float = 0.02
    #: Tell the bookies of the last-add-confirmed after the ledger was idle for so long.
    confirm_idle_s: float = 0.01
    #: Look again for a replacement so long after none was found.
    degraded_retry_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """How a reader asks its replicas."""

    #: What is asked of a bookie in one read.
    chunk_bytes: int = 1024 * 1024
    #: How much a stream reads ahead of its consumer.
    read_ahead_bytes: int = 4 * 1024 * 1024
    #: Ask a second replica when the first has not answered for so long.
    speculative_after_s: float = 0.2
    #: A replica that has not answered for so long has failed.
    read_timeout_s: float = 5.0
    #: One long poll lasts no longer; then the metadata and the choice of bookie are looked at again.
    poll_s: float = 2.0
    #: Wait so long after a poll that brought nothing new before its time.
    poll_pause_s: float = 0.05
    #: A loss is believed when the copies are looked at again after so long, and are as damaged as before.
    second_look_s: float = 0.2
    #: Replicas with this rack label are asked first.
    rack: str = ""


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """How hard a recovery tries before it says that the end cannot be decided."""

    #: One request to one bookie.
    request_timeout_s: float = 5.0
    #: All of it.
    timeout_s: float = 30.0
    retry_pause_s: float = 0.2
    #: What is read and written back at a time.
    chunk_entries: int = 1024
    chunk_bytes: int = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """How soon a lost bookie's ledgers are copied, and how fast."""

    #: A bookie that was registered nowhere for so long is lost.
    bookie_grace_s: float = 60.0
    #: A ledger that is still open on a lost bookie for so long is recovered (its writer is fenced).
    open_grace_s: float = 30.0
    #: The auditor looks at all ledgers this often.
    audit_every_s: float = 30.0
    #: The worker looks for marks this often.
    work_every_s: float = 5.0
    #: At most so much is copied.
    bytes_per_s: float = 32 * 1024 * 1024
    chunk_bytes: int = 1024 * 1024
    #: Locks of a dead auditor or worker are free after so long.
    lease_s: float = 15.0
    #: One copied chunk must be stored within this time.
    add_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """All of them, for the client that hands each part its own."""

    writer: WriterSettings = field(default_factory=WriterSettings)
    reader: ReaderSettings = field(default_factory=ReaderSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    repair: RepairSettings = field(default_factory=RepairSettings)
    #: Ledger ids are taken from the counter so many at a time.
    id_block: int = 16
    #: How hard a change of metadata is tried while the store does not answer or others change it too.
    update: UpdateSettings = field(default_factory=UpdateSettings)
    #: A bookie that failed is not chosen for so long.
    quarantine_s: float = 10.0
