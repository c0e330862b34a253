"""Held batches and the progress of their release, as bytes.

A held entry, the payload of an entry of a holding ledger:

    version u8 | due ms i64 | the batch as `weir.wire.batch` encodes it

What the stream's state says of one holding ledger:

    version u8 | closed u8 | serial u32 | window first ms i64 | window end ms i64 | entries u64 | messages u64 |
    bytes u64 | messages gone u64 | bitmap of the entries that are done
"""

from dataclasses import dataclass
from struct import Struct, error

from weir.model.batch import Batch
from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.wire.batch import MAX_COUNT, decode_batch, encode_batch

_VERSION = 1
_ENTRY = Struct("<Bq")
#: The entry's own fields and the first of the batch's, up to its count.
_PEEK = Struct("<BqBBHI")
_LEDGER = Struct("<BBIqqQQQQ")
_PROGRESS = Struct("<BQ")
_HINT = "written by a newer Weir?"

MAX_SERIAL = (1 << 24) - 1
_MAX_NUMBER = (1 << 63) - 1


def encode_held(due_ms: int, batch: Batch) -> bytes:
    """The entry of a batch that is due at this moment."""
    return b"".join((_ENTRY.pack(_VERSION, due_ms), *encode_batch(batch)))


def decode_held(data: Buffer) -> tuple[int, Batch]:
    """When the batch is due, and the batch; its payload is a slice, not a copy."""
    view = memoryview(data)
    if len(view) < _ENTRY.size:
        raise WireError("a held batch ends within its header")
    version, due_ms = _ENTRY.unpack_from(view)
    _check_version(version, "a held batch")
    if due_ms < 0:
        raise WireError(f"a held batch is due before 1970: {due_ms}")
    return due_ms, decode_batch(view[_ENTRY.size :])


def peek_held(data: Buffer) -> tuple[int, int]:
    """When the batch is due, and how many messages it has, without decoding the rest."""
    try:
        version, due_ms, _, _, _, count = _PEEK.unpack_from(data)
    except error as short:
        raise WireError("a held batch ends within its header") from short
    _check_version(version, "a held batch")
    if due_ms < 0 or not 0 < count <= MAX_COUNT:
        raise WireError(f"a held batch claims {count} messages, due at {due_ms}")
    return due_ms, count


@dataclass(frozen=True, slots=True)
class HoldingRecord:
    """One holding ledger. `closed`: `entries` and what follows count all that it will ever hold; else they count
    what was acknowledged when this was written."""

    serial: int
    first_ms: int
    end_ms: int
    closed: bool = False
    entries: int = 0
    messages: int = 0
    size_bytes: int = 0
    #: Messages of the entries that are done.
    gone_messages: int = 0
    #: Which entries are done: released or cancelled. A serialised 64-bit roaring bitmap.
    done: bytes = b""


def encode_record(record: HoldingRecord) -> bytes:
    return (
        _LEDGER.pack(
            _VERSION,
            record.closed,
            record.serial,
            record.first_ms,
            record.end_ms,
            record.entries,
            record.messages,
            record.size_bytes,
            record.gone_messages,
        )
        + record.done
    )


def decode_record(data: Buffer) -> HoldingRecord:
    try:
        version, closed, serial, first_ms, end_ms, *counts = _LEDGER.unpack_from(data)
    except error as short:
        raise WireError("a holding ledger's record ends too early") from short
    _check_version(version, "a holding ledger's record")
    if closed > 1 or serial > MAX_SERIAL or not 0 <= first_ms < end_ms or max(counts) > _MAX_NUMBER:
        raise WireError("a holding ledger's record is malformed")
    entries, messages, size_bytes, gone_messages = counts
    done = bytes(memoryview(data)[_LEDGER.size :])
    return HoldingRecord(
        serial, first_ms, end_ms, bool(closed), entries, messages, size_bytes, gone_messages, done
    )


def encode_covered(offset: int) -> bytes:
    """The stream offset below which every release is in the bitmaps."""
    return _PROGRESS.pack(_VERSION, offset)


def decode_covered(data: Buffer) -> int:
    if len(data) != _PROGRESS.size:
        raise WireError("the progress of releases has a wrong length")
    version, offset = _PROGRESS.unpack(data)
    _check_version(version, "the progress of releases")
    if offset > _MAX_NUMBER:
        raise WireError(f"the progress of releases is malformed: {offset}")
    return int(offset)


def _check_version(version: int, what: str) -> None:
    if version != _VERSION:
        raise UnknownVersionError(f"{what} has version {version}", hint=_HINT)
