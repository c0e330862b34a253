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


class EntryTooLargeError(LedgerError):
    """The entry is larger than the limit."""


class WindowFullError(LedgerError):
    """More waits to be acknowledged than a writer may hold."""

    hint = "await the writer's ready() between appends"


class RecoveryFailedError(LedgerError):
    """The ledger's end could not be decided; too many of its bookies do not answer."""

    hint = "bring more of its bookies back and try again"
