"""The records of a batch, opened: decompressed, and read one by one.

    size varint | attributes i8 | timestamp delta varlong | offset delta varint | key | value |
    header count varint | (name | value)*

Keys, values and names are a size (-1: null) and so many bytes; numbers are zigzag, in groups of seven bits.

Whether a record of a batch has a header of some name, found out at as little cost as may be.

Every batch that is produced is asked, so this is about bytes, not records. A header's name stands behind its
length, which is a byte that is rare in text: those bytes are looked for, and the name behind them. Where they are
frequent, as in binary values, all bytes are searched.
Nothing decompressed is kept. A name that occurs in a key or value is taken for a header's too: whoever asks looks
closer then.

Record batches made here: of records in another form, and the markers that end transactions.

A batch without some of its records, the others at their offsets: how a compacted topic is read.

Whether a batch has the records that it claims to have, as far as that is cheap to tell.

To read every record of every batch would cost a broker a fifth of its time. A producer that writes batches wrongly
does so from the first record on, or in their number: the first ones are followed by their sizes, and of a batch
that has no others it is known where they must end.
"""

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any

from cramjam import DecompressionError, lz4, zstd

from weir.model.batch import Stamp
from weir.model.errors import WireError
from weir.model.ids import Buffer, value
from weir.wire.entry import OPENED
from weir.wire.kafka.compression import compressor, decompress
from weir.wire.kafka.record_batch import (
    COMPRESSION_BITS,
    CONTROL,
    HEADER_BYTES,
    NO_STAMP,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    Compression,
    parse_header,
    sealed,
)

#: A header's name and value, both as they stand in the record.
Header = tuple[bytes, Buffer | None]

#: Version, and abort or commit; then version and the coordinator's epoch.
_MARKER_KEY = Struct(">hh")
_MARKER_VALUE = Struct(">hi")
_ABORT, _COMMIT = 0, 1


@value
class Record:
    """One record of a batch. `offset_delta`: its distance from the batch's base offset."""

    offset_delta: int
    timestamp: int
    key: Buffer | None
    value: Buffer | None
    headers: Sequence[Header] = ()


def zigzag(number: int) -> bytes:
    """A signed number in groups of seven bits, small ones of either sign short."""
    number = (number << 1) ^ (number >> 63)
    if number < 0x80:
        return number.to_bytes(1, "little")
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


_NULL = zigzag(-1)
#: The small numbers, of which records are full.
_SMALL = tuple(zigzag(number) for number in range(1024))


def _sized(data: Buffer | None) -> tuple[bytes, Buffer]:
    if data is None:
        return _NULL, b""
    size = len(data)
    return _SMALL[size] if size < len(_SMALL) else zigzag(size), data


def encode_record(record: Record, base_timestamp: int) -> bytes:
    """The record's bytes, its size in front."""
    parts: list[Buffer] = [
        b"\x00",
        zigzag(record.timestamp - base_timestamp),
        zigzag(record.offset_delta),
        *_sized(record.key),
        *_sized(record.value),
        zigzag(len(record.headers)),
    ]
    for name, header in record.headers:
        parts += _sized(name)
        parts += _sized(header)
    body = b"".join(parts)
    size = len(body)
    return (_SMALL[size] if size < len(_SMALL) else zigzag(size)) + body


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    attributes: int = Compression.NONE,
    stamp: Stamp = NO_STAMP,
    compression: Compression = Compression.NONE,
) -> bytes:
    """A batch of records. `last_offset_delta` may say that it takes more offsets than it has records, of which
    there may be none. `compression`: done here, and said in its attributes."""
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    body = b"".join([encode_record(record, base_timestamp) for record in records])
    if (compress := compressor(compression)) is not None:
        body = compress(body)
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset_delta if records else 0
    return sealed(
        body,
        base_offset=base_offset,
        attributes=attributes | compression,
        last_offset_delta=last_offset_delta,
        times=(base_timestamp, max((record.timestamp for record in records), default=NO_TIMESTAMP)),
        stamp=stamp,
        records=len(records),
    )


def control_batch(producer_id: int, epoch: int, commit: bool, timestamp_ms: int) -> bytes:
    """The marker that ends the producer's transaction in one partition; it takes one offset."""
    marker = Record(
        offset_delta=0,
        timestamp=timestamp_ms,
        key=_MARKER_KEY.pack(0, _COMMIT if commit else _ABORT),
        value=_MARKER_VALUE.pack(0, 0),
    )
    return build_batch([marker], attributes=TRANSACTIONAL | CONTROL, stamp=Stamp(producer_id, epoch))


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


#: What is left is compressed again only if it would be so many bytes, and so many times the whole batch.
_LOOSE_BYTES = 256 * 1024
_LOOSE_RATIO = 4


