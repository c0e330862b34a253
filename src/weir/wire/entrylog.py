"""The index file of an entry log as bytes: which ledgers the log holds, and where each entry lies.

An entry log itself is nothing but entries (`weir.wire.entry`) back to back, those of a ledger together and in
order. Its index:

    header  crc32c u32 | magic | runs u32 | runs crc32c u32 | log bytes u64 | rows u64 | 0 ... up to 64 bytes
    runs    ledger u64 | first entry u64 | last entry u64 | first row u64 | rows u64 | offset u64 | bytes u64
            | highest last-add-confirmed i64
    zeros up to the next page boundary
    pages   crc32c u32 | 0 u32 | up to 204 rows of (entry u64, offset u64, size u32) | zeros up to 4096 bytes

Header and runs are read when the bookie opens; a page is read when an entry of it is, so each has its own
checksum: a flipped bit must never make an entry that is here look as if it were not.
"""

from struct import Struct
from typing import NamedTuple

from weir.model.errors import ChecksumError, WireError
from weir.model.ids import Buffer, EntryId, LedgerId
from weir.wire.checksum import crc32c

PAGE_BYTES = 4096
HEADER_BYTES = 64
MAGIC = b"WIx1"

_FIELDS = Struct("<4sIIQQ32x")
_CRC = Struct("<I")
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
    fields = _FIELDS.pack(MAGIC, *header)
    head = b"".join((_CRC.pack(crc32c(fields)), fields, packed_runs))
    return head.ljust(header.pages_offset, b"\0")


def decode_header(data: Buffer) -> IndexHeader:
    if len(data) < HEADER_BYTES:
        raise WireError(f"an index needs {HEADER_BYTES} bytes of header, there are {len(data)}")
    (crc,) = _CRC.unpack_from(data)
    magic, *numbers = _FIELDS.unpack_from(data, 4)
    if magic != MAGIC:
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
