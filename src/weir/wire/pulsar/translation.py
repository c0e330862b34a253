"""Pulsar's entries as messages, and messages as Pulsar's entries.

What a Pulsar message cannot say about a header is said in properties of its own, behind all others: which headers
are base64 (their bytes are no UTF-8), and which are null. Both are JSON lists of names.
"""

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Sequence
from dataclasses import replace

from weir.model.check import STEP_MESSAGES, Steps
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.model.messages import Message
from weir.wire.entry import OPENED
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import Compression, compress, encode_batch, iter_batch, open_payload
from weir.wire.pulsar.message import is_batch, message_key, parse_metadata, seal_message, split_message
from weir.wire.pulsar.proto import parse, serialize

BASE64_HEADERS = "weir-base64-headers"
NULL_HEADERS = "weir-null-headers"
#: Of messages that only a Pulsar consumer can open: the whole of their metadata.
METADATA = "weir-pulsar-metadata"
ENCRYPTED = "weir-pulsar-encrypted"
CHUNK = "weir-pulsar-chunk"
#: Which version of the topic's schema the producer wrote by, in decimal; other protocols have no field for it.
SCHEMA_VERSION = "weir-schema-version"
_MAX_VERSION_DIGITS = 18
_CLOSED = (METADATA, ENCRYPTED, CHUNK)
_OUR_OWN = (BASE64_HEADERS, NULL_HEADERS)

Headers = Sequence[tuple[str, bytes | None]]
Metadata = api.MessageMetadata | api.SingleMessageMetadata


# --- from Pulsar ----------------------------------------------------------------------------------------------


def messages_of_entry(entry: Buffer, count: int) -> Iterable[Message]:
    """The `count` messages of an entry. One that stands for all where only a Pulsar consumer can open it: it is
    encrypted, or a part of a larger message. WireError if it cannot be read at all."""
    parts = split_message(memoryview(entry), verify=False)
    metadata = parse_metadata(parts)
    if metadata.encryption_keys or metadata.num_chunks_from_msg > 1:
        return [_closed(metadata, parts.payload)]
    payload = open_payload(metadata, parts.payload)
    about = _schema_version(metadata.schema_version)
    if not is_batch(metadata):
        return [_message(metadata, payload, metadata.publish_time, about)]
    return (
        _message(single.metadata, single.payload, metadata.publish_time, about)
        for single in iter_batch(payload, count)
    )


def announced_size(entry: Buffer) -> int:
    """How many bytes the payload has when it is opened; 0 if it is not compressed, or cannot be opened."""
    try:
        metadata = parse_metadata(split_message(memoryview(entry), verify=False))
    except WireError:
        return 0
    size = metadata.uncompressed_size if metadata.compression else 0
    return size if size <= OPENED.max_bytes else 0


def _schema_version(version: bytes) -> Headers:
    """A registry's versions are numbers of eight bytes; what else a producer may write there says nothing."""
    return [(SCHEMA_VERSION, str(int.from_bytes(version, "big")).encode())] if len(version) == 8 else []


def _message(metadata: Metadata, payload: Buffer, publish_ms: int, about: Headers = ()) -> Message:
    return Message(
        key=message_key(metadata),
        value=None if metadata.null_value else payload,
        headers=[*headers_of(metadata.properties), *about],
        event_ms=metadata.event_time or None,
        publish_ms=publish_ms,
        ordering_key=metadata.ordering_key if metadata.HasField("ordering_key") else None,
    )


def _closed(metadata: api.MessageMetadata, payload: memoryview) -> Message:
    message = _message(metadata, payload, metadata.publish_time)
    about: list[tuple[str, bytes | None]] = [(METADATA, serialize(metadata))]
    if metadata.encryption_keys:
        about.append((ENCRYPTED, b"true"))
    if metadata.num_chunks_from_msg > 1:
        place = f"{_raw(metadata.uuid).decode('utf-8', 'replace')} {metadata.chunk_id}"
        about.append((CHUNK, f"{place} {metadata.num_chunks_from_msg}".encode()))
    return Message(
        message.key,
        message.value,
        [*message.headers, *about],
        message.event_ms,
        message.publish_ms,
        message.ordering_key,
    )


def headers_of(properties: Iterable[api.KeyValue]) -> list[tuple[str, bytes | None]]:
    """The headers that the properties stand for."""
    headers = [(_raw(pair.key).decode("utf-8", "replace"), _raw(pair.value)) for pair in properties]
    named: dict[str, list[str]] = {}
    while headers and headers[-1][0] in _OUR_OWN and headers[-1][0] not in named:
        names = _names(headers[-1][1])
        if names is None:
            break
        named[headers.pop()[0]] = names
    packed, null = named.get(BASE64_HEADERS, ()), named.get(NULL_HEADERS, ())
    return [(name, _unpacked(value, name in packed, name in null)) for name, value in headers]


def _unpacked(value: bytes, packed: bool, null: bool) -> bytes | None:
    if null and not value:
        return None
    try:
        return b64decode(value, validate=True) if packed else value
    except Base64Error:
        return value


