"""A bookie's journal as bytes: records that start on a block boundary and say where they belong.

    header crc32c u32 | magic | kind u8 | 0 u24 | sequence u64 | nonce u64 | offset u64 | durable through u64
    | body length u32 | body crc32c u32 | 0 ... up to 64 bytes | body | zeros up to the next block boundary

The sequence number and the nonce of the file, and the record's own offset, stand in every header: a record of
the file's former life, a block written to the wrong place, or a payload that looks like a record is told apart.
`durable through` is what makes damage decidable: when this record was written, everything before that offset
had been synced. The header has a checksum of its own, so that it testifies even if its body is torn.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from weir.model.errors import ChecksumError, WireError
from weir.model.ids import Buffer, EntryId, LedgerId
from weir.wire.checksum import crc32c
from weir.wire.entry import entry_key, entry_size

#: Records start here: no write ever touches a block that holds synced bytes.
BLOCK_BYTES = 4096
HEADER_BYTES = 64
MAGIC = b"WJr1"
MAX_BODY_BYTES = 0xFFFF_FFFF

_HEADER = Struct("<I4sB3xQQQQII12x")
_CRC = Struct("<I")
_FIELDS = Struct("<4sB3xQQQQII12x")
_START = Struct("<QQQ")
_START_BEFORE = Struct("<QQ")
_KINDS = 4
_ZEROS = bytes(BLOCK_BYTES)


class RecordKind(IntEnum):
    """What a record's body holds."""

    START = 0
    """First in every file: where the file before it ends."""
    ENTRIES = 1
    """Entries back to back (`weir.wire.entry`)."""
    FENCE = 2
    """Ledgers that were fenced."""
    DELETE = 3
    """Ledgers that were deleted: entries of them in earlier records and in all logs of that time are gone."""


class RecordHeader(NamedTuple):
    """What stands before every body."""

    kind: RecordKind
    sequence: int
    nonce: int
    offset: int
    durable_through: int
    length: int
    body_crc: int

    @property
    def end(self) -> int:
        """Where the next record starts."""
        return self.offset + record_bytes(self.length)


class Start(NamedTuple):
    """The end of the file before this one, synced before this file's first record was written."""

    previous_sequence: int
    previous_end: int
    #: The size that this file was given, durably, before its first record; 0 in files of older versions.
    allocated: int = 0


def record_bytes(body_length: int) -> int:
    """How much of the file a record with such a body takes."""
    return -(-(HEADER_BYTES + body_length) // BLOCK_BYTES) * BLOCK_BYTES


def encode_header(header: RecordHeader) -> bytes:
    fields = _FIELDS.pack(MAGIC, *header)
    return _CRC.pack(crc32c(fields)) + fields


def padding(body_length: int) -> bytes:
    """The zeros after a body, up to the next block boundary."""
    return _ZEROS[: record_bytes(body_length) - HEADER_BYTES - body_length]


def decode_header(data: Buffer, at: int = 0) -> RecordHeader:
    """The header that lies at `at`, its checksum verified."""
    if len(data) - at < HEADER_BYTES:
        raise WireError(
            f"a journal record needs {HEADER_BYTES} bytes of header, {max(0, len(data) - at)} are left"
        )
    crc, magic, kind, *numbers = _HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise WireError("not a journal record")
    if crc32c(memoryview(data)[at + 4 : at + HEADER_BYTES]) != crc:
        raise ChecksumError("checksum of a journal record's header does not match")
    if kind >= _KINDS:
        raise WireError(f"journal record of unknown kind {kind}")
    return RecordHeader(RecordKind(kind), *numbers)


def verify_body(header: RecordHeader, body: Buffer) -> None:
    """Raise unless `body` is what the header announces."""
    if len(body) != header.length or crc32c(body) != header.body_crc:
        raise ChecksumError(f"checksum of the journal record at {header.offset} does not match")


def encode_start(start: Start) -> bytes:
    return _START.pack(*start)


def decode_start(body: Buffer) -> Start:
    try:
        return Start(*(_START_BEFORE if len(body) == _START_BEFORE.size else _START).unpack(body))
    except struct_error as bad:
        raise WireError(f"a journal file's first record is malformed: {bad}") from bad


def encode_ledgers(ledgers: Sequence[LedgerId]) -> bytes:
    """The body of a FENCE or DELETE record."""
    return Struct(f"<{len(ledgers)}Q").pack(*ledgers)


def decode_ledgers(body: Buffer) -> list[LedgerId]:
    if len(body) % 8:
        raise WireError(f"a list of ledgers in {len(body)} bytes")
    return [LedgerId(ledger) for ledger in Struct(f"<{len(body) // 8}Q").unpack(body)]


def split_entries(body: Buffer) -> Iterator[tuple[LedgerId, EntryId, memoryview]]:
    """The entries of a body, as slices; their own checksums are not verified."""
    view = memoryview(body)
    at = 0
    while at < len(view):
        size = entry_size(view, at)
        if at + size > len(view):
            raise WireError(f"an entry of {size} bytes runs over the end of its record")
        ledger_id, entry_id = entry_key(view, at)
        yield ledger_id, entry_id, view[at : at + size]
        at += size
