"""Record batches for tests: as any producer may send them, in every compression."""

import gzip
from random import Random
from struct import pack, pack_into

from cramjam import lz4, snappy, zstd

from weir.model.batch import Stamp
from weir.model.ids import Buffer
from weir.testing.codecs.fuzzing import Codec
from weir.wire.checksum import crc32c
from weir.wire.kafka.record_batch import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    NO_STAMP,
    TRANSACTIONAL,
    Compression,
    parse_header,
    produced,
    sealed,
)
from weir.wire.kafka.records import Record, build_batch, iter_records

_FRAMED = b"\x82SNAPPY\x00" + pack(">ii", 1, 1)
_FUZZ_LIMIT = 1 << 20


def compress(kind: Compression, data: Buffer, *, framed: bool = True) -> bytes:
    """As clients do it; `framed`: whether snappy has the frame around it that most of them write."""
    match kind:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return gzip.compress(data, mtime=0)
        case Compression.LZ4:
            return bytes(lz4.compress(data))
        case Compression.ZSTD:
            return bytes(zstd.compress(data))
        case Compression.SNAPPY if framed:
            blocks = [bytes(snappy.compress_raw(data[at : at + 32768])) for at in range(0, len(data), 32768)]
            return _FRAMED + b"".join(pack(">i", len(block)) + block for block in blocks)
        case Compression.SNAPPY:
            return bytes(snappy.compress_raw(data))


def compressed(batch: Buffer, kind: Compression, *, framed: bool = True) -> bytes:
    """A batch that is not compressed, in this compression."""
    header = parse_header(batch)
    return sealed(
        compress(kind, bytes(batch)[HEADER_BYTES:], framed=framed),
        base_offset=header.base_offset,
        attributes=header.attributes | kind,
        last_offset_delta=header.last_offset_delta,
        times=(header.base_timestamp, header.max_timestamp),
        stamp=header.stamp or NO_STAMP,
        records=header.records,
    )


def sample_records(dice: Random) -> bytes:
    """A batch of a few records."""

    def some() -> bytes | None:
        return None if dice.random() < 0.2 else dice.randbytes(dice.randrange(12)) * dice.choice((1, 1, 20))

    records = [
        Record(
            delta,
            1_700_000_000_000 + dice.randrange(-1000, 1000),
            some(),
            some(),
            [(dice.randbytes(dice.randrange(4)), some()) for _ in range(dice.randrange(3))],
        )
        for delta in range(dice.randrange(1, 5))
    ]
    stamp = dice.choice((NO_STAMP, Stamp(dice.getrandbits(40), dice.getrandbits(15), dice.getrandbits(31))))
    attributes = TRANSACTIONAL if stamp is not NO_STAMP and dice.random() < 0.5 else 0
    batch = build_batch(records, base_offset=dice.getrandbits(40), attributes=attributes, stamp=stamp)
    return compressed(batch, dice.choice(tuple(Compression)), framed=dice.random() < 0.5)


def decode_records(data: bytes) -> list[list[Record]]:
    """Everything that is read of what a producer sends."""
    return [list(iter_records(batch, _FUZZ_LIMIT)) for _, batch in produced(data)]


def reseal_records(data: bytearray) -> None:
    """The right size and checksum for what is there, as if it were one batch."""
    if len(data) >= HEADER_BYTES:
        pack_into(">i", data, 8, len(data) - 12)
        pack_into(">I", data, 17, crc32c(memoryview(data)[ATTRIBUTES_AT:]))


RECORD_CODECS = [Codec("kafka record batch", sample_records, decode_records, reseal_records)]
