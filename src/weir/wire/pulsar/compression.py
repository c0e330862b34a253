"""The compressions that producers use, and never more bytes out than were announced.

The announced size is an attacker's word, so it is bounded before anything is allocated, and the decompressor
may write that many bytes and no more: what claims less than it holds, or more, is a WireError.
"""

import zlib
from collections.abc import Callable
from enum import IntEnum

from cramjam import DecompressionError, lz4, snappy, zstd

from weir.model.errors import FrameTooLargeError, WireError
from weir.model.ids import Buffer
from weir.wire.entry import MAX_PAYLOAD_BYTES
from weir.wire.pulsar.proto import api


class Compression(IntEnum):
    """The numbers of CompressionType, as a type that people can read."""

    NONE = api.NONE
    LZ4 = api.LZ4
    ZLIB = api.ZLIB
    ZSTD = api.ZSTD
    SNAPPY = api.SNAPPY


def compress(kind: Compression, data: Buffer) -> bytes:
    """`data`, compressed."""
    match kind:
        case Compression.NONE:
            return bytes(data)
        case Compression.LZ4:
            return bytes(lz4.compress_block(data, store_size=False))
        case Compression.ZLIB:
            return zlib.compress(data)
        case Compression.ZSTD:
            return bytes(zstd.compress(data))
        case Compression.SNAPPY:
            return bytes(snappy.compress_raw(data))


def decompress(kind: Compression, data: Buffer, size: int, limit: int = MAX_PAYLOAD_BYTES) -> Buffer:
    """The `size` bytes that were compressed to `data`. With NONE that is `data`, and `size` means nothing."""
    if kind is Compression.NONE:
        return data
    if size > limit:
        raise FrameTooLargeError(f"a payload announces {size} bytes when decompressed, the limit is {limit}")
    return _inflate(data, size) if kind is Compression.ZLIB else _decompress_into(_INTO[kind], data, size)


_INTO: dict[Compression, Callable[[Buffer, bytearray], int]] = {
    Compression.LZ4: lz4.decompress_block_into,
    Compression.ZSTD: zstd.decompress_into,
    Compression.SNAPPY: snappy.decompress_raw_into,
}


def _decompress_into(decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, size: int) -> bytearray:
    out = bytearray(size)
    try:
        written = decompress_into(data, out)
    except DecompressionError as bad:
        raise WireError(f"a payload does not decompress to {size} bytes: {bad}") from None
    if written != size:
        raise WireError(f"a payload announces {size} bytes when decompressed, it holds {written}")
    return out


def _inflate(data: Buffer, size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        # One byte more than announced is enough to know that there is more.
        out = inflater.decompress(data, size + 1)
    except zlib.error as bad:
        raise WireError(f"a payload does not decompress to {size} bytes: {bad}") from None
    if len(out) != size or not inflater.eof or inflater.unused_data:
        raise WireError(f"a payload announces {size} bytes when decompressed, and does not hold just that")
    return out
