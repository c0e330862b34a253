"""Errors on the bookie protocol: one table of codes, used both ways."""

from weir.model.errors import (
    BookieBusyError,
    BookieCookieError,
    BookieError,
    BookieReadOnlyError,
    BookieUnavailableError,
    ChecksumError,
    EntryCorruptError,
    EntryInDoubtError,
    EntryLogMissingError,
    FrameTooLargeError,
    JournalCorruptError,
    LedgerFencedError,
    LedgersUnknownError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnknownVersionError,
    WeirError,
    WireError,
)
from weir.wire.error_codes import ErrorCodes

#: What the bookie itself got wrong, or a code of a later version.
INTERNAL = 1

#: Code to error. Codes are for ever: add, never change.
ERRORS: dict[int, type[WeirError]] = {
    INTERNAL: BookieError,
    2: NoSuchLedgerError,
    3: NoSuchEntryError,
    4: LedgerFencedError,
    5: EntryCorruptError,
    6: BookieReadOnlyError,
    7: BookieBusyError,
    8: BookieUnavailableError,
    9: BookieCookieError,
    10: JournalCorruptError,
    11: EntryLogMissingError,
    12: EntryInDoubtError,
    13: LedgersUnknownError,
    32: WireError,
    33: FrameTooLargeError,
    34: ChecksumError,
    35: UnknownVersionError,
}
_CODES = ErrorCodes(ERRORS, other=INTERNAL, who="bookie")

failed_from = _CODES.failed
error_from = _CODES.error
