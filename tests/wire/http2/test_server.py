"""The server's side of HTTP/2, judged by h2, another codec; and what it does not put up with."""

from contextlib import suppress
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import WireError
from weir.wire.http2 import frames, grpc
from weir.wire.http2.connection import Http2Server
from weir.wire.http2.frames import Code, Http2Error, Limits
from weir.wire.http2.hpack import HeaderDecoder, encode
from weir.wire.http2.streams import Body, Event, Request, Reset

HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B"), (":authority", "x"), ("te", "trailers")]


class Pair:
    """A client of h2's and the server; `turn` carries what both have said."""

    def __init__(self, limits: Limits | None = None, **settings: int) -> None:
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.server = Http2Server(limits or Limits())
        self.client.initiate_connection()
        if settings:
            codes = {getattr(h2.settings.SettingCodes, name): value for name, value in settings.items()}
            self.client.update_settings(codes)
        self.turn()

    def turn(self) -> tuple[list[Event], list[Any]]:
        came = self.server.receive(self.client.data_to_send(), 0.0)
        told: list[Any] = []
        for _ in range(3):
            told += self.client.receive_data(b"".join(map(bytes, self.server.take_output())))
            came += self.server.receive(self.client.data_to_send(), 0.0)
        return came, told

    def ask(self, body: bytes = b"", headers: list[tuple[str, str]] = HEADERS) -> int:
        stream: int = self.client.get_next_available_stream_id()
        self.client.send_headers(stream, headers)
        self.client.send_data(stream, body, end_stream=True)
        return stream


def client_frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return frames.frame_head(len(body), kind, flags, stream) + body


def opened(limits: Limits | None = None) -> Http2Server:
    """A server that has been greeted."""
    server = Http2Server(limits or Limits())
    server.receive(frames.PREFACE + client_frame(frames.SETTINGS, 0, 0), 0.0)
    server.take_output()
    return server


def test_a_request_is_answered_with_headers_body_and_trailers() -> None:
    pair = Pair()
    stream = pair.ask(b"question")
    came, _ = pair.turn()
    assert isinstance(came[0], Request)
    assert came[0].headers[b":path"] == b"/a/B"
    assert [bytes(one.data) for one in came if isinstance(one, Body)] == [b"question"]
    pair.server.answer(stream, grpc.HEAD, b"answer", grpc.TRAILERS_OK)
    _, told = pair.turn()
    kinds = [type(one).__name__ for one in told]
    assert kinds == ["ResponseReceived", "DataReceived", "TrailersReceived", "StreamEnded"]
    assert told[1].data == b"answer"
    assert pair.server.streams == 0


def test_a_large_answer_goes_as_far_as_the_windows_have_room_and_on_when_they_have_more() -> None:
    pair = Pair(INITIAL_WINDOW_SIZE=1000)
    stream = pair.ask()
    pair.turn()
    pair.server.answer(stream, grpc.HEAD, b"x" * 200_000, grpc.TRAILERS_OK)
    _, told = pair.turn()
    size = sum(len(one.data) for one in told if isinstance(one, h2.events.DataReceived))
    assert size == 1000
    assert pair.server.unsent_bytes == 199_000
    while pair.server.streams:
        pair.client.acknowledge_received_data(size, stream)
        _, told = pair.turn()
        size = sum(len(one.data) for one in told if isinstance(one, h2.events.DataReceived))
    assert pair.server.unsent_bytes == 0
    assert any(isinstance(one, h2.events.StreamEnded) for one in told)


def test_a_large_request_gets_room_while_it_comes() -> None:
    pair = Pair(Limits(stream_window_bytes=70_000, connection_window_bytes=70_000))
    stream = pair.client.get_next_available_stream_id()
    pair.client.send_headers(stream, HEADERS)
    sent, got = 0, 0
    while sent < 500_000:
        room = min(pair.client.local_flow_control_window(stream), pair.client.max_outbound_frame_size)
        assert room > 0
        pair.client.send_data(stream, b"y" * room)
        sent += room
        came, _ = pair.turn()
        got += sum(len(one.data) for one in came if isinstance(one, Body))
    assert got == sent


