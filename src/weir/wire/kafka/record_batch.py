"""A Kafka record batch, version 2: its header read, verified, patched; the records stay closed.

    base offset i64 | length i32 | leader epoch i32 | magic i8 | crc32c u32 | attributes i16 |
    last offset delta i32 | base timestamp i64 | max timestamp i64 | producer id i64 | producer epoch i16 |
    base sequence i32 | record count i32 | records

Big-endian; `length` counts what follows it. The checksum covers everything after itself, so that a broker may set
base offset and leader epoch, the first sixteen bytes, and keep the rest as its producer sent it.
"""

from enum import IntEnum
from struct import Struct

from weir.model.batch import Stamp
from weir.model.errors import ChecksumError, UnknownVersionError, WireError
from weir.model.ids import Buffer, value
from weir.wire.batch import MAX_COUNT
from weir.wire.checksum import crc32c

MAGIC = 2
MAGIC_AT = 16
HEADER_BYTES = 61
#: Where the checksummed part begins.
ATTRIBUTES_AT = 21
NO_TIMESTAMP = -1

#: All of the header; `PATCH` is what a broker sets, `COVERED` what the checksum covers of it.
HEADER = Struct(">qiibIhiqqqhii")
PATCH = Struct(">qii")
COVERED = Struct(">hiqqqhii")
#: Base offset and length, then the magic, which older formats have in the same place.
_START = Struct(">qiib")
_PATCH_BYTES = PATCH.size
#: The bytes before those that `length` counts.
LENGTH_END = 12
_CHECKSUM = Struct(">I")
_CHECKSUM_AT = 17

COMPRESSION_BITS = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
#: Bits that Kafka leaves unused: of a batch that was translated here, whose producers wrote it. 0: Kafka's.
ORIGIN_SHIFT, ORIGIN_MASK = 8, 0x0F
ORIGINS = ("kafka", "pulsar", "amqp", "rocketmq")
#: Another bit that Kafka leaves unused: the batch is for one subscription alone, which its first record names.
ADDRESSED = 0x1000
#: The base timestamp is the moment until which tombstones are kept; only compacted logs have it.
DELETE_HORIZON = 0x40


class Compression(IntEnum):
    """Kafka's numbers of its compressions."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@value
class BatchHeader:
    """What a batch says about its records."""

    base_offset: int
    #: All bytes of the batch, from the base offset on.
    size: int
    leader_epoch: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    #: How many records it has: fewer than offsets where compaction dropped some.
    records: int

    @property
    def count(self) -> int:
        """How many offsets it takes."""
        return self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & COMPRESSION_BITS)

    @property
    def log_append_time(self) -> bool:
        """Whether every record's time is `max_timestamp`, the broker's."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def addressed(self) -> bool:
        return bool(self.attributes & ADDRESSED)

    @property
    def stamp(self) -> Stamp | None:
        """The mark of its idempotent producer, if it has one."""
        if self.producer_id < 0:
            return None
        return Stamp(self.producer_id, self.producer_epoch, self.base_sequence, self.checksum)


def parse_header(data: Buffer) -> BatchHeader:
    """The header of the batch that `data` begins with, all of which is there; its checksum is not looked at."""
    view = memoryview(data)
    if len(view) >= _START.size and view[_START.size - 1] != MAGIC:
        found: int = _START.unpack_from(view)[3]
        raise UnknownVersionError(
            f"records in message format {found}",
            hint="use format 2, as every client since Kafka 0.11 does",
        )
    if len(view) < HEADER_BYTES:
        raise WireError(f"a record batch needs {HEADER_BYTES} bytes of header, {len(view)} are there")
    base, length, leader, _, checksum, attributes, last, first_ms, max_ms, producer, epoch, sequence, records = (
        HEADER.unpack_from(view)
    )
    size = LENGTH_END + length
    if not HEADER_BYTES <= size <= len(view):
        raise WireError(f"a record batch claims {size} bytes, {len(view)} are there")
    if not 0 <= last < MAX_COUNT or not 0 <= records <= last + 1:
        raise WireError(f"a record batch claims {records} records on {last + 1} offsets")
    if attributes & COMPRESSION_BITS > Compression.ZSTD:
        raise WireError(f"a record batch has the unknown compression {attributes & COMPRESSION_BITS}")
    return BatchHeader(
        base, size, leader, checksum, attributes, last, first_ms, max_ms, producer, epoch, sequence, records
    )


def transactional_producer(data: Buffer) -> tuple[int, int] | None:
    """Producer id and epoch of a batch that says that it is part of a transaction; None of anything else. Nothing
    is verified."""
    if len(data) < HEADER_BYTES:
        return None
    _, _, _, magic, _, attributes, _, _, _, producer, epoch, _, _ = HEADER.unpack_from(data)
    if magic != MAGIC or not attributes & TRANSACTIONAL or producer < 0:
        return None
    return producer, epoch


