"""A batch: messages one after the other in one payload, each with a small metadata of its own.

    (size u32 | single message metadata | payload of the size that the metadata says)*

Big-endian. The whole is compressed, and then encrypted, as the message's metadata says.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.entry import OPENED
from weir.wire.pulsar.compression import Compression, decompress
from weir.wire.pulsar.proto import api, parse, serialize

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
