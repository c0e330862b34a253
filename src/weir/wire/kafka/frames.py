"""The headers before Kafka's requests and responses.

    request    api key i16 | version i16 | correlation id i32 | client id string, nullable [| tagged fields]
    response   correlation id i32 [| tagged fields]

Tagged fields are there where the body's version is flexible, but never before an ApiVersions response: its client
does not know yet what the broker speaks. The client id has its old form in every version, for the same reason.

Kafka's frames: a size, a header, a body.

    size i32 | header | body

Big-endian; `size` counts all that follows it. A frame longer than the limit is refused when its first four bytes
are there, before anything of it is kept; a negative size counts as too long.
"""

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.wire.kafka import codec
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.classes import Message
from weir.wire.kafka.primitives import skip_section
from weir.wire.kafka.schema.table import APIS
from weir.wire.node.frames import FrameSplitter

_FIXED = Struct(">hhih")
_CORRELATION = Struct(">i")
_NO_TAGS = b"\x00"
_NEVER = 1 << 15
_FLEXIBLE_SINCE = {key: _NEVER if api.flexible is None else api.flexible for key, api in APIS.items()}


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class ResponseHeader(NamedTuple):
    correlation_id: int


def is_flexible(key: int, version: int) -> bool:
    """Whether the bodies of this version, and the header of its request, have tagged fields."""
    since = _FLEXIBLE_SINCE.get(key)
    if since is None:
        raise UnknownVersionError(f"no API has the key {key} here")
    return version >= since


def decode_request_header(data: Buffer) -> tuple[RequestHeader, memoryview]:
    """The header at the beginning of a frame's body, and the request behind it.

    An unknown version of a known API still has a header; so ApiVersions can be answered in any version.
    """
    view = memoryview(data)
    try:
        key, version, correlation_id, size = _FIXED.unpack_from(view)
        at = _FIXED.size + max(size, 0)
        client_id = None if size < 0 else str(view[_FIXED.size : at], "utf-8")
        if is_flexible(key, version):
            at = skip_section(view, at)
    except (struct_error, IndexError, UnicodeDecodeError) as error:
        raise WireError(f"a request's header cannot be decoded: {error}") from error
    if at > len(view):
        raise WireError("a request ends within its header")
    return RequestHeader(key, version, correlation_id, client_id), view[at:]


def encode_request_header(header: RequestHeader) -> bytes:
    key, version, correlation_id, client_id = header
    raw = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(raw)
    try:
        fixed = _FIXED.pack(key, version, correlation_id, size)
    except struct_error as error:
        raise WireError(f"a request's header cannot be encoded: {error}") from error
    return fixed + raw + _NO_TAGS if is_flexible(key, version) else fixed + raw


def decode_response_header(key: int, version: int, data: Buffer) -> tuple[ResponseHeader, memoryview]:
    """The header of a response to a request of that key and version, and the response behind it."""
    view = memoryview(data)
    try:
        at = _CORRELATION.size
        (correlation_id,) = _CORRELATION.unpack_from(view)
        if key != ApiKey.API_VERSIONS and is_flexible(key, version):
            at = skip_section(view, at)
    except (struct_error, IndexError) as error:
        raise WireError(f"a response's header cannot be decoded: {error}") from error
    if at > len(view):
        raise WireError("a response ends within its header")
    return ResponseHeader(correlation_id), view[at:]


def encode_response_header(key: int, version: int, correlation_id: int) -> bytes:
    fixed = _CORRELATION.pack(correlation_id)
    return fixed + _NO_TAGS if key != ApiKey.API_VERSIONS and is_flexible(key, version) else fixed


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
