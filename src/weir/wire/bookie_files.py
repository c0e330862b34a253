"""A bookie's journal as bytes: records that start on a block boundary and say where they belong.

    header crc32c u32 | magic | kind u8 | 0 u24 | sequence u64 | nonce u64 | offset u64 | durable through u64
    | body length u32 | body crc32c u32 | 0 ... up to 64 bytes | body | zeros up to the next block boundary

The sequence number and the nonce of the file, and the record's own offset, stand in every header: a record of
the file's former life, a block written to the wrong place, or a payload that looks like a record is told apart.
`durable through` is what makes damage decidable: when this record was written, everything before that offset
had been synced. The header has a checksum of its own, so that it testifies even if its body is torn.

The index file of an entry log as bytes: which ledgers the log holds, and where each entry lies.

An entry log itself is nothing but entries (`weir.wire.entry`) back to back, those of a ledger together and in
order. Its index:

    header  crc32c u32 | magic | runs u32 | runs crc32c u32 | log bytes u64 | rows u64 | 0 ... up to 64 bytes
    runs    ledger u64 | first entry u64 | last entry u64 | first row u64 | rows u64 | offset u64 | bytes u64
            | highest last-add-confirmed i64
    zeros up to the next page boundary
    pages   crc32c u32 | 0 u32 | up to 204 rows of (entry u64, offset u64, size u32) | zeros up to 4096 bytes

Header and runs are read when the bookie opens; a page is read when an entry of it is, so each has its own
checksum: a flipped bit must never make an entry that is here look as if it were not.

A bookie's checkpoint as bytes: the one root from which everything else on its disk is understood.

crc32c u32 | magic | number u64 | sequence u64 | offset u64 | nonce u64 | next log u64
| fenced u32 | deletions u32 | logs u32 | fenced ledgers u64 ... | (ledger, through log) u64 ... | logs u64 ...
| ids of all ledgers ever deleted, as a bitmap

Ledgers of which a bookie may have lost a part, as bytes: crc32c u32 | ledger u64 ...
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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


PAGE_BYTES = 4096
ENTRYLOG_MAGIC = b"WIx1"

_ENTRYLOG_FIELDS = Struct("<4sIIQQ32x")
_RUN = Struct("<QQQQQQQq")
_ROW = Struct("<QQI")
_PAGE_HEADER_BYTES = 8
RUN_BYTES = _RUN.size
ROW_BYTES = _ROW.size
ROWS_PER_PAGE = (PAGE_BYTES - _PAGE_HEADER_BYTES) // ROW_BYTES

pack_row = _ROW.pack
pack_run = _RUN.pack


class Run(NamedTuple):
    """The entries of one ledger in one log: contiguous there, in order."""

    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    first_row: int
    rows: int
    offset: int
    size: int
    last_confirmed: EntryId


class Row(NamedTuple):
    """Where one entry lies in its log."""

    entry_id: EntryId
    offset: int
    size: int


class IndexHeader(NamedTuple):
    """The sizes of everything that follows, and of the log."""

    runs: int
    runs_crc: int
    log_bytes: int
    rows: int

    @property
    def runs_bytes(self) -> int:
        return self.runs * RUN_BYTES

    @property
    def pages_offset(self) -> int:
        """Where the first page starts."""
        return -(-(HEADER_BYTES + self.runs_bytes) // PAGE_BYTES) * PAGE_BYTES

    @property
    def pages(self) -> int:
        return -(-self.rows // ROWS_PER_PAGE)

    @property
    def file_bytes(self) -> int:
        return self.pages_offset + self.pages * PAGE_BYTES


def encode_head(packed_runs: bytes, rows: int, log_bytes: int) -> bytes:
    """Header and runs (as `pack_run` makes them), padded up to the first page."""
    header = IndexHeader(len(packed_runs) // RUN_BYTES, crc32c(packed_runs), log_bytes, rows)
    fields = _ENTRYLOG_FIELDS.pack(ENTRYLOG_MAGIC, *header)
    head = b"".join((_CRC.pack(crc32c(fields)), fields, packed_runs))
    return head.ljust(header.pages_offset, b"\0")


def entrylog_decode_header(data: Buffer) -> IndexHeader:
    if len(data) < HEADER_BYTES:
        raise WireError(f"an index needs {HEADER_BYTES} bytes of header, there are {len(data)}")
    (crc,) = _CRC.unpack_from(data)
    magic, *numbers = _ENTRYLOG_FIELDS.unpack_from(data, 4)
    if magic != ENTRYLOG_MAGIC:
        raise WireError("not an index of an entry log")
    if crc32c(memoryview(data)[4:HEADER_BYTES]) != crc:
        raise ChecksumError("checksum of an index's header does not match")
    return IndexHeader(*numbers)


def decode_runs(header: IndexHeader, data: Buffer) -> list[Run]:
    """The runs, from the bytes right behind the header."""
    body = memoryview(data)[: header.runs_bytes]
    if len(body) != header.runs_bytes or crc32c(body) != header.runs_crc:
        raise ChecksumError("checksum of an index's runs does not match")
    return [Run(*fields) for fields in _RUN.iter_unpack(body)]


def encode_page(rows: Buffer) -> bytes:
    """A page around up to ROWS_PER_PAGE rows, as `pack_row` makes them."""
    covered = b"\0\0\0\0" + bytes(rows).ljust(PAGE_BYTES - _PAGE_HEADER_BYTES, b"\0")
    return _CRC.pack(crc32c(covered)) + covered


def verify_page(page: Buffer) -> None:
    """Raise unless `page` is one whole page."""
    if len(page) != PAGE_BYTES:
        raise WireError(f"an index page of {len(page)} bytes")
    if crc32c(memoryview(page)[4:]) != _CRC.unpack_from(page)[0]:
        raise ChecksumError("checksum of an index page does not match")


def row_at(page: Buffer, slot: int) -> Row:
    """A row of a verified page."""
    entry_id, offset, size = _ROW.unpack_from(page, _PAGE_HEADER_BYTES + slot * ROW_BYTES)
    return Row(EntryId(entry_id), offset, size)


CHECKPOINT_MAGIC = b"WCp1"
_CHECKPOINT_FIELDS = Struct("<4sQQQQQIII")
_HEADER_BYTES = _CRC.size + _CHECKPOINT_FIELDS.size


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
    covered = _CHECKPOINT_FIELDS.pack(
        CHECKPOINT_MAGIC,
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
    magic, number, sequence, offset, nonce, next_log, fenced, deleted, logs = _CHECKPOINT_FIELDS.unpack_from(
        data, _CRC.size
    )
    if magic != CHECKPOINT_MAGIC:
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


def encode_doubtful(ledgers: Iterable[LedgerId]) -> bytes:
    body = encode_ledgers(sorted(ledgers))
    return _CRC.pack(crc32c(body)) + body


def decode_doubtful(data: Buffer) -> list[LedgerId]:
    if len(data) < _CRC.size:
        raise WireError(f"a list of ledgers in doubt in {len(data)} bytes")
    body = memoryview(data)[_CRC.size :]
    if crc32c(body) != _CRC.unpack_from(data)[0]:
        raise ChecksumError("checksum of the ledgers in doubt does not match")
    return decode_ledgers(body)
