"""Kafka's frames: a size, a header, a body.

    size i32 | header | body

Big-endian; `size` counts all that follows it. A frame longer than the limit is refused when its first four bytes
are there, before anything of it is kept; a negative size counts as too long.
"""

from struct import Struct

from weir.model.ids import Buffer
from weir.wire.frames import FrameSplitter
from weir.wire.kafka import codec
from weir.wire.kafka.classes import Message
from weir.wire.kafka.headers import RequestHeader, encode_request_header, encode_response_header

#: What Kafka's brokers accept as one request unless told otherwise.
MAX_FRAME_BYTES = 100 * 1024 * 1024

_U32 = Struct(">I")


def splitter(limit: int = MAX_FRAME_BYTES) -> FrameSplitter:
    """Cuts one connection's bytes into frames without their sizes: a header with a body."""
    return FrameSplitter(limit, _U32)


def request_frame(header: RequestHeader, message: Message) -> list[Buffer]:
    """A whole request, as buffers to write one after the other."""
    body = codec.encode_request(header.api_key, header.api_version, message)
    return _framed(encode_request_header(header), body)


def response_frame(key: int, version: int, correlation_id: int, message: Message) -> list[Buffer]:
    """A whole response, as buffers to write one after the other."""
    body = codec.encode_response(key, version, message)
    return _framed(encode_response_header(key, version, correlation_id), body)


def _framed(header: bytes, body: list[Buffer]) -> list[Buffer]:
    head = _U32.pack(len(header) + sum(map(len, body))) + header
    if body:
        body[0] = head + body[0]
        return body
    return [head]