def _names(text: bytes) -> list[str] | None:
    """The names in a property of ours; None if it is somebody else's of that name."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _raw(text: str | bytes) -> bytes:
    """Text is what the parser took for UTF-8."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


# --- to Pulsar ------------------------------------------------------------------------------------------------


def entry_of_messages(
    messages: Sequence[Message],
    *,
    producer: str,
    sequence: int,
    most_bytes: int | None = None,
    compression: Compression = Compression.LZ4,
) -> Steps[bytes]:
    """Messages as one entry: a plain message if there is one of them, else a batch. It is compressed only if it
    would have more than `most_bytes`, and is smaller then."""
    outer = api.MessageMetadata(producer_name=producer, sequence_id=sequence, publish_time=messages[0].publish_ms)
    payload: Buffer
    closed = _reopened(messages[0], outer) if len(messages) == 1 else None
    if closed is not None:
        return b"".join(seal_message(closed, messages[0].value or b""))
    messages = _of_one_version(messages, outer)
    if len(messages) == 1:
        payload = _describe(outer, messages[0])
    else:
        outer.num_messages_in_batch = len(messages)
        parts: list[bytes] = []
        for start in range(0, len(messages), STEP_MESSAGES):
            some = messages[start : start + STEP_MESSAGES]
            parts.append(encode_batch(_singles(some, sequence + start)))
            yield len(some)
        payload = b"".join(parts)
    if most_bytes is not None and len(payload) > most_bytes:
        compressed = compress(compression, payload)
        if len(compressed) < len(payload):
            outer.compression = int(compression)  # type: ignore[assignment]
            outer.uncompressed_size = len(payload)
            payload = compressed
    return b"".join(seal_message(outer, payload))


def _reopened(message: Message, outer: api.MessageMetadata) -> api.MessageMetadata | None:
    """The metadata of a message that only a Pulsar consumer can open, if it is one and was no batch: what came
    from such an entry by another protocol is one again."""
    packed = next((value for name, value in message.headers if name == METADATA), None)
    if packed is None:
        return None
    try:
        found = parse(api.MessageMetadata, packed)
    except WireError:
        return None
    if is_batch(found) or not (found.encryption_keys or found.num_chunks_from_msg > 1):
        return None
    for name in ("deliver_at_time", "txnid_least_bits", "txnid_most_bits", "properties", "marker_type"):
        found.ClearField(name)
    found.producer_name, found.sequence_id = outer.producer_name, outer.sequence_id
    found.publish_time = outer.publish_time
    for name, text in properties_of([one for one in message.headers if one[0] not in _CLOSED]):
        found.properties.add(key=name, value=text)
    return found


def _of_one_version(messages: Sequence[Message], outer: api.MessageMetadata) -> Sequence[Message]:
    """Where all were written by the same version of the schema, the entry says so, and the headers need not."""
    places = [_version_at(one.headers) for one in messages]
    if None in places:
        return messages
    version, *others = {one.headers[at or 0][1] for one, at in zip(messages, places, strict=True)}
    if others or version is None or not version.isdigit() or len(version) > _MAX_VERSION_DIGITS:
        return messages
    outer.schema_version = int(version).to_bytes(8, "big")
    return [
        replace(one, headers=[header for place, header in enumerate(one.headers) if place != at])
        for one, at in zip(messages, places, strict=True)
    ]


def _version_at(headers: Headers) -> int | None:
    """Where the version of the schema is said: the last time, since one before is of what it was copied from."""
    return next((at for at in range(len(headers) - 1, -1, -1) if headers[at][0] == SCHEMA_VERSION), None)


def _singles(messages: Sequence[Message], sequence: int) -> Iterable[tuple[api.SingleMessageMetadata, Buffer]]:
    for index, message in enumerate(messages):
        single = api.SingleMessageMetadata(payload_size=0, sequence_id=sequence + index)
        yield single, _describe(single, message)


def _describe(metadata: Metadata, message: Message) -> Buffer:
    """Say in the metadata what the message says besides its value, which is answered."""
    if message.key is not None:
        try:
            metadata.partition_key = message.key.decode()
        except UnicodeDecodeError:
            metadata.partition_key = b64encode(message.key).decode()
            metadata.partition_key_b64_encoded = True
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key
    if message.event_ms:
        metadata.event_time = message.event_ms
    for name, text in properties_of(message.headers):
        metadata.properties.add(key=name, value=text)
    if message.value is None:
        metadata.null_value = True
        return b""
    return message.value


def properties_of(headers: Headers) -> list[tuple[str, str]]:
    """The properties that stand for the headers."""
    if not headers:
        return []
    packed: dict[str, None] = {}
    null: dict[str, None] = {}
    taken = False
    for name, value in headers:
        taken = taken or name in _OUR_OWN
        if value is None:
            null[name] = None
        elif not _is_text(value):
            packed[name] = None
    found = [(name, _text(value, name in packed)) for name, value in headers]
    if null or taken:
        found.append((NULL_HEADERS, json.dumps(list(null))))
    if packed or taken:
        found.append((BASE64_HEADERS, json.dumps(list(packed))))
    return found


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(value: bytes | None, packed: bool) -> str:
    if value is None:
        return ""
    return b64encode(value).decode() if packed else value.decode()
