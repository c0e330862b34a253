"""The codec of `BatchFormat.MESSAGES`: messages that came one at a time, stored as one entry.

    version u8 | count u32 | message ...
    message: size u32 of what follows | present u8 | publish_ms i64 | [event_ms i64] | [key] | [ordering key]
             | headers u16 | (name, value) ... | [native: protocol, bytes] | value to the end
    key, ordering key, native bytes: size u32 | bytes;  name, protocol: size u16 | UTF-8
    header value: size i32 (-1: null) | bytes

All numbers are little-endian. `native` is what only the protocol that the message came by can say (types of AMQP's
header table, say), opaque to all others: a consumer of that protocol gets the very same message back.

Weir's own format, for protocols that send one message at a time (`weir.wire.messages`).

Messages that differ in their values and times only, encoded for `weir.wire.messages` with one join each.
"""

from collections.abc import Sequence
from dataclasses import replace
from struct import Struct, error

from weir.model.batch import Batch, BatchFormat
from weir.model.check import Steps
from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.model.messages import Message, delay_id_in
from weir.wire.formats.format import Keyed, Translated, unkeyed

VERSION = 1
_HEAD = Struct("<BI")
_FIXED = Struct("<Bq")
_U32 = Struct("<I")
_U16 = Struct("<H")
_I32 = Struct("<i")
_I64 = Struct("<q")
#: Of the smallest message: its size, and what is always there.
_LEAST = _U32.size + _FIXED.size + _U16.size


# What a message has. Plain numbers: arithmetic on flags would cost more than all the rest of a small message.
_EVENT = 1
_KEY = 2
_ORDERING_KEY = 4
_NATIVE = 8
_VALUE = 16
_KNOWN = _EVENT | _KEY | _ORDERING_KEY | _NATIVE | _VALUE


def encode_messages(messages: Sequence[Message]) -> bytes:
    return join_messages([encode_message(message) for message in messages])


def encode_message(message: Message) -> bytes:
    """One of them, for `join_messages`: what goes into many entries is encoded once."""
    body = _body(message)
    return b"".join((_U32.pack(sum(map(len, body))), *body))


def join_messages(encoded: Sequence[Buffer]) -> bytes:
    """An entry of messages, each as `encode_message` made it."""
    return b"".join((_HEAD.pack(VERSION, len(encoded)), *encoded))


def _body(message: Message) -> list[Buffer]:
    present = 0
    body: list[Buffer] = [b""]
    if message.event_ms is not None:
        present |= _EVENT
        body.append(_I64.pack(message.event_ms))
    if message.key is not None:
        present |= _KEY
        body += (_U32.pack(len(message.key)), message.key)
    if message.ordering_key is not None:
        present |= _ORDERING_KEY
        body += (_U32.pack(len(message.ordering_key)), message.ordering_key)
    body.append(_U16.pack(_bounded(len(message.headers), "headers")))
    for name, value in message.headers:
        body += _text(name)
        body.append(_I32.pack(-1 if value is None else len(value)))
        if value is not None:
            body.append(value)
    if message.native is not None:
        present |= _NATIVE
        protocol, data = message.native
        body += (*_text(protocol), _U32.pack(len(data)), data)
    if message.value is not None:
        present |= _VALUE
        body.append(message.value)
    body[0] = _FIXED.pack(present, message.publish_ms)
    return body


def _text(text: str) -> tuple[bytes, bytes]:
    data = text.encode("utf-8", "surrogatepass")
    return _U16.pack(_bounded(len(data), "bytes in a header's name")), data


def _bounded(count: int, what: str) -> int:
    if count > 0xFFFF:
        raise WireError(f"a message has {count} {what}, and may have {0xFFFF}")
    return count


def decode_messages(data: Buffer) -> list[Message]:
    """WireError if it is no such entry."""
    view = memoryview(data)
    try:
        version, count = _HEAD.unpack_from(view)
        if version != VERSION:
            raise UnknownVersionError(f"messages of version {version}", hint="of a newer Weir?")
        if count * _LEAST > len(view) - _HEAD.size:
            raise WireError(f"{count} messages do not fit into {len(view)} bytes")
        found: list[Message] = []
        at = _HEAD.size
        for _ in range(count):
            (size,) = _U32.unpack_from(view, at)
            at += _U32.size
            if size > len(view) - at:
                raise WireError("a message is longer than its entry")
            found.append(_message(view[at : at + size]))
            at += size
    except (error, UnicodeDecodeError) as bad:
        raise WireError(f"an entry of messages is malformed: {bad}") from bad
    if at != len(view):
        raise WireError(f"{len(view) - at} bytes follow the last message")
    return found


