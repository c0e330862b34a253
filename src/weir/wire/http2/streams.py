"""The server's side of the streams of one connection: answers, as far as the client's windows have room.

Streams of one HTTP/2 connection: what they tell, what they are, and whether a request is one.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from weir.model.ids import Buffer
from weir.wire.http2 import frames
from weir.wire.http2.frames import Code, Http2Error, Limits, Patience
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


#: What an answer gives back of the server's patience; each KiB that is sent gives one more.
_ANSWER_EARNS = 20


class Sending:
    """What waits for room is counted: `unsent_bytes`."""

    def __init__(self, limits: Limits) -> None:
        self._patience = Patience(limits.patience, limits.patience_per_s)
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._send_window = frames.DEFAULT_WINDOW
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        #: Streams that have something to send and no room for it, in their turn.
        self._blocked: dict[int, Stream] = {}
        self._out: list[Buffer] = []
        self._leaving = False
        self.unsent_bytes = 0

    @property
    def streams(self) -> int:
        """Those that are open."""
        return len(self._streams)

    def is_open(self, stream: int) -> bool:
        """Whether it can still be answered."""
        found = self._streams.get(stream)
        return found is not None and not found.answered

    def take_output(self) -> list[Buffer]:
        """What is to be written now, in order."""
        out, self._out = self._out, []
        return out

    def answer(self, number: int, head: bytes, body: Buffer, trailers: bytes) -> None:
        """All of an answer: encoded headers, one body, encoded trailers. Nothing if the stream is gone."""
        stream = self._streams.get(number)
        if stream is None or stream.answered:
            return
        size = len(body)
        if size <= min(stream.send_window, self._send_window, self._frame_bytes):
            stream.answered = True
            self._send_window -= size
            self._patience.earn(1 + size // 1024)
            self._out.append(
                b"".join(
                    (
                        frames.frame_head(len(head), frames.HEADERS, frames.END_HEADERS, number),
                        head,
                        frames.frame_head(size, frames.DATA, 0, number),
                        body,
                        frames.frame_head(
                            len(trailers), frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, number
                        ),
                        trailers,
                    )
                )
            )
            self._finished(stream)
            return
        self.begin(number, head)
        self.send(number, body)
        self.finish(number, trailers)

    def begin(self, number: int, head: bytes) -> None:
        """The headers of an answer."""
        if self.is_open(number):
            self._out.append(frames.frame_head(len(head), frames.HEADERS, frames.END_HEADERS, number) + head)

    def send(self, number: int, body: Buffer) -> None:
        """A part of its body: now, or when there is room for it."""
        stream = self._streams.get(number)
        if stream is None or stream.answered or not len(body):
            return
        stream.out.append(body)
        stream.unsent += len(body)
        self.unsent_bytes += len(body)
        self._pump(stream)

    def finish(self, number: int, trailers: bytes) -> None:
        """The end of an answer, behind its body."""
        stream = self._streams.get(number)
        if stream is None or stream.answered:
            return
        stream.answered = True
        stream.end_block = trailers
        if not stream.out:
            self._say_end(stream)

    def reset(self, number: int, code: Code) -> None:
        """End a stream without an answer, or in the middle of it."""
        stream = self._streams.get(number)
        if stream is not None:
            self._drop(stream)
            self._out.append(frames.reset(number, code))

    def leave(self) -> None:
        """Take no new requests; those that are open are answered."""
        if not self._leaving:
            self._leaving = True
            self._out.append(frames.goaway(self._last, Code.NO_ERROR))

    def refuse(self, why: Http2Error) -> None:
        """The last word."""
        self._out.append(frames.goaway(self._last, why.code, why.what.encode()[:200]))

    # --- inside ------------------------------------------------------------------------------------------

    def _pump(self, stream: Stream) -> None:
        """Send what its windows have room for."""
        while stream.out:
            room = min(stream.send_window, self._send_window, self._frame_bytes)
            if room <= 0:
                self._blocked[stream.id] = stream
                return
            body = stream.out[0]
            size = len(body)
            if size > room:
                stream.out[0] = memoryview(body)[room:]
                body, size = memoryview(body)[:room], room
            else:
                stream.out.popleft()
            stream.send_window -= size
            self._send_window -= size
            stream.unsent -= size
            self.unsent_bytes -= size
            self._patience.earn(1 + size // 1024)
            self._out.append(frames.frame_head(size, frames.DATA, 0, stream.id))
            self._out.append(body)
        self._blocked.pop(stream.id, None)
        if stream.end_block is not None:
            self._say_end(stream)

    def _say_end(self, stream: Stream) -> None:
        block, stream.end_block = stream.end_block or b"", None
        flags = frames.END_HEADERS | frames.END_STREAM
        self._out.append(frames.frame_head(len(block), frames.HEADERS, flags, stream.id) + block)
        self._finished(stream)

    def _finished(self, stream: Stream) -> None:
        self._patience.earn(_ANSWER_EARNS)
        if not stream.asked:  # what else the client has to say is of no use
            self._out.append(frames.reset(stream.id, Code.NO_ERROR))
            self._drop(stream)
        else:
            self._streams.pop(stream.id, None)

    def _drop(self, stream: Stream) -> None:
        self._streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self.unsent_bytes -= stream.unsent
        stream.unsent = 0
        stream.out.clear()
