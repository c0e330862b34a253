"""Recognition of clients of RocketMQ 4, whose remoting protocol is not served, and the answer that tells them so.

A frame of remoting is its length (4 bytes), the form of its header (1 byte: 0 JSON, 1 binary), the header's length
(3 bytes), the header, and a body.
"""

import json
import re
from struct import Struct

from weir.model.ids import Buffer

WHY = (
    "the client uses the remoting protocol of RocketMQ 4, which Weir does not serve. Use a client of RocketMQ 5"
    " (gRPC), for example rocketmq-client-java; see docs/reference/rocketmq.md"
)
_PREFIX = Struct(">iB3s")
#: Code, language, version, opaque, flag: a header in the binary form begins so.
_BINARY = Struct(">hBhi")
_JSON_FORM, _BINARY_FORM = 0, 1
_MAX_FRAME_BYTES = 16 * 1024 * 1024
_OPAQUE = re.compile(rb'"opaque"\s*:\s*(-?\d{1,10})\b')
_SYSTEM_ERROR = 1
_IS_RESPONSE = 1


def answer_to(first: Buffer) -> bytes | None:
    """The answer to the first bytes of a connection if they begin a frame of remoting, else None."""
    data = bytes(first[:4096])
    if len(data) <= _PREFIX.size:
        return None
    length, form, header_length = _PREFIX.unpack_from(data)
    header_bytes = int.from_bytes(header_length)
    if not 0 < header_bytes <= length - 4 <= _MAX_FRAME_BYTES:
        return None
    header = data[_PREFIX.size : _PREFIX.size + header_bytes]
    if form == _JSON_FORM and header[:1] == b"{":
        found = _OPAQUE.search(header)
        return _answer(int(found[1]) if found else 0)
    if form == _BINARY_FORM and len(header) >= _BINARY.size:
        return _answer(_BINARY.unpack_from(header)[3])
    return None


def _answer(opaque: int) -> bytes:
    """A response of the request with this number: a failure whose text the client shows."""
    header = json.dumps(
        {
            "code": _SYSTEM_ERROR,
            "flag": _IS_RESPONSE,
            "language": "JAVA",
            "opaque": opaque,
            "remark": WHY,
            "serializeTypeCurrentRPC": "JSON",
            "version": 0,
        }
    ).encode()
    return _PREFIX.pack(len(header) + 4, _JSON_FORM, len(header).to_bytes(3)) + header
