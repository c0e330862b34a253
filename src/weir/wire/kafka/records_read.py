"""The records of a batch, opened: decompressed, and read one by one.

    size varint | attributes i8 | timestamp delta varlong | offset delta varint | key | value |
    header count varint | (name | value)*

Keys, values and names are a size (-1: null) and so many bytes; numbers are zigzag, in groups of seven bits.
"""

from collections.abc import Iterator

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.entry import OPENED
from weir.wire.kafka.compression import decompress
from weir.wire.kafka.records import HEADER_BYTES, BatchHeader, parse_header
from weir.wire.kafka.records_build import Header, Record

_MAX_SHIFT = 63
_MIN_TIME, _MAX_TIME = -(1 << 63), (1 << 63) - 1


def open_records(batch: Buffer, header: BatchHeader, limit: int | None = None) -> Buffer:
    """The bytes of all records, decompressed: `limit` at most (`OPENED` if that is None)."""
    limit = OPENED.max_bytes if limit is None else limit
    return decompress(header.compression, memoryview(batch)[HEADER_BYTES : header.size], limit)


def iter_records(batch: Buffer, limit: int | None = None) -> Iterator[Record]:
    """The records of a batch, read one by one as they are asked for; their offsets grow."""
    header = parse_header(batch)
    data = bytes(open_records(batch, header, limit))
    base_ms, appended_ms = header.base_timestamp, header.max_timestamp if header.log_append_time else None
    last = -1
    at = 0
    for _ in range(header.records):
        try:
            record, at = _read(data, at, base_ms, appended_ms)
        except IndexError:
            raise WireError("a record ends beyond the end of its batch") from None
        if not last < record.offset_delta <= header.last_offset_delta:
            raise WireError(f"a record has offset {record.offset_delta} after {last} in its batch")
        last = record.offset_delta
        yield record
    if at != len(data):
        raise WireError(f"a batch of {header.records} records has {len(data) - at} bytes more")


def _read(data: bytes, at: int, base_ms: int, appended_ms: int | None) -> tuple[Record, int]:
    """The record at a place, and the place after it. IndexError where the bytes end within it."""
    size, at = number(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise WireError(f"a record claims {size} bytes, {len(data) - at} are there")
    time_delta, at = number(data, at + 1)
    offset_delta, at = number(data, at)
    key, at = _bytes(data, at, end)
    value, at = _bytes(data, at, end)
    count, at = number(data, at)
    if count < 0 or count > end - at:
        raise WireError(f"a record claims {count} headers")
    headers: list[Header] = []
    while count:
        count -= 1
        name, at = _bytes(data, at, end)
        if name is None:
            raise WireError("a record's header has no name")
        header_value, at = _bytes(data, at, end)
        headers.append((name, header_value))
    if at != end:
        raise WireError(f"a record of {size} bytes ends {end - at} bytes early or late")
    moment = base_ms + time_delta if appended_ms is None else appended_ms
    if not _MIN_TIME <= moment <= _MAX_TIME:
        raise WireError("a record's timestamp is no 64-bit number")
    return Record(offset_delta, moment, key, value, headers), at


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    first = data[at]
    if first < 0x80 and not first & 1:  # nearly always: the call below costs as much as all the rest
        size, at = first >> 1, at + 1
    else:
        size, at = number(data, at)
    if size < 0:
        if size != -1:
            raise WireError(f"a record has a part of {size} bytes")
        return None, at
    if size > end - at:
        raise WireError(f"a record has a part of {size} bytes, {end - at} are left")
    return data[at : at + size], at + size


def number(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """A zigzag number, and the place after it."""
    first = data[at]
    if first < 0x80:
        return (first >> 1) ^ -(first & 1), at + 1
    found = first & 0x7F
    shift = 7
    while True:
        at += 1
        group = data[at]
        found |= (group & 0x7F) << shift
        if group < 0x80:
            return (found >> 1) ^ -(found & 1), at + 1
        shift += 7
        if shift > _MAX_SHIFT:
            raise WireError("a number in a record is longer than 64 bits")
