"""How far a log was acknowledged, as bytes: kept beside the log, so that a log that became shorter is noticed.

    slot: crc32c u32 | magic | serial u64 | file u64 | nonce u64 | end u64 | revision u64 | final u64

A file has two slots, each in a block of its own. Of two valid ones the higher serial counts; one that is empty or
damaged says nothing. Every record ever written states a lower bound that stays true, so an old one never lies.
"""

from struct import Struct
from typing import NamedTuple

from weir.model.errors import ChecksumError, WireError
from weir.model.ids import Buffer
from weir.wire.checksum import crc32c

MAGIC = b"WEr1"
#: A write of one slot never touches the block of the other.
SLOT_BYTES = 4096
SLOTS = 2

_CRC = Struct("<I")
_FIELDS = Struct("<4sQQQQQQ")
RECORD_BYTES = _CRC.size + _FIELDS.size


class EndRecord(NamedTuple):
    """Everything before `end` of the log's file was synced, and acknowledged or about to be."""

    #: Grows with every record that is written.
    serial: int
    #: Which file of the log: a journal's sequence number, or the first revision of a metadata log; and its nonce.
    file: int
    nonce: int
    end: int
    #: The last revision before `end`; 0 for a log that has none.
    revision: int = 0
    #: Whether nothing was written after it: the log was closed in order.
    final: int = 0

    @property
    def is_final(self) -> bool:
        return self.final != 0


def encode_end_record(record: EndRecord) -> bytes:
    fields = _FIELDS.pack(MAGIC, *record)
    return _CRC.pack(crc32c(fields)) + fields


def decode_end_record(data: Buffer) -> EndRecord:
    """The record at the front of a slot; a WireError if there is none."""
    if len(data) < RECORD_BYTES:
        raise WireError(f"an end record needs {RECORD_BYTES} bytes, {len(data)} are there")
    magic, *numbers = _FIELDS.unpack_from(data, _CRC.size)
    if magic != MAGIC:
        raise WireError("not an end record")
    if crc32c(memoryview(data)[_CRC.size : RECORD_BYTES]) != _CRC.unpack_from(data)[0]:
        raise ChecksumError("checksum of the end record does not match")
    return EndRecord(*numbers)
