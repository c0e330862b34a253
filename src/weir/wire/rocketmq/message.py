"""RocketMQ's messages as messages of every protocol, and such as RocketMQ's.

The first of a message's keys is its key, its message group the ordering key, its user properties are headers. The
tag, all keys where there are several, and the priority are headers of the names that filters know; a trace context
that is W3C's is the header of W3C's name. What nobody
else can say (ids, hosts, the type) is kept as it came: SystemProperties without what the broker says anew.

Which queue a message group is in: by SipHash-2-4, as RocketMQ's client for Java chooses, so that what it sends
comes to the right broker at once.
"""

import re
from base64 import b64encode
from functools import lru_cache
from hashlib import md5
from typing import Any
from zlib import crc32

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.model.messages import Message
from weir.wire.pulsar import pulsar_api_pb2 as pulsar
from weir.wire.pulsar.translation import BASE64_HEADERS, NULL_HEADERS, headers_of, properties_of
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.proto import ms_of, parse, set_ms

PROTOCOL = "rocketmq"
_VERSION = b"\x01"
#: Headers that filters, queues and other protocols know by these names.
TAG, KEYS, PRIORITY = "TAGS", "KEYS", "weir-priority"
#: RocketMQ's clients get the message group among the properties as well.
SHARDING_KEY = "__SHARDINGKEY"
_OURS = (TAG, KEYS, PRIORITY, SHARDING_KEY)
_NULL_VALUE = "weir-null-value"
_TRACEPARENT = "traceparent"
_W3C = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,100})?")
_MAX_PRIORITY = (1 << 31) - 1


# --- from RocketMQ --------------------------------------------------------------------------------------------


def message_of(sent: Any, body: Buffer, publish_ms: int) -> Message:
    """What was sent, as it is stored; `body`: without any compression."""
    said = sent.system_properties
    headers = _headers(sent.user_properties)
    if said.tag:
        headers.append((TAG, said.tag.encode()))
    keys = said.keys
    if len(keys) > 1:
        headers.append((KEYS, " ".join(keys).encode()))
    if said.HasField("priority"):
        headers.append((PRIORITY, b"%d" % said.priority))
    if _W3C.fullmatch(said.trace_context) and _TRACEPARENT not in sent.user_properties:
        headers.append((_TRACEPARENT, said.trace_context.encode()))
    born_ms = ms_of(said.born_timestamp) if said.HasField("born_timestamp") else None
    return Message(
        keys[0].encode() if keys else None,
        body,
        headers,
        born_ms,
        publish_ms,
        said.message_group.encode() if said.message_group else None,
        (PROTOCOL, _VERSION + _kept(said)),
    )


def _headers(properties: Any) -> list[tuple[str, bytes | None]]:
    if BASE64_HEADERS in properties or NULL_HEADERS in properties:
        pairs = [pulsar.KeyValue(key=name, value=text) for name, text in properties.items() if name not in _OURS]
        return headers_of(pairs)
    return [(name, text.encode()) for name, text in properties.items() if name not in _OURS]


def _kept(said: Any) -> bytes:
    """What others cannot say, and a consumer of RocketMQ gets back."""
    kept = api.SystemProperties(
        message_id=said.message_id,
        message_type=said.message_type,
        born_host=said.born_host,
    )
    if len(said.keys) > 1:
        kept.keys.extend(said.keys)
    if said.HasField("delivery_timestamp"):
        kept.delivery_timestamp.CopyFrom(said.delivery_timestamp)
    if said.HasField("trace_context"):
        kept.trace_context = said.trace_context
    if said.HasField("lite_topic"):
        kept.lite_topic = said.lite_topic
    data: bytes = kept.SerializeToString()
    return data


# --- to RocketMQ ----------------------------------------------------------------------------------------------


