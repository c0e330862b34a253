"""A message as it is sent, stored and delivered: checksum, metadata, payload, all in one run of bytes.

    [0e02 | size u32 | broker entry metadata] [0e01 | crc32c u32] size u32 | metadata | payload

Big-endian. The checksum covers everything after it. The broker entry metadata is put in front by a broker, for
clients that asked for it; the producer's bytes behind it stay as they came.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from struct import Struct
from typing import NamedTuple

from weir.model.errors import ChecksumError, WireError
from weir.model.ids import Buffer
from weir.wire.checksum import crc32c
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.proto import parse, serialize

CHECKSUM_MAGIC = 0x0E01
BROKER_ENTRY_MAGIC = 0x0E02

_U16 = Struct(">H")
_U32 = Struct(">I")
_MAGIC_AND_U32 = Struct(">HI")
_SEALED = Struct(">HII")  # magic, checksum, size of the metadata
#: Where the bytes that the checksum covers begin.
_COVERED = _MAGIC_AND_U32.size


class Parts(NamedTuple):
    """A message's slices. Old clients send no checksum; most brokers add no broker entry metadata."""

    metadata: memoryview
    payload: memoryview
    checksum: int | None
    broker_entry: memoryview | None


#: Half the cost of calling the class, which matters twice per entry.
_new = tuple.__new__


def split_message(data: memoryview, *, verify: bool = True) -> Parts:
    """Cut a message; ChecksumError if it has a checksum, and that is to be verified and does not match."""
    if len(data) >= _SEALED.size:
        magic, checksum, size = _SEALED.unpack_from(data)
        if magic == CHECKSUM_MAGIC:
            if verify and crc32c(data[_COVERED:]) != checksum:
                raise ChecksumError("a message's checksum does not match")
            end = _SEALED.size + size
            if end > len(data):
                raise _overrun("metadata", size, len(data) - _SEALED.size)
            return _new(Parts, (data[_SEALED.size : end], data[end:], checksum, None))
        if magic == BROKER_ENTRY_MAGIC:
            return _split_behind_broker_entry(data, verify)
    metadata, payload = _cut(data, "metadata")
    return Parts(metadata, payload, None, None)


def _split_behind_broker_entry(data: memoryview, verify: bool) -> Parts:
    broker_entry, rest = _cut(data[2:], "broker entry metadata")
    if rest[:2] == _U16.pack(BROKER_ENTRY_MAGIC):
        raise WireError("a message has broker entry metadata twice")
    return split_message(rest, verify=verify)._replace(broker_entry=broker_entry)


def _cut(view: memoryview, what: str) -> tuple[memoryview, memoryview]:
    if len(view) < 4:
        raise WireError(f"a message ends before the size of its {what}")
    size: int = _U32.unpack_from(view)[0]
    if size > len(view) - 4:
        raise _overrun(what, size, len(view) - 4)
    return view[4 : 4 + size], view[4 + size :]


def _overrun(what: str, size: int, left: int) -> WireError:
    return WireError(f"a message announces {size} bytes of {what}, {left} are left")


def parse_metadata(parts: Parts) -> api.MessageMetadata:
    return parse(api.MessageMetadata, parts.metadata)


def parse_broker_entry(parts: Parts) -> api.BrokerEntryMetadata | None:
    return None if parts.broker_entry is None else parse(api.BrokerEntryMetadata, parts.broker_entry)


def seal_message(metadata: api.MessageMetadata, payload: Buffer) -> list[Buffer]:
    """The message as buffers to write one after the other; the payload is not copied."""
    head = serialize(metadata)
    size = _U32.pack(len(head))
    checksum = crc32c(payload, crc32c(size + head))
    return [_SEALED.pack(CHECKSUM_MAGIC, checksum, len(head)) + head, payload]


def broker_entry_head(timestamp_ms: int, index: int) -> bytes:
    """What a broker puts in front of a message for clients that asked: when it came, and where the batch ends.

    `index` is the offset of the entry's last message in its topic.
    """
    body = serialize(api.BrokerEntryMetadata(broker_timestamp=timestamp_ms, index=index))
    return _MAGIC_AND_U32.pack(BROKER_ENTRY_MAGIC, len(body)) + body


def is_batch(metadata: api.MessageMetadata) -> bool:
    """Whether the payload is a batch: the count is there, be it one."""
    return metadata.HasField("num_messages_in_batch")


def message_key(metadata: api.MessageMetadata | api.SingleMessageMetadata) -> bytes | None:
    """The key in bytes, whichever way it was sent."""
    if metadata.null_partition_key or not metadata.HasField("partition_key"):
        return None
    # The one text field in which clients send what is not UTF-8; the runtime then gives bytes.
    text: str | bytes = metadata.partition_key
    raw = text if isinstance(text, bytes) else text.encode()
    if not metadata.partition_key_b64_encoded:
        return raw
    try:
        return b64decode(raw, validate=True)
    except Base64Error as bad:
        raise WireError(f"a message's key is not base64: {bad}") from None


def sticky_key(metadata: api.MessageMetadata | api.SingleMessageMetadata) -> bytes | None:
    """The bytes that decide which consumer of a key-shared subscription gets the message."""
    return metadata.ordering_key if metadata.HasField("ordering_key") else message_key(metadata)
