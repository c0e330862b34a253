"""What the frames of the metadata protocol are, how long they may be, and its errors by number."""

from enum import IntEnum

from weir.model.errors import (
    ChecksumError,
    FrameTooLargeError,
    LeaseExpiredError,
    MetaConflictError,
    MetaError,
    MetaFullError,
    MetaUnavailableError,
    NotAuthenticatedError,
    UnknownVersionError,
    WeirError,
    WireError,
)
from weir.wire.error_codes import ErrorCodes

#: Enough for the largest value with its key, and for a page of smaller ones.
MAX_FRAME_BYTES = 2 * 1024 * 1024
#: An answer of several items ends behind the one that made it as long as this.
PAGE_BYTES = 512 * 1024
#: No text of a failure may be longer; what is longer is cut.
MAX_TEXT_BYTES = 1024

#: Codes are for ever: add, never change.
ERRORS: dict[int, type[WeirError]] = {
    1: MetaError,
    2: MetaConflictError,
    3: MetaUnavailableError,
    4: LeaseExpiredError,
    5: NotAuthenticatedError,
    6: MetaFullError,
    32: WireError,
    33: FrameTooLargeError,
    34: ChecksumError,
    35: UnknownVersionError,
}
CODES = ErrorCodes(ERRORS, other=1, who="metadata store")


class FrameType(IntEnum):
    """What a frame is. From the client below 64, from the server from 64 on."""

    HELLO = 1
    GET = 3
    PUT = 4
    DELETE = 5
    LIST = 6
    WATCH = 7
    GRANT = 8
    RENEW = 9
    REVOKE = 10
    PAGE = 11
    COUNT = 12
    WELCOME = 64
    ITEMS = 65
    DONE = 66
    CHANGES = 67
    FORGOTTEN = 68
    LEASED = 69
    FAILED = 70