def outgoing_of(message: Message, topic: Any, *, partition: int, offset: int) -> Any:
    """The message as it lies at an offset of a queue; what is said with a delivery is added by whoever delivers
    it. `topic`: the Resource that the consumer asked for."""
    out = api.Message()
    out.topic.CopyFrom(topic)
    said = out.system_properties
    native = message.native
    if native is not None and native[0] == PROTOCOL and native[1][:1] == _VERSION:
        try:
            said.CopyFrom(parse(api.SystemProperties, native[1][1:]))
        except WireError:
            native = None
    else:
        native = None
    if native is None:
        said.message_id = message_id_of(str(topic.name), partition, offset)
        said.message_type = api.MessageType.NORMAL if message.ordering_key is None else api.MessageType.FIFO
    if not said.keys and message.key is not None:
        said.keys.append(_text(message.key))
    if message.ordering_key is not None:
        said.message_group = _text(message.ordering_key)
    _add_headers(out, message)
    if message.ordering_key is not None:
        out.user_properties[SHARDING_KEY] = said.message_group
    value: Buffer = b"" if message.value is None else message.value
    if message.value is None:
        out.user_properties[_NULL_VALUE] = "true"
    out.body = bytes(value)
    said.body_encoding = api.Encoding.IDENTITY
    # Clients write a CRC32 each in their own way, and take a body for corrupt where it is not written so.
    said.body_digest.type = api.DigestType.MD5
    said.body_digest.checksum = md5(value, usedforsecurity=False).hexdigest().upper()
    set_ms(said.born_timestamp, message.publish_ms if message.event_ms is None else message.event_ms)
    said.queue_id = partition
    said.queue_offset = offset
    return out


def _add_headers(out: Any, message: Message) -> None:
    said = out.system_properties
    others: list[tuple[str, bytes | None]] = []
    for name, value in message.headers:
        if name == TAG and value is not None and not said.HasField("tag"):
            said.tag = _text(value)
        elif name == KEYS and len(said.keys) > 1:
            continue  # they are there already
        elif name == KEYS and value is not None:
            del said.keys[:]
            said.keys.extend(_text(value).split())
        elif name == _TRACEPARENT and value == said.trace_context.encode():
            continue  # it is there already
        elif name == PRIORITY and _is_priority(value):
            said.priority = int(value or b"0")
        else:
            others.append((name, value))
    for name, text in properties_of(others):
        out.user_properties[name] = text


def message_id_of(topic: str, partition: int, offset: int) -> str:
    """Of a message that came by another protocol: as long as RocketMQ's own, and the same each time."""
    return f"01{crc32(topic.encode()):08X}{partition & 0xFFFFFF:08X}{offset:016X}"


def _is_priority(value: bytes | None) -> bool:
    return value is not None and value.isdigit() and len(value) < 11 and int(value) <= _MAX_PRIORITY


def _text(data: bytes) -> str:
    """Bytes that are no UTF-8 are base64: RocketMQ has texts only."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return b64encode(data).decode()


_MASK = 0xFFFF_FFFF_FFFF_FFFF
#: The key that these clients use: the bytes 0 to 15.
_KEY0, _KEY1 = 0x0706050403020100, 0x0F0E0D0C0B0A0908
_SIGN = 1 << 63


@lru_cache(maxsize=16_384)
def queue_of(group: str, queues: int) -> int:
    """One of so many queues. The hash is taken for a signed number, as Java does."""
    hashed = siphash(group.encode())
    return (hashed - 2 * _SIGN if hashed & _SIGN else hashed) % queues


def siphash(data: bytes) -> int:
    """SipHash-2-4 of the data, an unsigned number of 64 bits."""
    a, b = _KEY0 ^ 0x736F6D6570736575, _KEY1 ^ 0x646F72616E646F6D
    c, d = _KEY0 ^ 0x6C7967656E657261, _KEY1 ^ 0x7465646279746573
    whole = len(data) - len(data) % 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        a, b, c, d = _round(*_round(a, b, c, d ^ word))
        a ^= word
    c ^= 0xFF
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


def _round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a = (a + b) & _MASK
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c = (c + d) & _MASK
    d = _rotated(d, 16) ^ c
    a = (a + d) & _MASK
    d = _rotated(d, 21) ^ a
    c = (c + b) & _MASK
    b = _rotated(b, 17) ^ c
    return a, b, _rotated(c, 32), d


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK
