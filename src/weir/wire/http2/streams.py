"""Streams of one HTTP/2 connection: what they tell, what they are, and whether a request is one."""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from weir.model.ids import Buffer
from weir.wire.http2.frames import Http2Error
from weir.wire.http2.hpack import Header

Headers = Mapping[bytes, bytes]
_PSEUDO = frozenset((b":method", b":path", b":scheme", b":authority"))
_NEEDED = (b":method", b":path", b":scheme")
#: Of HTTP/1, and malformed here.
_FORBIDDEN = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_COLON = ord(":")


class Request(NamedTuple):
    """A new stream. `ended`: nothing follows its headers."""

    stream: int
    headers: Headers
    ended: bool


class Body(NamedTuple):
    stream: int
    data: Buffer
    ended: bool


class Reset(NamedTuple):
    """The client wants nothing more of the stream, or broke its rules: it is gone."""

    stream: int
    code: int


Event = Request | Body | Reset


class Stream:
    __slots__ = ("answered", "asked", "end_block", "id", "out", "receive_window", "send_window", "unsent")

    def __init__(self, number: int, receive_window: int, send_window: int) -> None:
        self.id = number
        self.receive_window = receive_window
        self.send_window = send_window
        #: Whether the client has said all that it wants to say; and the server.
        self.asked = self.answered = False
        self.out: deque[Buffer] = deque()
        self.unsent = 0
        #: The trailers that follow what is in `out`.
        self.end_block: bytes | None = None


def unpadded(body: memoryview) -> memoryview:
    if not body or body[0] >= len(body):
        raise Http2Error("more padding than frame")
    return body[1 : len(body) - body[0]]


def checked(found: list[Header]) -> Headers | None:
    """By name, the last of several; None if they are malformed."""
    headers: dict[bytes, bytes] = {}
    regular = False
    for name, value in found:
        if not name or name != name.lower():
            return None
        if name[0] == _COLON:
            if regular or name not in _PSEUDO or name in headers:
                return None
        else:
            regular = True
            if name in _FORBIDDEN:
                return None
        headers[name] = value
    return headers if all(name in headers for name in _NEEDED) else None
