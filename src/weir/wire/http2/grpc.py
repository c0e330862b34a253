"""gRPC over HTTP/2: messages out of request bodies, answers with their trailers, statuses and deadlines."""

import zlib
from enum import IntEnum
from struct import Struct

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.http2.hpack import Header, encode

_PREFIX = Struct(">BI")
PREFIX_BYTES = _PREFIX.size
_UNITS_MS = {b"H": 3_600_000.0, b"M": 60_000.0, b"S": 1_000.0, b"m": 1.0, b"u": 0.001, b"n": 0.000_001}
_MOST_TIMEOUT_DIGITS = 8


class GrpcStatus(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class GrpcError(WireError):
    """What ends a call, with the status that its trailers say."""

    def __init__(self, what: str, status: GrpcStatus) -> None:
        super().__init__(what)
        self.status = status


_CONTENT: Header = (b"content-type", b"application/grpc")
#: `:status 200` is in HTTP/2's static table.
HEAD = b"\x88" + encode([_CONTENT, (b"grpc-accept-encoding", b"identity,gzip")])
TRAILERS_OK = encode([(b"grpc-status", b"0")])


def trailers(status: GrpcStatus, text: str) -> bytes:
    """The end of an answer that has begun."""
    return encode([(b"grpc-status", b"%d" % status), (b"grpc-message", _percent_encoded(text))])


def trailers_only(status: GrpcStatus, text: str) -> bytes:
    """An answer that has nothing but its end."""
    return b"\x88" + encode([_CONTENT]) + trailers(status, text)


def http_error(status: int) -> bytes:
    """To what is no gRPC."""
    return encode([(b":status", b"%d" % status), (b"content-length", b"0")])


def message(body: Buffer) -> bytes:
    """One message of an answer."""
    return _PREFIX.pack(0, len(body)) + body


def timeout_s(text: bytes) -> float | None:
    """Out of `grpc-timeout`; None if it says nothing that makes sense."""
    digits, unit = text[:-1], _UNITS_MS.get(text[-1:])
    if unit is None or not digits.isdigit() or len(digits) > _MOST_TIMEOUT_DIGITS:
        return None
    return int(digits) * unit / 1000


class MessageReader:
    """Messages of one request out of its body, in whatever pieces that comes."""

    __slots__ = ("_gzip", "_kept", "_most", "_needs", "kept_bytes")

    def __init__(self, most_bytes: int, encoding: bytes = b"identity") -> None:
        self._most = most_bytes
        self._gzip = encoding == b"gzip"
        self._kept: list[bytes] = []
        #: What has come of a message that is not whole; and how much is needed to go on.
        self.kept_bytes = 0
        self._needs = PREFIX_BYTES

    def feed(self, data: Buffer) -> list[Buffer]:
        """Those that are whole now; GrpcError if one is too large, or compressed as nobody was told."""
        if self.kept_bytes:
            self._kept.append(bytes(data))
            self.kept_bytes += len(data)
            if self.kept_bytes < self._needs:
                return []
            data = b"".join(self._kept)
        view = memoryview(data)
        found: list[Buffer] = []
        at, end = 0, len(view)
        self._needs = PREFIX_BYTES
        while end - at >= PREFIX_BYTES:
            compressed, size = _PREFIX.unpack_from(view, at)
            if size > self._most:
                raise GrpcError(
                    f"gRPC message exceeds maximum size {self._most}: {size}", GrpcStatus.RESOURCE_EXHAUSTED
                )
            first = at + PREFIX_BYTES
            if end - first < size:
                self._needs = PREFIX_BYTES + size
                break
            at = first + size
            found.append(self._opened(view[first:at], compressed))
        self._kept = [bytes(view[at:])] if at < end else []
        self.kept_bytes = end - at
        return found

    def _opened(self, body: memoryview, compressed: int) -> Buffer:
        if not compressed:
            return body
        if compressed != 1 or not self._gzip:
            raise GrpcError("a message is compressed in a way that is not known", GrpcStatus.UNIMPLEMENTED)
        try:
            return gunzip(body, self._most)
        except WireError as bad:
            status = GrpcStatus.RESOURCE_EXHAUSTED if isinstance(bad, TooLong) else GrpcStatus.INTERNAL
            raise GrpcError(bad.what, status) from None


class TooLong(WireError):
    """What is compressed is more than may be."""


def gunzip(data: Buffer, most_bytes: int) -> bytes:
    """At most so much; WireError if it is more, or no gzip."""
    opener = zlib.decompressobj(wbits=31)
    try:
        found = opener.decompress(data, most_bytes + 1)
    except zlib.error as bad:
        raise WireError(f"this is no gzip: {bad}") from None
    if len(found) > most_bytes:
        raise TooLong(f"more than {most_bytes} bytes are compressed in it")
    if not opener.eof:
        raise WireError("the end of a compressed text is missing")
    return found


def _percent_encoded(text: str) -> bytes:
    """As `grpc-message` has it: printable ASCII but for %."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode("utf-8", "replace")[:1024]
    )
