"""A replicated ledger, as its writers and readers see it."""

from weir.model.errors.base import WeirError


class LedgerError(WeirError):
    """A replicated ledger could not do what was asked."""


class LedgerNotFoundError(LedgerError):
    """No such ledger in the metadata."""


class LedgerExistsError(LedgerError):
    """The ledger id is taken."""


class LedgerClosedError(LedgerError):
    """The ledger is closed and takes no more entries."""


class WriterFencedError(LedgerError):
    """Another client recovered this ledger; this writer must stop."""


class NotEnoughBookiesError(LedgerError):
    """Fewer bookies are available than the ensemble needs."""

    hint = "start more bookies, or create ledgers with a smaller ensemble"


class EntryUnreadableError(LedgerError):
    """No replica could give the entry whole."""


class EntryLostError(EntryUnreadableError):
    """Every replica of the entry answered, at least one that its copy is damaged, and none has it whole. Unlike an
    entry that was never there it leaves a gap in its ledger; unlike one out of reach it will not come back."""

    hint = (
        "`weir bookie verify` names the damaged files; readers go on behind it, and what they skip is written down"
    )

    def __init__(self, what: str, *, hint: str | None = None, ledger_id: int = -1, entry_id: int = -1) -> None:
        super().__init__(what, hint=hint)
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class EntryTooLargeError(LedgerError):
    """The entry is larger than the limit."""


class WindowFullError(LedgerError):
    """More waits to be acknowledged than a writer may hold."""

    hint = "await the writer's ready() between appends"


class RecoveryFailedError(LedgerError):
    """The ledger's end could not be decided; too many of its bookies do not answer."""

    hint = "bring more of its bookies back and try again"
