"""A batch without some of its records, the others at their offsets: how a compacted topic is read."""

from weir.model.batch import Stamp
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.kafka.compression import compressor
from weir.wire.kafka.records import COMPRESSION_BITS, parse_header, sealed
from weir.wire.kafka.records_read import number, open_records

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