def test_headers_in_many_pieces_are_one_request() -> None:
    pair = Pair()
    stream = pair.ask(headers=[*HEADERS, *((f"name-{n}", "v" * 500) for n in range(45))])
    came, _ = pair.turn()
    assert isinstance(came[0], Request)
    assert came[0].stream == stream
    assert came[0].headers[b"name-44"] == b"v" * 500


def test_a_stream_that_the_client_resets_is_told_once() -> None:
    pair = Pair()
    stream = pair.client.get_next_available_stream_id()
    pair.client.send_headers(stream, HEADERS)
    pair.turn()
    pair.client.reset_stream(stream, Code.CANCEL)
    came, _ = pair.turn()
    assert came == [Reset(stream, Code.CANCEL)]
    pair.server.answer(stream, grpc.HEAD, b"late", grpc.TRAILERS_OK)
    assert pair.server.take_output() == []


def test_more_streams_than_offered_are_refused_one_by_one() -> None:
    pair = Pair(Limits(max_streams=2))
    server = pair.server
    block = b"\x83\x86\x44\x04/a/B"
    came = server.receive(
        b"".join(client_frame(frames.HEADERS, frames.END_HEADERS, stream, block) for stream in (1, 3, 5)), 0.0
    )
    assert [one.stream for one in came] == [1, 3]
    assert frames.reset(5, Code.REFUSED_STREAM) in server.take_output()


def test_an_answer_before_the_end_of_the_request_ends_the_stream() -> None:
    pair = Pair()
    stream = pair.client.get_next_available_stream_id()
    pair.client.send_headers(stream, HEADERS)
    pair.turn()
    pair.server.finish(stream, grpc.trailers_only(grpc.GrpcStatus.UNIMPLEMENTED, "no"))
    _, told = pair.turn()
    assert any(isinstance(one, h2.events.ResponseReceived) for one in told)
    assert pair.server.streams == 0


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (client_frame(frames.DATA, 0, 1, b"x"), Code.PROTOCOL_ERROR),
        (client_frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x83"), Code.PROTOCOL_ERROR),
        (client_frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), Code.COMPRESSION_ERROR),
        (client_frame(frames.PING, 0, 0, b"short"), Code.FRAME_SIZE_ERROR),
        (client_frame(frames.SETTINGS, 0, 0, b"12345"), Code.FRAME_SIZE_ERROR),
        (client_frame(frames.SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
        (client_frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), Code.FLOW_CONTROL_ERROR),
        (client_frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\0"), Code.FLOW_CONTROL_ERROR),
        (client_frame(frames.PUSH_PROMISE, 0, 1, b"\0\0\0\0"), Code.PROTOCOL_ERROR),
        (client_frame(frames.CONTINUATION, 0, 1), Code.PROTOCOL_ERROR),
        (client_frame(frames.RST_STREAM, 0, 1, b"\0\0\0\0"), Code.PROTOCOL_ERROR),
        (frames.frame_head(1 << 20, frames.DATA, 0, 1), Code.FRAME_SIZE_ERROR),
        (
            client_frame(frames.HEADERS, 0, 1, b"\x83") + client_frame(frames.PING, 0, 0, b"12345678"),
            Code.PROTOCOL_ERROR,
        ),
    ],
)
def test_what_breaks_the_rules_of_a_connection_ends_it_with_the_code_for_that(what: bytes, code: Code) -> None:
    with pytest.raises(Http2Error) as refused:
        opened().receive(what, 0.0)
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("what", "earlier"),
    [
        (client_frame(frames.PING, 0, 0, b"12345678"), b""),
        (client_frame(frames.SETTINGS, 0, 0), b""),
        (client_frame(frames.PRIORITY, 0, 1, b"12345"), b""),
        (client_frame(99, 0, 0), b""),
        (client_frame(frames.DATA, 0, 1), client_frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x83\x86\x84")),
        (client_frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"), b""),
    ],
)
def test_a_flood_of_frames_that_bring_nothing_ends_the_connection(what: bytes, earlier: bytes) -> None:
    server = opened()
    server.receive(earlier, 0.0)
    server.receive(what * 500, 0.0)  # some are fine
    with pytest.raises(Http2Error) as refused:
        for _ in range(100):
            server.receive(what * 500, 0.0)
    assert refused.value.code is Code.ENHANCE_YOUR_CALM


def test_rapid_resets_end_the_connection_and_time_makes_up_for_slow_ones() -> None:
    def asked_and_reset(stream: int) -> bytes:
        head = client_frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, b"\x83\x86\x84")
        return head + client_frame(frames.RST_STREAM, 0, stream, b"\0\0\0\x08")

    slow = opened()
    for number in range(5000):
        slow.receive(asked_and_reset(2 * number + 1), number / 100)
    rapid = opened()
    with pytest.raises(Http2Error) as refused:
        for number in range(5000):
            rapid.receive(asked_and_reset(2 * number + 1), 0.0)
    assert refused.value.code is Code.ENHANCE_YOUR_CALM
    assert rapid.streams <= 1


def test_a_header_bomb_is_refused_before_it_is_unpacked() -> None:
    """One large header is remembered, and named again and again."""
    large = b"\x40\x04name\x7f\x81\x1e" + b"v" * 4000
    with pytest.raises(Http2Error) as refused:
        opened().receive(client_frame(frames.HEADERS, frames.END_HEADERS, 1, large + b"\xbe" * 10_000), 0.0)
    assert refused.value.code is Code.ENHANCE_YOUR_CALM


def test_a_header_block_without_end_is_refused() -> None:
    server = opened()
    server.receive(client_frame(frames.HEADERS, 0, 1, b"\x83"), 0.0)
    with pytest.raises(Http2Error) as refused:
        for _ in range(10):
            server.receive(client_frame(frames.CONTINUATION, 0, 1, b"\0" * 16_000), 0.0)
    assert refused.value.code is Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "headers",
    [
        [(b":method", b"POST")],
        [(b":path", b"/"), (b":method", b"POST"), (b":scheme", b"http"), (b"connection", b"close")],
        [(b":path", b"/"), (b":method", b"POST"), (b"a", b""), (b":scheme", b"http")],
        [(b":path", b"/"), (b":method", b"POST"), (b":scheme", b"http"), (b"Upper", b"")],
        [(b":path", b"/"), (b":path", b"/"), (b":method", b"POST"), (b":scheme", b"http")],
    ],
)
def test_a_malformed_request_costs_its_stream_only(headers: list[tuple[bytes, bytes]]) -> None:
    server = opened()
    assert server.receive(client_frame(frames.HEADERS, frames.END_HEADERS, 1, encode(headers)), 0.0) == []
    assert server.take_output() == [frames.reset(1, Code.PROTOCOL_ERROR)]


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_are_events_or_an_error_however_they_are_cut(data: bytes, cut: int) -> None:
    server = opened()
    try:
        for at in range(0, len(data), cut):
            server.receive(data[at : at + cut], 0.0)
    except Http2Error as bad:
        server.refuse(bad)


_FRAMES = st.builds(
    client_frame, st.integers(0, 10), st.integers(0, 63), st.integers(0, 9), st.binary(max_size=40)
)


@given(st.lists(_FRAMES, max_size=30), st.binary(max_size=100_000))
def test_any_frames_are_events_or_an_error_and_what_is_unsent_is_counted(sent: list[bytes], answer: bytes) -> None:
    server = opened()
    try:
        for frame in sent:
            for event in server.receive(frame, 0.0):
                if isinstance(event, Request):
                    server.answer(event.stream, grpc.HEAD, answer, grpc.TRAILERS_OK)
    except Http2Error as bad:
        server.refuse(bad)
    assert 0 <= server.unsent_bytes <= len(answer) * len(sent)
    server.take_output()


@given(st.binary(max_size=300))
def test_any_header_block_is_headers_or_an_error(block: bytes) -> None:
    with suppress(WireError):
        HeaderDecoder(32_768).decode(block)
