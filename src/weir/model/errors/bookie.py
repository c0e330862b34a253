"""A storage node."""

from weir.model.errors.base import WeirError


class BookieError(WeirError):
    """A storage node refused or failed."""


class NoSuchLedgerError(BookieError):
    """The bookie holds nothing of this ledger."""


class NoSuchEntryError(BookieError):
    """The bookie does not hold this entry, and says so with certainty."""


class LedgerFencedError(BookieError):
    """The ledger is fenced: a recovery has begun and its former writer may add nothing more."""


class EntryCorruptError(BookieError):
    """The entry is here, but its bytes are damaged; another replica may have it whole."""


class EntryInDoubtError(EntryCorruptError):
    """The bookie does not have the entry, and cannot say whether it once had: it lost a part of what it held."""


class BookieReadOnlyError(BookieError):
    """The bookie takes no new entries for now."""

    hint = "its disk is nearly full; free some space and it takes entries again"


class BookieBusyError(BookieError):
    """The bookie's queues are full; try again later."""


class BookieUnavailableError(BookieError):
    """The bookie did not answer; what was asked may or may not have happened."""


class BookieCookieError(BookieError):
    """The bookie's disk is not the one that this bookie id was given."""

    hint = "a bookie that lost its disk must come back under a new id, so that its ledgers are re-replicated"


class JournalCorruptError(BookieError):
    """The journal lost acknowledged bytes, in its middle or at its end; the bookie may not start on it."""

    hint = (
        "bring the file back; or with replicas wipe this bookie, start it under a new id, and let auto-recovery"
        " copy its ledgers; or save what can be read: weir salvage DATA --into NEW; or start once with"
        " --accept-loss to go on without what is missing"
    )


class EntryLogMissingError(BookieError):
    """An entry log that the bookie's checkpoint names is gone; the bookie may not start without it."""

    hint = (
        "bring the file back; or save what can be read: weir salvage DATA --into NEW; or with replicas wipe this"
        " bookie, start it under a new id, and let auto-recovery copy its ledgers"
    )


class LedgersUnknownError(BookieError):
    """The bookie holds ledgers that the metadata has not made yet: the metadata is older than the disk."""

    hint = (
        "restore the metadata, or check that it is this bookie's; or start once with --accept-loss to go on"
        " without what only the lost metadata knew"
    )
