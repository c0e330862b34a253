"""Clients that do not play by the rules of HTTP/2, gRPC or RocketMQ cost nobody else anything."""

import socket
from collections.abc import Callable
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weir.testing.processes.up import UpProcess
from weir.wire.http2 import frames
from weir.wire.http2.frames import Code
from weir.wire.http2.grpc import message

pytestmark = pytest.mark.process
SERVICE = "/apache.rocketmq.v2.MessagingService/"


class Raw:
    """A connection, and h2's idea of it."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 60)
        self.http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))

    def open(self, **offered: int) -> None:
        self.http2.initiate_connection()
        if offered:
            self.http2.update_settings({getattr(h2.settings.SettingCodes, k): v for k, v in offered.items()})
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.http2.data_to_send())

    def ask(self, method: str, body: bytes, **headers: str) -> int:
        stream: int = self.http2.get_next_available_stream_id()
        sent = {":method": "POST", ":scheme": "http", ":path": SERVICE + method, ":authority": "x"}
        sent |= {"content-type": "application/grpc", "te": "trailers", "x-mq-client-id": "raw"}
        self.http2.send_headers(stream, list((sent | headers).items()))
        self.http2.send_data(stream, body, end_stream=True)
        self.flush()
        return stream

    def until(self, true: Callable[[Any], bool]) -> Any:
        """The first event of which that is true; None if the connection ends before."""
        while data := self.socket.recv(65536):
            for event in self.http2.receive_data(data):
                if true(event):
                    return event
            self.flush()
        return None

    def refused(self) -> Any:
        """The code by which the connection ends."""
        found = b""
        try:
            while data := self.socket.recv(65536):
                found += data
        except OSError:
            return None
        at = found.rfind(b"\x07\x00\x00\x00\x00\x00")
        return Code(frames.read_u32(found, at + 10))

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def raw(weir: UpProcess) -> Any:
    made = Raw(weir.rocketmq)
    yield made
    made.close()


def works(weir: UpProcess) -> bool:
    """Others are served."""
    other = Raw(weir.rocketmq)
    other.open()
    other.ask("QueryRoute", message(b""))
    answered = other.until(lambda event: isinstance(event, h2.events.TrailersReceived))
    other.close()
    return answered is not None and (b"grpc-status", b"0") in answered.headers


@pytest.mark.parametrize("sent", [b"HELO example.org\r\n\r\n", b"\0" * 100, frames.PREFACE + b"\xff" * 20])
def test_what_is_no_http2_is_told_so_and_ended(weir: UpProcess, raw: Raw, sent: bytes) -> None:
    raw.socket.sendall(sent)
    assert raw.refused() in (Code.PROTOCOL_ERROR, Code.FRAME_SIZE_ERROR, None)
    assert works(weir)


@pytest.mark.parametrize("flood", [frames.frame_head(8, frames.PING, 0, 0) + b"12345678", frames.settings({})])
def test_a_flood_of_pings_or_settings_ends_its_connection(weir: UpProcess, raw: Raw, flood: bytes) -> None:
    raw.open()
    try:
        for _ in range(40):
            raw.socket.sendall(flood * 500)
    except OSError:
        pass
    assert raw.refused() in (Code.ENHANCE_YOUR_CALM, None)
    assert works(weir)


def test_rapid_resets_end_their_connection(weir: UpProcess, raw: Raw) -> None:
    raw.open()
    try:
        for _ in range(5000):
            stream = raw.ask("ReceiveMessage", message(b""))
            raw.http2.reset_stream(stream, Code.CANCEL)
    except (OSError, h2.exceptions.ProtocolError):
        pass
    assert works(weir)


def test_an_answer_that_is_never_read_waits_alone(
    weir: UpProcess, raw: Raw, clients: Any, name: str, make: Any
) -> None:
    raw.open(INITIAL_WINDOW_SIZE=0)
    for _ in range(50):
        raw.ask("QueryRoute", message(b""))
    assert works(weir)
    clients.producer(name).send(make(name))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({":path": "/no.such.Service/Call"}, b"12"),
        ({":path": SERVICE + "NoSuchMethod"}, b"12"),
        ({"grpc-encoding": "snappy"}, b"0"),
    ],
)
def test_calls_that_are_not_known_are_answered_by_grpcs_own_status(raw: Raw, headers: Any, status: bytes) -> None:
    raw.open()
    raw.ask("QueryRoute", message(b""), **headers)
    kinds = (h2.events.TrailersReceived, h2.events.ResponseReceived)
    found = raw.until(
        lambda event: isinstance(event, kinds) and any(k == b"grpc-status" for k, _ in event.headers)
    )
    assert dict(found.headers)[b"grpc-status"] == status


METHODS = (
    "SendMessage",
    "ReceiveMessage",
    "AckMessage",
    "Telemetry",
    "EndTransaction",
    "RecallMessage",
    "PullMessage",
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(METHODS), st.binary(max_size=200))
def test_any_body_is_answered(fuzzed: Raw, method: str, body: bytes) -> None:
    stream = fuzzed.ask(method, message(body))
    ends = (h2.events.StreamEnded, h2.events.StreamReset)
    assert fuzzed.until(lambda event: isinstance(event, ends) and event.stream_id == stream) is not None


@pytest.fixture(scope="module")
def fuzzed(weir: UpProcess) -> Any:
    made = Raw(weir.rocketmq)
    made.open()
    yield made
    made.close()
