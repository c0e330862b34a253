"""A bookie's checkpoint as bytes: the one root from which everything else on its disk is understood.

crc32c u32 | magic | number u64 | sequence u64 | offset u64 | nonce u64 | next log u64
| fenced u32 | deletions u32 | logs u32 | fenced ledgers u64 ... | (ledger, through log) u64 ... | logs u64 ...
| ids of all ledgers ever deleted, as a bitmap
"""

from dataclasses import dataclass
from struct import Struct

from weir.model.errors import ChecksumError, WireError
from weir.model.ids import Buffer, LedgerId
from weir.wire.checksum import crc32c

MAGIC = b"WCp1"

_CRC = Struct("<I")
_FIELDS = Struct("<4sQQQQQIII")
_HEADER_BYTES = _CRC.size + _FIELDS.size


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the journal: file, offset in it, and the file's nonce."""

    sequence: int
    offset: int
    nonce: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is known without the journal: everything before `position` is in these logs and sets."""

    #: Grows with every checkpoint; of two copies the higher counts.
    number: int
    position: Position
    #: No log with this id or a higher one was ever committed.
    next_log: int
    fenced: tuple[LedgerId, ...] = ()
    #: Deleted ledgers that some log may still hold, and the last such log.
    deleted: tuple[tuple[LedgerId, int], ...] = ()
    #: The entry logs that exist; a log that is not named here was never committed.
    logs: tuple[int, ...] = ()
    #: The ids of all ledgers ever deleted, as a serialized bitmap.
    gone: bytes = b""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    position = checkpoint.position
    deleted = [number for deletion in checkpoint.deleted for number in deletion]
    numbers = [*checkpoint.fenced, *deleted, *checkpoint.logs]
    covered = _FIELDS.pack(
        MAGIC,
        checkpoint.number,
        position.sequence,
        position.offset,
        position.nonce,
        checkpoint.next_log,
        len(checkpoint.fenced),
        len(checkpoint.deleted),
        len(checkpoint.logs),
    )
    covered += Struct(f"<{len(numbers)}Q").pack(*numbers) + checkpoint.gone
    return _CRC.pack(crc32c(covered)) + covered


def decode_checkpoint(data: Buffer) -> Checkpoint:
    if len(data) < _HEADER_BYTES:
        raise WireError(f"a checkpoint of {len(data)} bytes")
    magic, number, sequence, offset, nonce, next_log, fenced, deleted, logs = _FIELDS.unpack_from(data, _CRC.size)
    if magic != MAGIC:
        raise WireError("not a checkpoint")
    if crc32c(memoryview(data)[_CRC.size :]) != _CRC.unpack_from(data)[0]:
        raise ChecksumError("checksum of the checkpoint does not match")
    count = fenced + 2 * deleted + logs
    if len(data) < _HEADER_BYTES + 8 * count:
        raise WireError(f"a checkpoint of {len(data)} bytes announces {count} numbers")
    numbers = Struct(f"<{count}Q").unpack_from(data, _HEADER_BYTES)
    pairs = numbers[fenced : fenced + 2 * deleted]
    return Checkpoint(
        number,
        Position(sequence, offset, nonce),
        next_log,
        tuple(LedgerId(ledger) for ledger in numbers[:fenced]),
        tuple((LedgerId(ledger), log) for ledger, log in zip(pairs[::2], pairs[1::2], strict=True)),
        numbers[fenced + 2 * deleted :],
        bytes(data[_HEADER_BYTES + 8 * count :]),
    )
