"""AMQP's frames out of a stream of receive buffers, and the frames that carry nothing.

    type u8 | channel u16 | size u32 | that many bytes | 0xCE

Big-endian. A connection begins with the protocol header that its client sends; a server that speaks something else
answers with a header of its own, and closes.

A frame that lies whole in one buffer is given out as a slice of it; only one that arrives in pieces is copied,
into a buffer that grows with what came and not with what was announced.

Acknowledgements of single messages that lie one after the other, taken out of a receive buffer at a glance.

A consumer says hardly anything else, and all of them are alike but for their tags. What differs in any way is left
where it is, for `CommandReader` to take or to refuse.

The reply codes of AMQP 0-9-1, and which of them end a channel only.
"""

import re
from collections.abc import Iterator
from enum import Enum, IntEnum
from functools import lru_cache
from struct import Struct

from weir.model.errors import AmqpError, AmqpHeaderError
from weir.model.ids import Buffer


class ReplyCode(IntEnum):
    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def ends_channel_only(self) -> bool:
        """A soft error: the connection and its other channels go on."""
        return self in _SOFT


_SOFT = frozenset(
    {
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.NO_ROUTE,
        ReplyCode.NO_CONSUMERS,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    }
)


def reply_text(code: ReplyCode, what: str) -> str:
    """What a close says, as RabbitMQ words it (`NOT_FOUND - no queue 'q'`), cut to what a short string holds."""
    text = f"{code.name} - {what}".encode("utf-8", "replace")
    return text[:255].decode("utf-8", "ignore")


PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

METHOD = 1
HEADER = 2
BODY = 3
HEARTBEAT = 8
_TYPES = frozenset({METHOD, HEADER, BODY, HEARTBEAT})

HEAD = Struct(">BHI")
END = b"\xce"
_END = END[0]
#: A frame's bytes besides its payload; `frame_max` counts them.
OVERHEAD_BYTES = HEAD.size + len(END)
#: No peer may ask for a smaller `frame_max`.
MIN_FRAME_MAX = 4096
#: Before it is negotiated: room for a token as the password.
INITIAL_FRAME_MAX = 8192
#: What RabbitMQ offers.
DEFAULT_FRAME_MAX = 131_072

HEARTBEAT_FRAME = HEAD.pack(HEARTBEAT, 0, 0) + END

#: Type, channel, payload.
Frame = tuple[int, int, memoryview]


class Role(Enum):
    """Who reads: it decides what a stream begins with, and which methods may come."""

    SERVER = "server"
    CLIENT = "client"


