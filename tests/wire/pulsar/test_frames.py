"""Frames are cut and read whole, and what is wrong with one is a WireError."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import FrameTooLargeError, InvariantError, UnknownVersionError, WireError
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.commands import Type
from weir.wire.pulsar.fast_frames import PING
from weir.wire.pulsar.frames import MAX_FRAME_BYTES, decode_frame, encode_command, encode_with_message, splitter

SEND = api.CommandSend(producer_id=3, sequence_id=5, num_messages=2)
SEND_FRAME = b"".join(encode_with_message(SEND, [b"the ", b"message"]))
FLOW_FRAME = encode_command(api.CommandFlow(consumer_id=1, messagePermits=1000))
CONNECT_FRAME = encode_command(api.CommandConnect(client_version="test"))


def body(frame: bytes) -> memoryview:
    return memoryview(frame)[4:]


def framed(command: bytes, behind: bytes = b"") -> memoryview:
    return memoryview(len(command).to_bytes(4, "big") + command + behind)


@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_frames_are_the_same_however_the_bytes_arrive(cuts: list[int]) -> None:
    data = SEND_FRAME + FLOW_FRAME + PING + CONNECT_FRAME + SEND_FRAME
    split = splitter()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    bodies = [b for start, end in itertools.pairwise(edges) for b in split.feed(data[start:end])]

    frames = [decode_frame(b) for b in bodies]

    assert [frame.type for frame in frames] == [Type.SEND, Type.FLOW, Type.PING, Type.CONNECT, Type.SEND]
    assert frames[0].command == SEND
    assert frames[0].message == frames[4].message == b"the message"
    assert split.at_boundary


def test_a_message_is_a_slice_of_the_receive_buffer() -> None:
    received = bytearray(FLOW_FRAME + SEND_FRAME)
    _, send = (decode_frame(b) for b in splitter().feed(received))
    received[-1:] = b"!"
    assert send.message == b"the messag!"


def test_a_torn_frame_waits() -> None:
    split = splitter()
    assert list(split.feed(SEND_FRAME[:-1])) == []
    assert not split.at_boundary
    assert len(list(split.feed(SEND_FRAME[-1:]))) == 1


def test_a_frame_over_the_limit_is_refused_by_its_first_four_bytes() -> None:
    with pytest.raises(FrameTooLargeError):
        list(splitter().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))
    assert list(splitter().feed(MAX_FRAME_BYTES.to_bytes(4, "big"))) == []


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(memoryview(b""), id="nothing"),
        pytest.param(memoryview(b"\0\0\0"), id="half a size"),
        pytest.param(framed(b""), id="no command"),
        pytest.param(body(SEND_FRAME)[:12], id="a command longer than its frame"),
        pytest.param(memoryview(b"\xff\xff\xff\xff" + bytes(body(SEND_FRAME))[4:]), id="a huge command size"),
        pytest.param(memoryview(bytes(body(FLOW_FRAME)) + b"x"), id="bytes behind a flow"),
        pytest.param(memoryview(bytes(body(FLOW_FRAME)) + b"\xa8\x06\x01"), id="a later field behind a flow"),
        pytest.param(memoryview(bytes(body(CONNECT_FRAME)) + b"x"), id="bytes behind a connect"),
        pytest.param(framed(b"\x08\x06"), id="a type whose command is missing"),
        pytest.param(framed(b"\x08\x07\x32\x04\x08\x01\x10\x01"), id="a type and another command"),
        pytest.param(framed(b"\x32\x04\x08\x01\x10\x01"), id="no type"),
        pytest.param(framed(b"\x08\x06\x32\x02\x08\x01"), id="a required field is missing, in a short envelope"),
        pytest.param(framed(b"\x08\x17\xba\x01\x03\x0a\x01t"), id="a required field is missing, in a long one"),
        pytest.param(framed(b"\x08\x06\x32\x03\x08\x01\x10"), id="a number that ends early"),
        pytest.param(framed(b"\x08\x0e\x72\x07\x08\x01\x10\x00\x1a\x01\xff"), id="text that is not UTF-8"),
        pytest.param(framed(b"\x08\x06\x32\x7f\x08\x01\x10\x01"), id="a length beyond the command"),
    ],
)
def test_what_is_not_a_frame_is_a_wire_error(wrong: memoryview) -> None:
    with pytest.raises(WireError):
        decode_frame(wrong)


def test_a_command_from_a_later_protocol_is_named() -> None:
    with pytest.raises(UnknownVersionError, match="70"):
        decode_frame(framed(b"\x08\x46\xb2\x04\x02\x08\x01"))


def test_unknown_fields_of_a_known_command_are_ignored() -> None:
    later = b"\x08\x01\x10\x02\xa8\x06\x01"  # field 101
    frame = decode_frame(framed(b"\x08\x0b\x5a" + bytes([len(later)]) + later))
    assert frame.command.messagePermits == 2  # type: ignore[attr-defined]


def test_an_envelope_in_an_unusual_form_means_the_same() -> None:
    send = SEND.SerializeToString()
    turned = b"\x32" + bytes([len(send)]) + send + b"\x08\x06"
    long_length = b"\x08\x06\x32" + bytes([len(send) | 0x80, 0]) + send
    for envelope in (turned, long_length):
        frame = decode_frame(framed(envelope, b"message"))
        assert (frame.type, frame.command, frame.message) == (Type.SEND, SEND, b"message")


def test_a_command_that_carries_a_message_is_not_sent_without() -> None:
    with pytest.raises(InvariantError):
        encode_command(SEND)
