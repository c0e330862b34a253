"""A transaction's marker as the log keeps it: how it ended is in the batch's flags, whose it is in its stamp."""

from struct import Struct, error

from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import Buffer

VERSION = 1
_MARKER = Struct("<Bq")  # version, when it was decided (milliseconds since 1970)


def encode_marker(decided_ms: int) -> bytes:
    return _MARKER.pack(VERSION, decided_ms)


def decode_marker(data: Buffer) -> int:
    """When the transaction was decided; WireError if it is no marker."""
    try:
        version, decided_ms = _MARKER.unpack(data)
    except error as bad:
        raise WireError(f"a marker is malformed: {bad}") from bad
    if version != VERSION:
        raise UnknownVersionError(f"a marker of version {version}", hint="of a newer Weir?")
    moment: int = decided_ms
    return moment