def keep_records(batch: Buffer, wanted: int, base_offset: int = 0, limit: int | None = None) -> bytes:
    """The batch with the records whose bits are set in `wanted`, bit 0 for the first offset; it takes as many
    offsets as before, and is not compressed, unless it was packed very well. Nothing of a record is decoded but
    its size."""
    header = parse_header(batch)
    data = bytes(open_records(batch, header, limit))
    kept: list[bytes] = []
    flags = wanted.to_bytes(-(-wanted.bit_length() // 8), "little")  # looked at in constant time
    most = 8 * len(flags)
    at = 0
    try:
        for _ in range(header.records):
            start = at
            size, at = number(data, at)
            if size < 1:
                raise WireError(f"a record claims {size} bytes")
            _, place = number(data, at + 1)
            delta, _ = number(data, place)
            at += size
            if 0 <= delta < most and flags[delta >> 3] >> (delta & 7) & 1:
                kept.append(data[start:at])
    except IndexError:
        raise WireError("a record ends beyond the end of its batch") from None
    if at != len(data):
        raise WireError(f"a batch of {header.records} records has {len(data)} bytes, and they end at {at}")
    body, attributes = b"".join(kept), header.attributes & ~COMPRESSION_BITS
    pack = compressor(header.compression)
    if pack is not None and len(body) > max(_LOOSE_BYTES, _LOOSE_RATIO * len(batch)):
        body, attributes = pack(body), header.attributes
    return sealed(
        body,
        base_offset=base_offset,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        times=(header.base_timestamp, header.max_timestamp),
        stamp=Stamp(header.producer_id, header.producer_epoch, header.base_sequence),
        records=len(kept),
    )


_INTO: dict[Compression, Callable[[Buffer, bytearray], int]] = {
    Compression.LZ4: lz4.decompress_into,
    Compression.ZSTD: zstd.decompress_into,
}
#: Most batches fit when decompressed; others are decompressed into memory of their own.
_ROOM_BYTES = 1024 * 1024
#: So many places are looked at before all bytes are searched: it then costs little more than that.
_BYTES_PER_PLACE = 4096
_FEW_PLACES = 16


class Searcher:
    """Room to decompress into is made once, and used again for each search."""

    def __init__(self, beginning: bytes, names: Sequence[bytes]) -> None:
        """`beginning`: what all names begin with."""
        self._patterns = [zigzag(len(name)) + name for name in names]
        self._beginning = beginning
        self._pattern: Any = None
        self._room = bytearray()

    def has(self, batch: Buffer, header: BatchHeader) -> bool:
        """Whether any of the names is there. WireError if the records cannot be decompressed."""
        if not self._room:
            self._room = bytearray(_ROOM_BYTES)
        if header.compression is Compression.NONE:
            return self._is_in(self._searchable(batch), HEADER_BYTES, len(batch))
        into = _INTO.get(header.compression)
        if into is not None:
            try:
                size = into(memoryview(batch)[HEADER_BYTES:], self._room)
            except DecompressionError:
                pass  # there is too little room, or it is damaged: which of them is found out below
            else:
                return self._is_in(self._room, 0, size)
        opened = bytes(open_records(batch, header))
        return self._is_in(opened, 0, len(opened))

    def _searchable(self, batch: Buffer) -> bytes | bytearray:
        """A view cannot be searched; memory that is used again and again is the cheapest to copy to."""
        if not isinstance(batch, memoryview):
            return batch
        if len(batch) > len(self._room):
            return bytes(batch)
        memoryview(self._room)[: len(batch)] = batch  # to assign to the array itself would copy twice
        return self._room

    def _is_in(self, data: bytes | bytearray, start: int, end: int) -> bool:
        places = _FEW_PLACES + (end - start) // _BYTES_PER_PLACE
        for pattern in self._patterns:
            length = pattern[:1]
            at = data.find(length, start, end)
            while at >= 0:
                if data.startswith(pattern, at, end):
                    return True
                places -= 1
                if places < 0:
                    return self._is_deep_in(data, start, end)
                at = data.find(length, at + 1, end)
        return False

    def _is_deep_in(self, data: bytes | bytearray, start: int, end: int) -> bool:
        if self._pattern is None:
            import re2  # loaded when first needed: it takes its time

            # The fastest search that there is: by the first byte of what is looked for, as long as that is rare.
            self._pattern = re2.compile(self._beginning)
        return self._pattern.search(data, start, end) is not None


#: Records of a batch that are looked at.
_LOOKED_AT = 4
#: Attributes, two deltas, the sizes of key and value, the number of headers: a byte each.
_LEAST_BYTES = 6


def check_sizes(batch: Buffer, header: BatchHeader) -> None:
    """WireError for an uncompressed batch whose records are not where they should be."""
    if header.attributes & 7 != Compression.NONE:
        return
    data, at, end = memoryview(batch), HEADER_BYTES, header.size
    left = header.records
    if left * (_LEAST_BYTES + 1) > end - at:
        raise WireError(f"a batch claims {left} records in {end - at} bytes")
    looked_at = min(left, _LOOKED_AT)
    try:
        for _ in range(looked_at):
            size, at = number(data, at)
            at += size
            if size < _LEAST_BYTES or at > end:
                raise WireError(f"a record claims {size} bytes, {end - at + size} are left of its batch")
    except IndexError:
        raise WireError("a batch has fewer records than it claims") from None
    if looked_at == left and at != end:
        raise WireError(f"a batch of {left} records has {end - at} bytes more")
