"""The compressions of record batches, opened with a bound on what comes out.

A batch does not say how large its records are when decompressed, and whoever sent it may mean harm: the room for
them grows step by step, up to the limit and no further. Each step begins anew, so the first is generous; who opens
many batches gives room that is already there.

LZ4 as Kafka's clients write it: a frame of blocks that do not need one another.

Java's clients and brokers read no other frames; the library that compresses writes linked blocks.
"""

import zlib
from collections.abc import Callable
from struct import Struct

from cramjam import DecompressionError, lz4, snappy, zstd

from weir.model.errors import FrameTooLargeError, WireError
from weir.model.ids import Buffer
from weir.wire.entry import MAX_PAYLOAD_BYTES
from weir.wire.kafka.record_batch import Compression

#: Magic, version 1 with independent blocks and no checksums, blocks of 64 KiB; the checksum of those two bytes.
_HEAD = b"\x04\x22\x4d\x18\x60\x40\x82"
_BLOCK_BYTES = 64 * 1024
#: In a block's size: it is not compressed.
_PLAIN = 1 << 31
_END = bytes(4)


def lz4_frame(data: Buffer) -> bytes:
    """All of `data`, compressed."""
    view = memoryview(data)
    parts = [_HEAD]
    for at in range(0, len(view), _BLOCK_BYTES):
        block = view[at : at + _BLOCK_BYTES]
        packed = bytes(lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += (len(packed).to_bytes(4, "little"), packed)
        else:
            parts += ((len(block) | _PLAIN).to_bytes(4, "little"), bytes(block))
    parts.append(_END)
    return b"".join(parts)


#: What Java's and Python's clients put in front of snappy's blocks; librdkafka sends one bare block.
_FRAMED = b"\x82SNAPPY\x00"
#: Those bytes, and two versions.
_FRAME_HEAD_BYTES = 16
_SIZE = Struct(">i")
_FIRST_ROOM = 16 * 1024
#: Records of one batch are much alike, and often shrink to less than a fifth.
_RATIO = 8
_GROWTH = 8
#: How the library says that the room was not enough, rather than that the bytes are damaged.
_NO_ROOM = "failed to write whole buffer"
_GZIP = 16 + zlib.MAX_WBITS
#: Clients write one. The rest is copied for each of them, so that many small ones would keep a processor busy.
_MOST_MEMBERS = 16


def decompress(kind: Compression, data: Buffer, limit: int = MAX_PAYLOAD_BYTES) -> Buffer:
    """The bytes that were compressed to `data`, no more than `limit` of them."""
    match kind:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return _gunzip(memoryview(data), limit)
        case Compression.SNAPPY:
            return _unsnap(memoryview(data), limit)
        case Compression.LZ4:
            return _grown(lz4.decompress_into, data, limit)
        case Compression.ZSTD:
            return _grown(zstd.decompress_into, data, limit)


def decompress_into(kind: Compression, data: memoryview, room: memoryview) -> int | None:
    """The same, into room that is there: how much of it is used, or None if it is not enough."""
    try:
        match kind:
            case Compression.LZ4:
                return int(lz4.decompress_into(data, room))
            case Compression.ZSTD:
                return int(zstd.decompress_into(data, room))
            case Compression.SNAPPY if data[: len(_FRAMED)] != _FRAMED:
                return _unsnap_into(data, room)
    except DecompressionError as bad:
        if _NO_ROOM in str(bad):
            return None
        raise WireError(f"records do not decompress: {bad}") from None
    return _copied_into(kind, data, room)


def _copied_into(kind: Compression, data: memoryview, room: memoryview) -> int | None:
    """What is not opened in place is opened elsewhere first."""
    try:
        found = decompress(kind, data, len(room))
    except FrameTooLargeError:
        return None
    if len(found) > len(room):
        return None
    room[: len(found)] = found
    return len(found)


def compressor(kind: Compression) -> Callable[[Buffer], bytes] | None:
    """What compresses a batch's records; None if nothing does."""
    match kind:
        case Compression.NONE:
            return None
        case Compression.GZIP:
            return _zip
        case Compression.SNAPPY:
            return lambda data: bytes(snappy.compress_raw(data))
        case Compression.LZ4:
            return lz4_frame
        case Compression.ZSTD:
            return lambda data: bytes(zstd.compress(data))


def _zip(data: Buffer) -> bytes:
    packer = zlib.compressobj(wbits=_GZIP)
    return packer.compress(data) + packer.flush()


def _grown(decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, limit: int) -> Buffer:
    """Into room that is made larger until it is enough."""
    room = min(max(_FIRST_ROOM, _RATIO * len(data)), limit)
    while True:
        out = bytearray(room)
        try:
            written = decompress_into(data, out)
        except DecompressionError as bad:
            if _NO_ROOM not in str(bad):
                raise WireError(f"records do not decompress: {bad}") from None
            if room == limit:
                raise _too_large(limit) from None
            room = min(room * _GROWTH, limit)
        else:
            return memoryview(out)[:written]


def _gunzip(data: memoryview, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    for _ in range(_MOST_MEMBERS):
        inflater = zlib.decompressobj(_GZIP)
        try:
            # One byte more than allowed is enough to know that there is more.
            parts.append(inflater.decompress(data, limit - size + 1))
        except zlib.error as bad:
            raise WireError(f"records do not decompress: {bad}") from None
        size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
        if not inflater.eof:
            raise WireError("records do not decompress: they end early")
        if not inflater.unused_data:
            return b"".join(parts)
        data = memoryview(inflater.unused_data)
    raise WireError(f"records do not decompress: gzip has more than {_MOST_MEMBERS} members")


def _unsnap(data: memoryview, limit: int) -> Buffer:
    if data[: len(_FRAMED)] != _FRAMED:
        return _unsnap_block(data, limit)
    if len(data) < _FRAME_HEAD_BYTES:
        raise WireError("records do not decompress: they end within snappy's frame")
    parts: list[Buffer] = []
    at, size = _FRAME_HEAD_BYTES, 0
    while at < len(data):
        if len(data) - at < _SIZE.size:
            raise WireError("records do not decompress: snappy's last block has no size")
        length: int = _SIZE.unpack_from(data, at)[0]
        at += _SIZE.size
        if not 0 <= length <= len(data) - at:
            raise WireError(f"records do not decompress: a snappy block claims {length} bytes")
        parts.append(_unsnap_block(data[at : at + length], limit - size))
        size += len(parts[-1])
        at += length
    return b"".join(parts)


def _unsnap_block(data: memoryview, limit: int) -> bytearray:
    try:
        size = snappy.decompress_raw_len(data) if data else 0
    except DecompressionError as bad:
        raise WireError(f"records do not decompress: {bad}") from None
    if size > limit:
        raise _too_large(limit)
    out = bytearray(size)
    _unsnap_into(data, memoryview(out))
    return out


def _unsnap_into(data: memoryview, room: memoryview) -> int | None:
    """One bare block; None if there is too little room."""
    if not data:
        raise WireError("records do not decompress: a snappy block is empty")
    try:
        size = snappy.decompress_raw_len(data)
        if size > len(room):
            return None
        written = snappy.decompress_raw_into(data, room[:size])
    except DecompressionError as bad:
        raise WireError(f"records do not decompress: {bad}") from None
    if written != size:
        raise WireError(f"records do not decompress: snappy announced {size} bytes, and gave {written}")
    return int(size)


def _too_large(limit: int) -> WireError:
    return FrameTooLargeError(f"records decompress to more than {limit} bytes")
