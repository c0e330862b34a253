"""The methods of AMQP 0-9-1: a module per class, and their codec.

Arguments that do not decode are a FRAME_ERROR, a table that is none is a SYNTAX_ERROR, and a method that nobody
knows is NOT_IMPLEMENTED; an argument that cannot be written is an INTERNAL_ERROR.
"""

from struct import Struct
from struct import error as struct_error

from weir.model.errors import AmqpError
from weir.model.ids import Buffer
from weir.wire.amqp.frames import END, HEAD, METHOD, ReplyCode
from weir.wire.amqp.method_codec import METHODS, Method, decode_any, encode_any
from weir.wire.amqp.methods import access, basic, channel, confirm, connection, exchange, queue, tx

__all__ = [
    "METHODS",
    "Method",
    "access",
    "basic",
    "channel",
    "confirm",
    "connection",
    "decode_method",
    "encode_method",
    "exchange",
    "queue",
    "tx",
]

_IDS = Struct(">I")
_ACK = Struct(">IQB")
_ACK_FRAME = Struct(">BHIIQBB")
_ACK_ID = 60 << 16 | 80
_PUBLISH_ID = 60 << 16 | 40


def decode_method(payload: Buffer) -> Method:
    """The method in a frame's payload."""
    data = bytes(payload)
    if len(data) < 4:
        raise AmqpError(f"a method frame has {len(data)} bytes", code=ReplyCode.FRAME_ERROR)
    (ids,) = _IDS.unpack_from(data)
    if ids == _PUBLISH_ID:
        return _publish(data)
    if ids == _ACK_ID and len(data) == _ACK.size:
        _, tag, multiple = _ACK.unpack(data)
        return basic.Ack(tag, bool(multiple & 1))
    cls = METHODS.get(ids)
    if cls is None:
        class_id, method_id = ids >> 16, ids & 0xFFFF
        what = f"there is no method {method_id} in a class {class_id}"
        raise AmqpError(what, code=ReplyCode.NOT_IMPLEMENTED, class_id=class_id, method_id=method_id)
    return decode_any(cls, data)


def _publish(data: bytes) -> basic.Publish:
    try:
        name_end = 7 + data[6]
        key_end = name_end + 1 + data[name_end]
        bits = data[key_end]
        if key_end + 1 == len(data):
            return basic.Publish(
                str(data[7:name_end], "utf-8"),
                str(data[name_end + 1 : key_end], "utf-8"),
                bool(bits & 1),
                bool(bits & 2),
            )
    except (IndexError, UnicodeDecodeError):
        pass
    return decode_any(basic.Publish, data)  # which says what is wrong


def encode_method(channel: int, method: Method) -> bytes:
    """A whole frame, of a method without a content (`weir.wire.amqp.content` has those with one)."""
    try:
        if type(method) is basic.Ack:
            return _ACK_FRAME.pack(METHOD, channel, 13, _ACK_ID, method.delivery_tag, method.multiple, END[0])
        payload = encode_any(method)
        return HEAD.pack(METHOD, channel, len(payload)) + payload + END
    except struct_error as bad:
        what = f"{method} cannot be sent on channel {channel}: {bad}"
        raise AmqpError(what, code=ReplyCode.INTERNAL_ERROR) from bad