class FrameSplitter:
    """Splits one connection's bytes. After an error the stream has lost its rhythm: close the connection."""

    def __init__(self, role: Role, frame_max: int = INITIAL_FRAME_MAX) -> None:
        #: May be changed between any two frames: small until tune-ok, then as negotiated. As in RabbitMQ a payload
        #: may have so many bytes, where the letter of the protocol takes the eight around it off.
        self.frame_max = frame_max
        self._role = role
        self._begun = False
        self._torn = bytearray()

    @property
    def begun(self) -> bool:
        """Whether the other side has spoken: to a server, its protocol header."""
        return self._begun

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here without tearing a frame."""
        return not self._torn

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """The frames that `data` completes. Iterate to the end, or be done with the stream. What is wrong raises
        after the frames before it were given out: AmqpHeaderError for another protocol, else AmqpError."""
        view = memoryview(data)
        at = 0
        if not self._begun:
            at = self._begin(view)
            if not self._begun:
                return
        if self._torn:
            whole, taken = self._complete_torn(view[at:])
            at += taken
            if whole is not None:
                yield whole
        end = len(view)
        unpack = HEAD.unpack_from
        while end - at >= 7:
            kind, channel, size = unpack(view, at)
            if size > self.frame_max or kind not in _TYPES:
                raise self._refusal(kind, size)
            start = at + 7
            last = start + size
            if last >= end:
                break
            if view[last] != _END:
                raise _unended(view[last])
            at = last + 1
            yield kind, channel, view[start:last]
        if at < end:
            # Copied, not kept as a view: many tiny pieces would else pin many large receive buffers.
            self._torn += view[at:]

    def lacking(self, view: memoryview) -> int:
        """How many bytes of `view` the frame has that it begins with, or that began before it: no more than there
        are. They may be more than enough for its head only."""
        torn = self._torn
        if not self._begun:
            return len(view)
        known = len(torn)
        if known + len(view) < 7:
            return len(view)
        head = bytes(torn[:7]) + bytes(view[: max(0, 7 - known)])
        size: int = HEAD.unpack(head)[2]
        return max(1, min(len(view), size + 8 - known))

    def forget(self) -> None:
        """The stream is over: hold nothing of it until somebody collects the garbage."""
        self._torn = bytearray()

    def _begin(self, view: memoryview) -> int:
        """Look at the first bytes of the stream; how many of them are no frame's."""
        if self._role is Role.CLIENT:
            if view and view[0] == PROTOCOL_HEADER[0]:
                answer = bytes(view[:8])
                raise AmqpHeaderError(f"the server speaks another protocol: it answered {answer!r}")
            self._begun = len(view) > 0
            return 0
        known = len(self._torn)
        piece = view[: 8 - known]
        if piece != PROTOCOL_HEADER[known : known + len(piece)]:
            raise AmqpHeaderError(
                f"a client opens with {bytes(self._torn) + bytes(piece)!r}", hint="AMQP 0-9-1 is spoken here"
            )
        if known + len(piece) < 8:
            self._torn += piece
        else:
            self._torn = bytearray()
            self._begun = True
        return len(piece)

    def _complete_torn(self, view: memoryview) -> tuple[Frame | None, int]:
        """Take from `view` what the torn frame lacks: the frame, if that completes it, and how many bytes."""
        torn = self._torn
        taken = 0
        if len(torn) < 7:
            taken = min(7 - len(torn), len(view))
            torn += view[:taken]
            if len(torn) < 7:
                return None, taken
        kind, channel, size = HEAD.unpack_from(torn)
        if size > self.frame_max or kind not in _TYPES:
            raise self._refusal(kind, size)
        lacks = size + 8 - len(torn)
        piece = view[taken : taken + lacks]
        torn += piece
        taken += len(piece)
        if len(piece) < lacks:
            return None, taken
        if torn[-1] != _END:
            raise _unended(torn[-1])
        self._torn = bytearray()
        return (kind, channel, memoryview(torn)[7:-1]), taken

    def _refusal(self, kind: int, size: int) -> AmqpError:
        if kind not in _TYPES:
            return AmqpError(f"a frame is of the unknown type {kind}", code=ReplyCode.FRAME_ERROR)
        limit = self.frame_max
        return AmqpError(f"a frame announces {size} bytes, and frame_max is {limit}", code=ReplyCode.FRAME_ERROR)


def _unended(found: int) -> AmqpError:
    return AmqpError(f"a frame ends with {found:#04x} instead of 0xce", code=ReplyCode.FRAME_ERROR)


_ACK = b"\x00\x3c\x00\x50"
_PAYLOAD_BYTES = len(_ACK) + 8 + 1
_NUMBER_AT = slice(1, 3)
_TAGS = Struct(f">{HEAD.size + len(_ACK)}xQ2x")
#: Of one such frame.
FRAME_BYTES = _TAGS.size


@lru_cache(maxsize=1024)
def _pattern(channel: int) -> "re.Pattern[bytes]":
    head = HEAD.pack(METHOD, channel, _PAYLOAD_BYTES) + _ACK
    return re.compile(b"(?:" + re.escape(head) + rb".{8}\x00" + re.escape(END) + b")+", re.DOTALL)


def begins_with_ack(data: memoryview) -> bool:
    """Whether a frame that is an acknowledgement may be the first in the buffer."""
    return data[HEAD.size : HEAD.size + len(_ACK)] == _ACK


def take_acks(data: memoryview, most: int) -> tuple[int, list[int], int]:
    """The channel and the tags of the acknowledgements of one channel that the buffer begins with, of at most so
    many, and where they end: at 0 if there are none."""
    channel = int.from_bytes(data[_NUMBER_AT], "big")
    found = _pattern(channel).match(data, 0, min(len(data), most * FRAME_BYTES)) if channel else None
    if found is None:
        return channel, [], 0
    end = found.end()
    return channel, [tag for (tag,) in _TAGS.iter_unpack(data[:end])], end
