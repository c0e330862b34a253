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
from weir.wire.bookie import Failed

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
_CODES: dict[type[BaseException], int] = {error: code for code, error in ERRORS.items()}


def failed_from(request_id: int, error: BaseException) -> Failed:
    """The error as a response. A class without a code goes as its nearest ancestor that has one; what is no
    WeirError says nothing of the bookie's insides."""
    code = next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), INTERNAL)
    if isinstance(error, WeirError):
        return Failed(request_id, code, error.what, error.hint)
    return Failed(request_id, code, "the bookie failed inside", "see its log")


def error_from(failed: Failed) -> WeirError:
    """The response as an error."""
    return ERRORS.get(failed.code, BookieError)(failed.what, hint=failed.hint)
