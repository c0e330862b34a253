"""Stored messages of AMQP as they go out to AMQP's consumers, without opening what only others read.

In `weir.wire.messages`' layout a message of AMQP has, behind headers for other protocols, its envelope and
properties as they came, and its body. Messages of one publisher are alike but for their bodies and times: those
bytes are compared with the last one's, and taken from there.
"""

from struct import Struct
from struct import error as struct_error

from weir.model.ids import Buffer
from weir.wire.amqp.native import PROTOCOL
from weir.wire.amqp.outgoing import Outgoing
from weir.wire.messages import VERSION

_HEAD = Struct("<BI")
_MESSAGE = Struct("<IBq")
_U32 = Struct("<I")
_U16 = Struct("<H")
_I32 = Struct("<i")
_CONTENT = Struct(">HHQ")
_BASIC = 60
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
