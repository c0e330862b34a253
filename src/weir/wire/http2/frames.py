"""Frames of HTTP/2: their layout, and those that a server says.

What one HTTP/2 connection may ask of its server, and how much of what costs its client nothing.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from weir.model.errors import WireError
from weir.model.ids import Buffer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
#: The largest frame that may come, unless more is offered; and that may go out, unless a client takes more.
DEFAULT_FRAME_BYTES = 16_384
MOST_FRAME_BYTES = (1 << 24) - 1
DEFAULT_WINDOW = 65_535
MOST_WINDOW = (1 << 31) - 1

_HEADER = Struct(">HBBBI")
_U32 = Struct(">I")
_SETTING = Struct(">HI")
_TWO = Struct(">II")

# Types and flags are plain numbers: they are compared for every frame.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Http2Error(WireError):
    """What ends a connection, with the code that its GOAWAY says."""

    def __init__(self, what: str, code: Code = Code.PROTOCOL_ERROR) -> None:
        super().__init__(what)
        self.code = code


def frame_head(size: int, kind: int, flags: int, stream: int) -> bytes:
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream)


def read_head(data: Buffer, at: int) -> tuple[int, int, int, int]:
    """Size, type, flags and stream of the frame that begins there."""
    high, low, kind, flags, stream = _HEADER.unpack_from(data, at)
    return high << 8 | low, kind, flags, stream & 0x7FFFFFFF


def settings(values: dict[Setting, int]) -> bytes:
    body = b"".join(_SETTING.pack(name, value) for name, value in values.items())
    return frame_head(len(body), SETTINGS, 0, 0) + body


def read_settings(body: Buffer) -> list[tuple[int, int]]:
    return list(_SETTING.iter_unpack(body))


SETTINGS_ACK = frame_head(0, SETTINGS, ACK, 0)


def ping_ack(body: Buffer) -> bytes:
    return frame_head(8, PING, ACK, 0) + bytes(body)


def reset(stream: int, code: Code) -> bytes:
    return frame_head(4, RST_STREAM, 0, stream) + _U32.pack(code)


def window_update(stream: int, more: int) -> bytes:
    return frame_head(4, WINDOW_UPDATE, 0, stream) + _U32.pack(more)


def goaway(last_stream: int, code: Code, text: bytes = b"") -> bytes:
    return frame_head(8 + len(text), GOAWAY, 0, 0) + _TWO.pack(last_stream, code) + text


def read_u32(body: Buffer, at: int = 0) -> int:
    (number,) = _U32.unpack_from(body, at)
    return int(number)


@dataclass(frozen=True, slots=True)
class Limits:
    """Offered in SETTINGS, where HTTP/2 has a word for it."""

    max_streams: int = 1_000
    #: Of the headers of one request, by HTTP/2's count.
    max_header_list_bytes: int = 32 * 1024
    #: What a client may send before it hears of more room: on one stream, and on all.
    stream_window_bytes: int = 1024 * 1024
    connection_window_bytes: int = 8 * 1024 * 1024
    #: What may wait for a client that reads slowly, over all streams; above it a call is refused.
    max_unsent_bytes: int = 16 * 1024 * 1024
    #: Of work that brings nothing (see `Patience`): at once, and for each second.
    patience: int = 10_000
    patience_per_s: int = 2_000


class Patience:
    """Frames that cost the server something and the client nothing: pings, settings, resets of what was just
    asked for, empty data. Each takes from what is left; time and useful
    work give back. Beyond it the connection ends."""

    __slots__ = ("_left", "_most", "_per_s", "_then")

    def __init__(self, most: int, per_s: int) -> None:
        self._most = self._left = most
        self._per_s = per_s
        self._then: float | None = None

    def pass_time(self, now: float) -> None:
        """`now`: seconds of a clock that never goes back."""
        if self._then is not None and self._left < self._most:
            self._left = min(self._most, self._left + int((now - self._then) * self._per_s))
        self._then = now

    def spend(self, units: int, what: str) -> None:
        self._left -= units
        if self._left < 0:
            raise Http2Error(f"too many {what}", Code.ENHANCE_YOUR_CALM)

    def earn(self, units: int) -> None:
        self._left = min(self._most, self._left + units)
