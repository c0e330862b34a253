"""The compressions that producers use, and never more bytes out than were announced.

The announced size is an attacker's word, so it is bounded before anything is allocated, and the decompressor
may write that many bytes and no more: what claims less than it holds, or more, is a WireError.

A batch: messages one after the other in one payload, each with a small metadata of its own.

    (size u32 | single message metadata | payload of the size that the metadata says)*

Big-endian. The whole is compressed, and then encrypted, as the message's metadata says.

Some messages of a batch as a batch of their own, for clients that count what they were sent.

A client without acknowledgements by index acknowledges a batch once each of its messages is. An ack set beside the
batch hides messages from it, but does not make it forget them: it would never acknowledge the others. Neighbours
are a batch, so that the id of the first and the place in it tell which message is meant, as of every batch.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from cramjam import DecompressionError, lz4, snappy, zstd

from weir.model.batch import runs_of
from weir.model.errors import FrameTooLargeError, WireError
from weir.model.ids import Buffer
from weir.wire.entry import MAX_PAYLOAD_BYTES, OPENED
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.message import is_batch, parse_metadata, seal_message, split_message
from weir.wire.pulsar.proto import parse, serialize


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


_U32 = Struct(">I")


class Single(NamedTuple):
    """One message of a batch; its payload is a slice of the batch."""

    metadata: api.SingleMessageMetadata
    payload: memoryview


def open_payload(metadata: api.MessageMetadata, payload: Buffer, limit: int | None = None) -> Buffer:
    """The payload as its producer knew it before compression; a WireError if it is encrypted, or has more bytes
    than `limit` (`OPENED` if that is None)."""
    if metadata.encryption_keys:
        raise WireError("the payload is encrypted", hint="only a consumer with the key can read it")
    return decompress(
        Compression(metadata.compression),
        payload,
        metadata.uncompressed_size,
        OPENED.max_bytes if limit is None else limit,
    )


def iter_batch(payload: Buffer, count: int) -> Iterator[Single]:
    """The `count` messages of an open payload, parsed one by one as they are asked for."""
    view = memoryview(payload)
    at = 0
    for index in range(count):
        if len(view) - at < 4:
            raise WireError(f"a batch of {count} messages ends after {index}")
        start = at + 4
        middle: int = start + _U32.unpack_from(view, at)[0]
        if middle > len(view):
            raise WireError(f"message {index} of a batch has more metadata than there are bytes")
        metadata = parse(api.SingleMessageMetadata, view[start:middle])
        at = middle + metadata.payload_size
        if not middle <= at <= len(view):
            raise WireError(f"message {index} of a batch says that it has {metadata.payload_size} bytes")
        yield Single(metadata, view[middle:at])
    if at != len(view):
        raise WireError(f"a batch of {count} messages has {len(view) - at} bytes more")


def encode_batch(messages: Iterable[tuple[api.SingleMessageMetadata, Buffer]]) -> bytes:
    """A batch of messages, not compressed; sets each metadata's `payload_size`."""
    parts: list[Buffer] = []
    for metadata, payload in messages:
        metadata.payload_size = len(payload)
        head = serialize(metadata)
        parts += (_U32.pack(len(head)), head, payload)
    return b"".join(parts)


class Part(NamedTuple):
    """Messages of an entry that are neighbours, from the one at `first` on, as an entry."""

    first: int
    payload: bytes
    messages: int


#: An entry becomes at most about this many parts when its messages are separated: each costs an encoding.
_MAX_SEPARATED = 512


def cut_entry(entry: Buffer, count: int, wanted: int, *, separate: bool = False) -> list[Part] | None:
    """Of an entry of `count` messages those whose bits are set; None if it cannot be opened, as if encrypted.
    `separate`: neighbors are entries of their own, too; in a very large batch, short runs of neighbors."""
    try:
        parts = split_message(memoryview(entry), verify=False)
        metadata = parse_metadata(parts)
        if not is_batch(metadata):
            return None
        singles = list(iter_batch(open_payload(metadata, parts.payload), count))
    except WireError:
        return None
    found = []
    runs = runs_of(wanted)
    if separate:
        length = -(-wanted.bit_count() // _MAX_SEPARATED)
        runs = [(at, min(at + length, end)) for first, end in runs for at in range(first, end, length)]
    for first, end in runs:
        payload = encode_batch(singles[first:end])
        metadata.num_messages_in_batch = end - first
        metadata.uncompressed_size = len(payload)
        sealed = seal_message(metadata, compress(Compression(metadata.compression), payload))
        found.append(Part(first, b"".join(sealed), end - first))
    return found
