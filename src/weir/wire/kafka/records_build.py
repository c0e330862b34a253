"""Record batches made here: of records in another form, and the markers that end transactions."""

from collections.abc import Sequence
from struct import Struct

from weir.model.batch import Stamp
from weir.model.ids import Buffer
from weir.model.value import value
from weir.wire.kafka.compression import compressor
from weir.wire.kafka.records import CONTROL, NO_STAMP, NO_TIMESTAMP, TRANSACTIONAL, Compression, sealed

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
