"""Contents to frames: a message is encoded once, and sent to any number of receivers.

    method frame | header frame | body frames of at most `frame_max`

All receivers share the bytes of the body and of the properties; what is made for each is the method and the heads
of the frames, which name the channel. As in RabbitMQ the header is one frame whatever `frame_max` says.

Stored messages of AMQP as they go out to AMQP's consumers, without opening what only others read.

In `weir.wire.messages`' layout a message of AMQP has, behind headers for other protocols, its envelope and
properties as they came, and its body. Messages of one publisher are alike but for their bodies and times: those
bytes are compared with the last one's, and taken from there.

What only AMQP can say of a message, as `Message.native` keeps it: an AMQP consumer gets the very same bytes.

version u8 | exchange shortstr | routing key shortstr | properties: flags and values
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error

from weir.model.errors import AmqpError, UnknownVersionError, WireError
from weir.model.ids import Buffer, value
from weir.model.messages import Message
from weir.wire.amqp.frames import BODY, END, HEAD, HEADER, METHOD, OVERHEAD_BYTES, ReplyCode
from weir.wire.amqp.method_codec import encode_any
from weir.wire.amqp.methods import basic
from weir.wire.formats.messages import VERSION

_CONTENT = Struct(">HHQ")
_BASIC = 60
_DELIVER = b"\x00\x3c\x00\x3c"
_GET_OK = b"\x00\x3c\x00\x47"
_RETURN = Struct(">HHH")
_TAG = Struct(">QB")
_COUNT = Struct(">I")
#: The end of a frame, and the head of the one behind it.
_NEXT = Struct(">BBHI")
_END = END[0]
#: Up to here it is cheaper to copy a body than to write it as a buffer of its own.
COPIED_BYTES = 2048


@value
class Outgoing:
    """A message ready for all its receivers."""

    #: Exchange and routing key as it was published, as two short strings.
    envelope: bytes
    #: The payload of the header frame.
    header: bytes
    body: Buffer


def shortstr(text: str) -> bytes:
    try:
        data = text.encode("utf-8", "surrogateescape")
        return bytes((len(data),)) + data
    except ValueError as bad:
        raise AmqpError(f"{text!r} cannot be a short string: {bad}", code=ReplyCode.INTERNAL_ERROR) from bad


def envelope(exchange: str, routing_key: str) -> bytes:
    return shortstr(exchange) + shortstr(routing_key)


def opened_envelope(data: Buffer) -> tuple[str, str]:
    """Exchange and routing key."""
    raw = bytes(data)
    try:
        middle = 1 + raw[0]
        end = middle + 1 + raw[middle]
        if end == len(raw):
            return str(raw[1:middle], "utf-8"), str(raw[middle + 1 :], "utf-8")
    except (IndexError, UnicodeDecodeError):
        pass
    raise WireError("the exchange and routing key of a message are malformed")


def outgoing(envelope: bytes, properties: Buffer, body: Buffer) -> Outgoing:
    """`properties`: flags and values, as they came or as `encode_properties` made them."""
    return Outgoing(envelope, _CONTENT.pack(_BASIC, 0, len(body)) + properties, body)


class Deliveries:
    """What is delivered to one consumer."""

    def __init__(self, channel: int, consumer_tag: str, frame_max: int) -> None:
        """`frame_max` as negotiated; 0 is no limit."""
        self._channel = channel
        self._prefix = _DELIVER + shortstr(consumer_tag)
        self._frame_max = frame_max

    def frames(self, delivery_tag: int, redelivered: bool, message: Outgoing) -> list[Buffer]:
        """Buffers to write one after the other."""
        method = b"%b%b%b" % (self._prefix, _TAG.pack(delivery_tag, redelivered), message.envelope)
        return _frames(self._channel, method, message.header, message.body, self._frame_max)


def get_ok(
    channel: int, delivery_tag: int, redelivered: bool, message: Outgoing, *, left: int, frame_max: int
) -> list[Buffer]:
    """The answer to basic.get; `left`: how many messages the queue still has."""
    method = b"".join((_GET_OK, _TAG.pack(delivery_tag, redelivered), message.envelope, _COUNT.pack(left)))
    return _frames(channel, method, message.header, message.body, frame_max)


def returned(channel: int, code: ReplyCode, text: str, message: Outgoing, frame_max: int) -> list[Buffer]:
    """A mandatory message goes back to its publisher."""
    method = _RETURN.pack(_BASIC, 50, code) + shortstr(text) + message.envelope
    return _frames(channel, method, message.header, message.body, frame_max)


def publish(channel: int, method: basic.Publish, properties: Buffer, body: Buffer, frame_max: int) -> list[Buffer]:
    """What a client sends."""
    header = _CONTENT.pack(_BASIC, 0, len(body)) + properties
    return _frames(channel, encode_any(method), header, body, frame_max)


def _frames(channel: int, method: bytes, header: bytes, body: Buffer, frame_max: int) -> list[Buffer]:
    size = len(body)
    try:
        start = HEAD.pack(METHOD, channel, len(method))
    except struct_error as bad:
        raise AmqpError(f"nothing can be sent on channel {channel}: {bad}", code=ReplyCode.INTERNAL_ERROR) from bad
    middle = _NEXT.pack(_END, HEADER, channel, len(header))
    if size == 0:
        return [b"".join((start, method, middle, header, END))]
    if frame_max and size > frame_max - OVERHEAD_BYTES:
        return list(_split(channel, b"".join((start, method, middle, header)), memoryview(body), frame_max))
    last = _NEXT.pack(_END, BODY, channel, size)
    if size <= COPIED_BYTES:
        return [b"".join((start, method, middle, header, last, body, END))]
    return [b"".join((start, method, middle, header, last)), body, END]


def _split(channel: int, head: bytes, body: memoryview, frame_max: int) -> Iterator[Buffer]:
    step = frame_max - OVERHEAD_BYTES
    if step <= 0:
        raise AmqpError(f"no body fits into frames of {frame_max} bytes", code=ReplyCode.INTERNAL_ERROR)
    for at in range(0, len(body), step):
        piece = body[at : at + step]
        yield head + _NEXT.pack(_END, BODY, channel, len(piece))
        yield piece
        head = b""
    yield END


PROTOCOL = "amqp"
_VERSION = b"\x01"


def native_of(envelope: bytes, properties: bytes) -> tuple[str, bytes]:
    return PROTOCOL, _VERSION + envelope + properties


def split_native(message: Message) -> tuple[bytes, bytes] | None:
    """The envelope and the properties that a message came with; None if it did not come by AMQP."""
    if message.native is None or message.native[0] != PROTOCOL:
        return None
    data = message.native[1]
    if data[:1] != _VERSION:
        raise UnknownVersionError(f"a message of AMQP in the form {data[:1]!r}", hint="of a newer Weir?")
    try:
        middle = 2 + data[1]
        end = middle + 1 + data[middle]
    except IndexError:
        end = len(data) + 1
    if end > len(data):
        raise WireError("a message of AMQP has lost its exchange or routing key")
    return data[1:end], data[end:]


def outgoing_native(message: Message) -> Outgoing | None:
    """The message as it came by AMQP, nothing of it decoded; None if it came by another protocol."""
    found = split_native(message)
    if found is None:
        return None
    return outgoing(*found, b"" if message.value is None else message.value)


_HEAD = Struct("<BI")
_MESSAGE = Struct("<IBq")
_U32 = Struct("<I")
_U16 = Struct("<H")
_I32 = Struct("<i")
_EVENT, _KEY, _ORDERING_KEY, _NATIVE, _VALUE = 1, 2, 4, 8, 16
_NAME = _U16.pack(len(PROTOCOL)) + PROTOCOL.encode()
_NATIVE_VERSION = 1


def stored_outgoing(payload: Buffer) -> list[Outgoing] | None:
    """Every message of an entry; None if not all of them came by AMQP, or something is wrong with them: then they
    are opened the long way."""
    view = memoryview(payload)
    try:
        version, count = _HEAD.unpack_from(view)
        if version != VERSION or count > len(view):
            return None
        found: list[Outgoing] = []
        at, last = _HEAD.size, b""
        envelope = properties = b""
        present = -1
        for _ in range(count):
            size, said, _ = _MESSAGE.unpack_from(view, at)
            start, end = at + _MESSAGE.size, at + 4 + size
            if end > len(view):
                return None
            if said != present or view[start : start + len(last)] != last:
                if said & (_NATIVE | _VALUE) != _NATIVE | _VALUE:
                    return None
                opened = _opened(view[start:end], said)
                if opened is None:
                    return None
                envelope, properties, middle = opened
                present, last = said, bytes(view[start : start + middle])
            body = view[start + len(last) : end]
            found.append(Outgoing(envelope, _CONTENT.pack(_BASIC, 0, len(body)) + properties, body))
            at = end
    except (struct_error, IndexError):
        return None
    return found if at == len(view) else None


def _opened(message: memoryview, present: int) -> tuple[bytes, bytes, int] | None:
    """Envelope, properties, and where the body begins."""
    at = 8 if present & _EVENT else 0
    for flag in (_KEY, _ORDERING_KEY):
        if present & flag:
            at += 4 + _U32.unpack_from(message, at)[0]
    (headers,) = _U16.unpack_from(message, at)
    at += 2
    for _ in range(headers):
        at += 2 + _U16.unpack_from(message, at)[0]
        at += 4 + max(0, _I32.unpack_from(message, at)[0])
    if message[at : at + len(_NAME)] != _NAME:
        return None
    at += len(_NAME)
    (size,) = _U32.unpack_from(message, at)
    at += 4
    native = bytes(message[at : at + size])
    if len(native) != size or native[0] != _NATIVE_VERSION:
        return None
    middle = 2 + native[1]
    end = middle + 1 + native[middle]
    return (native[1:end], native[end:], at + size) if end <= size else None