def _message(body: memoryview) -> Message:
    present, publish_ms = _FIXED.unpack_from(body)
    if present & ~_KNOWN:
        raise WireError(f"a message says {present:#x} of itself, which nobody knows")
    at = _FIXED.size
    event_ms: int | None = None
    key = ordering_key = None
    native: tuple[str, bytes] | None = None
    if present & _EVENT:
        (event_ms,) = _I64.unpack_from(body, at)
        at += _I64.size
    if present & _KEY:
        key, at = _sized(body, at)
    if present & _ORDERING_KEY:
        ordering_key, at = _sized(body, at)
    (count,) = _U16.unpack_from(body, at)
    at += _U16.size
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _named(body, at)
        (size,) = _I32.unpack_from(body, at)
        at += _I32.size
        if size < -1 or size > len(body) - at:
            raise WireError("a header is longer than its message")
        headers.append((name, None if size < 0 else bytes(body[at : at + size])))
        at += max(0, size)
    if present & _NATIVE:
        protocol, at = _named(body, at)
        kept, at = _sized(body, at)
        native = (protocol, kept)
    value = body[at:] if present & _VALUE else None
    if value is None and at != len(body):
        raise WireError("a message without a value has bytes behind its headers")
    return Message(key, value, headers, event_ms, publish_ms, ordering_key, native)


def _sized(body: memoryview, at: int) -> tuple[bytes, int]:
    (size,) = _U32.unpack_from(body, at)
    at += _U32.size
    if size > len(body) - at:
        raise WireError("a key is longer than its message")
    return bytes(body[at : at + size]), at + size


def _named(body: memoryview, at: int) -> tuple[str, int]:
    (size,) = _U16.unpack_from(body, at)
    at += _U16.size
    if size > len(body) - at:
        raise WireError("a name is longer than its message")
    return str(body[at : at + size], "utf-8", "surrogatepass"), at + size


class MessagesFormat:
    tag = BatchFormat.MESSAGES

    def split(self, batch: Batch) -> list[Message]:
        return decode_messages(batch.payload)

    def keys(self, batch: Batch) -> Sequence[bytes | None] | None:
        """One for each message: they were sent one by one, and met in a batch by chance."""
        found = self._messages(batch)
        return (
            None if found is None else [one.key if one.ordering_key is None else one.ordering_key for one in found]
        )

    def keyed(self, batch: Batch) -> list[Keyed]:
        found = self._messages(batch)
        return unkeyed(batch) if found is None else [(one.key, one.value is not None) for one in found]

    def delay_id(self, batch: Batch) -> str | None:
        found = self._messages(batch)
        if found is None or len(found) != 1:
            return None
        return delay_id_in([(name.encode(), value) for name, value in found[0].headers])

    def opened_size(self, batch: Batch) -> int:
        return len(batch.payload)

    def own(self, batch: Batch, wanted: int | None) -> Translated:
        """Which messages are wanted is for the reader to heed: each is acknowledged on its own."""
        return Translated([batch.payload], batch.count)

    def join(self, batch: Batch, messages: list[Message], wanted: int | None) -> Steps[Translated]:
        yield len(messages)
        return Translated([encode_messages(messages)], len(messages))

    def _messages(self, batch: Batch) -> list[Message] | None:
        """One for each offset; None if it cannot be opened."""
        try:
            found = decode_messages(batch.payload)
        except WireError:
            return None
        return found if len(found) == batch.count else None


_START = _U32.size + _FIXED.size


class MessageTemplate:
    """Of a message with a value, whatever it is."""

    __slots__ = ("_middle", "_present", "_size")

    def __init__(self, message: Message) -> None:
        encoded = encode_message(replace(message, value=b""))
        self._present = encoded[_U32.size]
        self._middle = encoded[_START:]
        self._size = len(encoded) - _U32.size

    def encode_all(self, values: Sequence[Buffer], publish_ms: int) -> list[bytes]:
        """`encode` of each."""
        pack, size, join = _U32.pack, self._size, b"".join
        start = _FIXED.pack(self._present, publish_ms) + self._middle
        return [join((pack(size + len(value)), start, value)) for value in values]

    def encode(self, value: Buffer, publish_ms: int) -> bytes:
        """As `encode_message` has it."""
        size = self._size + len(value)
        return b"".join((_U32.pack(size), _FIXED.pack(self._present, publish_ms), self._middle, value))
