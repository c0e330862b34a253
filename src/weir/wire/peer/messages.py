"""Frames between brokers, for both sides: a request, its answer, its failure.

    length u32 | crc32c u32 | kind u8 | number of the request u64 | fields of that kind | a value (`values`)

The number is the asker's own. A failure of request 0 is the reason why the connection ends.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple, TypeAlias

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.bookie_layout import fields_before_rest, frame, kind_of
from weir.wire.entry import MAX_PAYLOAD_BYTES

#: The largest frame: a message to or from a queue of another broker, and room for the rest.
MAX_FRAME_BYTES = MAX_PAYLOAD_BYTES + 1024 * 1024
#: What a frame takes besides the value in it, prefix and all; never more.
OVERHEAD_BYTES = 32


class FrameType(IntEnum):
    """What a frame is."""

    REQUEST = 1
    ANSWER = 2
    FAILED = 3


_REQUEST = Struct("<BQHI")  # kind, request, call, timeout ms; then the request's value
_ANSWER = Struct("<BQ")  # kind, request; then the answer's value
_FAILED = Struct("<BQ")  # kind, request; then the failure's value


class Request(NamedTuple):
    """Do this; after `timeout_ms` nobody waits for the answer any more."""

    request_id: int
    call: int
    timeout_ms: int
    value: memoryview


class Answer(NamedTuple):
    """What came of a request; which call it was of, the asker knows."""

    request_id: int
    value: memoryview


class Failed(NamedTuple):
    """Why a request came to nothing; `errors` knows what the value says."""

    request_id: int
    value: memoryview


Response: TypeAlias = Answer | Failed


def encode_request(request_id: int, call: int, timeout_ms: int, value: bytes) -> bytes:
    return frame(_REQUEST.pack(FrameType.REQUEST, request_id, call, timeout_ms) + value)


def decode_request(body: Buffer) -> Request:
    """The request in a frame's body; its value is a slice of it."""
    if kind_of(body) != FrameType.REQUEST:
        raise WireError(f"a request of unknown kind {kind_of(body)}")
    (_, request_id, call, timeout_ms), value = fields_before_rest(body, _REQUEST)
    if request_id == 0:
        raise WireError("a request has the number 0")
    return Request(request_id, call, timeout_ms, value)


def encode_answer(request_id: int, value: bytes) -> bytes:
    return frame(_ANSWER.pack(FrameType.ANSWER, request_id) + value)


def encode_failed(request_id: int, value: bytes) -> bytes:
    return frame(_FAILED.pack(FrameType.FAILED, request_id) + value)


def decode_response(body: Buffer) -> Response:
    """The answer or failure in a frame's body; its value is a slice of it."""
    kind = kind_of(body)
    if kind == FrameType.ANSWER:
        (_, request_id), value = fields_before_rest(body, _ANSWER)
        return Answer(request_id, value)
    if kind == FrameType.FAILED:
        return decode_failed(body)
    raise WireError(f"an answer of unknown kind {kind}")


def decode_failed(body: Buffer) -> Failed:
    """A failure, which may also answer a hello."""
    (_, request_id), value = fields_before_rest(body, _FAILED)
    return Failed(request_id, value)
