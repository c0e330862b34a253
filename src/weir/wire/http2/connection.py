"""One HTTP/2 connection as its server sees it: bytes in, events out; answers in, bytes out.

Flow control holds in both directions: a client gets no more than its windows have room for, and what waits for it
is counted. What it sends is given room again at once; whoever keeps it bounds what it keeps.
"""

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.http2 import frames
from weir.wire.http2.frames import Code, Http2Error, Limits, Setting
from weir.wire.http2.hpack import HeaderDecoder, HeaderListTooLarge
from weir.wire.http2.streams import Body, Event, Request, Reset, Sending, Stream, checked, unpadded

#: What frames cost that bring nothing, in units of `Patience`.
_PING = _SETTINGS = _RESET = _EMPTY = 10
_OTHER = 1


class Http2Server(Sending):
    """`receive` what came, answer by the other calls, and write what `take_output` gives, in that order."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._limits = limits
        self._decoder = HeaderDecoder(limits.max_header_list_bytes)
        self._rest = b""
        self._begun = self._settled = False
        #: A header block that has not come whole: its stream, flags and pieces.
        self._block: tuple[int, int, list[bytes]] | None = None
        self._block_bytes = 0
        self._receive_window = limits.connection_window_bytes
        self._initial_window = frames.DEFAULT_WINDOW
        more = limits.connection_window_bytes - frames.DEFAULT_WINDOW
        self._out += [
            frames.settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: limits.max_streams,
                    Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                    Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
                }
            ),
            frames.window_update(0, more),
        ]

    # --- what comes --------------------------------------------------------------------------------------

    def receive(self, data: Buffer, now: float) -> list[Event]:
        """What the bytes say. Http2Error: the connection is over once `refuse` is written. `now`: seconds of a
        clock that never goes back."""
        self._patience.pass_time(now)
        view = memoryview(self._rest + bytes(data)) if self._rest else memoryview(data)
        at, end = 0, len(view)
        events: list[Event] = []
        if not self._begun:
            at = self._greeting(view)
            if not at:
                self._rest = bytes(view)
                return events
        while end - at >= frames.HEADER_BYTES:
            size, kind, flags, stream = frames.read_head(view, at)
            if size > frames.DEFAULT_FRAME_BYTES:
                raise Http2Error(f"a frame of {size} bytes", Code.FRAME_SIZE_ERROR)
            first = at + frames.HEADER_BYTES
            if end - first < size:
                break
            at = first + size
            self._frame(kind, flags, stream, view[first:at], events)
        self._rest = bytes(view[at:])
        return events

    def _greeting(self, view: memoryview) -> int:
        """How long the preface is; 0 if it has not come whole."""
        known = min(len(view), len(frames.PREFACE))
        if view[:known] != frames.PREFACE[:known]:
            raise Http2Error("this is no HTTP/2")
        if known < len(frames.PREFACE):
            return 0
        self._begun = True
        return known

    def _frame(self, kind: int, flags: int, stream: int, body: memoryview, events: list[Event]) -> None:
        if not self._settled:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise Http2Error("the first frame is not SETTINGS")
            self._settled = True
        if self._block is not None and (kind != frames.CONTINUATION or stream != self._block[0]):
            raise Http2Error("a header block is interrupted")
        if kind == frames.DATA:
            self._on_data(flags, stream, body, events)
        elif kind == frames.HEADERS:
            self._on_headers(flags, stream, body, events)
        elif kind == frames.WINDOW_UPDATE:
            self._on_window_update(stream, body, events)
        elif kind == frames.CONTINUATION:
            self._on_continuation(flags, stream, body, events)
        elif kind == frames.RST_STREAM:
            self._on_reset(stream, body, events)
        elif kind == frames.PING:
            self._on_ping(flags, stream, body)
        elif kind == frames.SETTINGS:
            self._on_settings(flags, stream, body)
        else:
            self._on_other(kind, stream, body)

    def _on_other(self, kind: int, stream: int, body: memoryview) -> None:
        if kind == frames.PUSH_PROMISE:
            raise Http2Error("clients promise nothing")
        if kind == frames.GOAWAY and stream:
            raise Http2Error("GOAWAY is about the connection")
        if kind == frames.PRIORITY and (not stream or len(body) != 5):
            raise Http2Error("a malformed PRIORITY", Code.FRAME_SIZE_ERROR if stream else Code.PROTOCOL_ERROR)
        self._patience.spend(_OTHER, "frames that say nothing")

    def _on_data(self, flags: int, number: int, body: memoryview, events: list[Event]) -> None:
        if not number or number > self._last:
            raise Http2Error("data of no request")
        size = len(body)
        self._receive_window -= size
        if self._receive_window < 0:
            raise Http2Error("more data than there was room for", Code.FLOW_CONTROL_ERROR)
        if self._receive_window < self._limits.connection_window_bytes // 2:
            self._out.append(frames.window_update(0, self._limits.connection_window_bytes - self._receive_window))
            self._receive_window = self._limits.connection_window_bytes
        ended = bool(flags & frames.END_STREAM)
        if flags & frames.PADDED:
            body = unpadded(body)
        if not body and not ended:
            self._patience.spend(_EMPTY, "empty frames")
        stream = self._streams.get(number)
        if stream is None:
            return  # it was ended from this side, and the client did not know yet
        if stream.asked:
            raise Http2Error("data behind the end of a request", Code.STREAM_CLOSED)
        stream.receive_window -= size
        if stream.receive_window < 0:
            self._break(stream, Code.FLOW_CONTROL_ERROR, events)
            return
        if ended:
            self._asked(stream)
        elif stream.receive_window < self._limits.stream_window_bytes // 2:
            self._out.append(
                frames.window_update(number, self._limits.stream_window_bytes - stream.receive_window)
            )
            stream.receive_window = self._limits.stream_window_bytes
        if not stream.answered:
            events.append(Body(number, body, ended))

    def _on_headers(self, flags: int, number: int, body: memoryview, events: list[Event]) -> None:
        if not number & 1:
            raise Http2Error("a request on a stream that is no client's")
        if flags & frames.PADDED:
            body = unpadded(body)
        if flags & frames.HAS_PRIORITY:
            if len(body) < 5:
                raise Http2Error("a malformed HEADERS", Code.FRAME_SIZE_ERROR)
            body = body[5:]
        if flags & frames.END_HEADERS:
            self._headers(number, flags, bytes(body), events)
        else:
            self._block = (number, flags, [bytes(body)])
            self._block_bytes = len(body)

    def _on_continuation(self, flags: int, number: int, body: memoryview, events: list[Event]) -> None:
        if self._block is None:
            raise Http2Error("a continuation of nothing")
        _, first_flags, pieces = self._block
        self._block_bytes += len(body)
        if self._block_bytes > self._limits.max_header_list_bytes:
            raise Http2Error("a header block is too long", Code.ENHANCE_YOUR_CALM)
        self._patience.spend(_OTHER, "pieces of header blocks")
        pieces.append(bytes(body))
        if flags & frames.END_HEADERS:
            self._block = None
            self._headers(number, first_flags, b"".join(pieces), events)

    def _headers(self, number: int, flags: int, block: bytes, events: list[Event]) -> None:
        try:
            found = self._decoder.decode(block)
        except HeaderListTooLarge as bomb:
            raise Http2Error(bomb.what, Code.ENHANCE_YOUR_CALM) from None
        except WireError as bad:
            raise Http2Error(bad.what, Code.COMPRESSION_ERROR) from None
        ended = bool(flags & frames.END_STREAM)
        known = self._streams.get(number)
        if known is not None:
            self._trailers(known, ended, events)
            return
        if number <= self._last:
            raise Http2Error("headers on a stream that is closed", Code.STREAM_CLOSED)
        self._last = number
        if self._leaving or len(self._streams) >= self._limits.max_streams:
            self._patience.spend(_RESET, "requests at once")
            self._out.append(frames.reset(number, Code.REFUSED_STREAM))
            return
        headers = checked(found)
        if headers is None:
            self._patience.spend(_RESET, "malformed requests")
            self._out.append(frames.reset(number, Code.PROTOCOL_ERROR))
            return
        stream = Stream(number, self._limits.stream_window_bytes, self._initial_window)
        self._streams[number] = stream
        if ended:
            self._asked(stream)
        events.append(Request(number, headers, ended))

    def _trailers(self, stream: Stream, ended: bool, events: list[Event]) -> None:
        if stream.asked or not ended:
            raise Http2Error("headers in the middle of a request")
        self._asked(stream)
        if not stream.answered:
            events.append(Body(stream.id, b"", True))

    def _asked(self, stream: Stream) -> None:
        stream.asked = True
        self._forget_if_done(stream)

    def _on_window_update(self, number: int, body: memoryview, events: list[Event]) -> None:
        if len(body) != 4:
            raise Http2Error("a malformed WINDOW_UPDATE", Code.FRAME_SIZE_ERROR)
        more = frames.read_u32(body) & 0x7FFFFFFF
        self._patience.spend(_OTHER, "window updates")
        if not number:
            self._send_window += more
            if not more or self._send_window > frames.MOST_WINDOW:
                raise Http2Error("a window of no possible size", Code.FLOW_CONTROL_ERROR)
            for stream in list(self._blocked.values()):
                if self._send_window <= 0:
                    return
                self._pump(stream)
            return
        if number > self._last:
            raise Http2Error("a window of no request")
        found = self._streams.get(number)
        if found is None:
            return
        found.send_window += more
        if not more or found.send_window > frames.MOST_WINDOW:
            self._break(found, Code.FLOW_CONTROL_ERROR if more else Code.PROTOCOL_ERROR, events)
        elif found.out:
            self._pump(found)

    def _on_reset(self, number: int, body: memoryview, events: list[Event]) -> None:
        if len(body) != 4:
            raise Http2Error("a malformed RST_STREAM", Code.FRAME_SIZE_ERROR)
        if not number or number > self._last:
            raise Http2Error("a reset of no request")
        self._patience.spend(_RESET, "resets")
        stream = self._streams.get(number)
        if stream is not None:
            self._drop(stream)
            if not stream.answered:
                events.append(Reset(number, frames.read_u32(body)))

    def _on_ping(self, flags: int, number: int, body: memoryview) -> None:
        if len(body) != 8:
            raise Http2Error("a malformed PING", Code.FRAME_SIZE_ERROR)
        if number:
            raise Http2Error("PING is about the connection")
        self._patience.spend(_PING, "pings")
        if not flags & frames.ACK:
            self._out.append(frames.ping_ack(body))

    def _on_settings(self, flags: int, number: int, body: memoryview) -> None:
        if number:
            raise Http2Error("SETTINGS are about the connection")
        if len(body) % 6 or (flags & frames.ACK and body):
            raise Http2Error("malformed SETTINGS", Code.FRAME_SIZE_ERROR)
        if flags & frames.ACK:
            self._patience.spend(_OTHER, "settings")
            return
        self._patience.spend(_SETTINGS + len(body) // 6, "settings")
        for name, value in frames.read_settings(body):
            if name == Setting.INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif name == Setting.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_BYTES <= value <= frames.MOST_FRAME_BYTES:
                    raise Http2Error("a frame size that cannot be")
                self._frame_bytes = min(value, 1 << 20)
            elif name == Setting.ENABLE_PUSH and value > 1:
                raise Http2Error("a setting that cannot be")
        self._out.append(frames.SETTINGS_ACK)
        for stream in list(self._blocked.values()):
            self._pump(stream)

    def _resize_windows(self, size: int) -> None:
        if size > frames.MOST_WINDOW:
            raise Http2Error("a window of no possible size", Code.FLOW_CONTROL_ERROR)
        change, self._initial_window = size - self._initial_window, size
        for stream in self._streams.values():
            stream.send_window += change
            if stream.send_window > frames.MOST_WINDOW:
                raise Http2Error("a window of no possible size", Code.FLOW_CONTROL_ERROR)

    def _forget_if_done(self, stream: Stream) -> None:
        if stream.answered and not stream.out and stream.end_block is None:
            self._streams.pop(stream.id, None)

    def _break(self, stream: Stream, code: Code, events: list[Event]) -> None:
        """The client broke the rules of one stream."""
        self._patience.spend(_RESET, "broken streams")
        self._drop(stream)
        self._out.append(frames.reset(stream.id, code))
        if not stream.answered:
            events.append(Reset(stream.id, code))