def verify(batch: Buffer) -> BatchHeader:
    """The header of a batch that is all of `batch`, and whose checksum holds."""
    header = parse_header(batch)
    if header.size != len(batch):
        raise WireError(f"a record batch claims {header.size} bytes, {len(batch)} are there")
    if crc32c(memoryview(batch)[ATTRIBUTES_AT:]) != header.checksum:
        raise ChecksumError("a record batch was damaged on its way: its checksum does not hold")
    return header


def split_batches(records: Buffer) -> list[memoryview]:
    """A `records` field cut into its batches. What a fetch cut short at the end is left out, as clients do it."""
    view = memoryview(records)
    batches: list[memoryview] = []
    at = 0
    while len(view) - at >= _START.size:
        size: int = LENGTH_END + PATCH.unpack_from(view, at)[1]
        if size < HEADER_BYTES:
            raise WireError(f"a record batch claims {size} bytes")
        if size > len(view) - at:
            break
        batches.append(view[at : at + size])
        at += size
    return batches


def produced(records: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """The batches that a producer sent, each verified and fit to be stored: every offset has its record."""
    view = memoryview(records)
    found: list[tuple[BatchHeader, memoryview]] = []
    at = 0
    while at < len(view):
        size = parse_header(view[at:]).size
        batch = view[at : at + size]
        found.append((_fit(verify(batch)), batch))
        at += size
    return found


def produced_batch(records: Buffer) -> BatchHeader:
    """The header of the one batch that a producer sent, verified and fit to be stored."""
    return _fit(verify(records))


def _fit(header: BatchHeader) -> BatchHeader:
    if header.records != header.count:
        raise WireError(f"a producer sent {header.records} records on {header.count} offsets")
    if header.control:
        raise WireError("a producer sent a control batch, which only brokers write")
    if header.transactional and header.producer_id < 0:
        raise WireError("a transactional record batch names no producer id")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise WireError("a record batch of an idempotent producer has no epoch or no sequence")
    if header.attributes & DELETE_HORIZON:
        raise WireError("a producer sent a batch with a delete horizon, which only compaction writes")
    return header


def patched(batch: Buffer, base_offset: int, leader_epoch: int = 0) -> list[Buffer]:
    """The batch as it lies at `base_offset`, in pieces: its own bytes are not copied."""
    return [PATCH.pack(base_offset, len(batch) - LENGTH_END, leader_epoch), memoryview(batch)[_PATCH_BYTES:]]


def with_leader_epoch(pieces: list[Buffer], leader_epoch: int) -> list[Buffer]:
    """The pieces of one batch, the first of which holds the fields before its checksum, as its leader wrote it."""
    base_offset, length, _ = PATCH.unpack_from(pieces[0])
    rest = memoryview(pieces[0])[_PATCH_BYTES:]
    return [PATCH.pack(base_offset, length, leader_epoch), *([rest] if len(rest) else []), *pieces[1:]]


def with_append_time(batch: Buffer, moment_ms: int) -> bytes:
    """The batch with the broker's time for each of its records."""
    header = parse_header(batch)
    return _resealed(batch, header, header.attributes | LOG_APPEND_TIME, moment_ms)


def with_own_times(batch: Buffer) -> bytes:
    """The batch with the times that its producer wrote into its records, whatever it said of them."""
    header = parse_header(batch)
    return _resealed(batch, header, header.attributes & ~LOG_APPEND_TIME, header.max_timestamp)


def _resealed(batch: Buffer, header: BatchHeader, attributes: int, max_timestamp: int) -> bytes:
    return sealed(
        memoryview(batch)[HEADER_BYTES : header.size],
        base_offset=header.base_offset,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        times=(header.base_timestamp, max_timestamp),
        stamp=Stamp(header.producer_id, header.producer_epoch, header.base_sequence),
        records=header.records,
    )


#: In a batch of a producer that is not idempotent.
NO_STAMP = Stamp(-1, -1, -1)


def sealed(
    body: Buffer,
    *,
    base_offset: int,
    attributes: int,
    last_offset_delta: int,
    times: tuple[int, int],
    stamp: Stamp,
    records: int,
) -> bytes:
    """A batch around the bytes of its records, compressed as `attributes` say. `times`: base and latest."""
    covered = COVERED.pack(
        attributes, last_offset_delta, *times, stamp.producer_id, stamp.epoch, stamp.sequence, records
    )
    # The checksum of two pieces is that of the whole: the body is not copied to compute it.
    checksum = crc32c(body, crc32c(covered))
    head = PATCH.pack(base_offset, HEADER_BYTES - LENGTH_END + len(body), 0) + bytes([MAGIC])
    return b"".join((head, _CHECKSUM.pack(checksum), covered, body))
