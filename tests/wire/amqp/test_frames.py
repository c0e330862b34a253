"""Frames: cut out of any receive buffers without copying, refused with the right code, never over the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import AmqpError, AmqpHeaderError
from weir.wire.amqp.frames import BODY, HEARTBEAT_FRAME, PROTOCOL_HEADER, FrameSplitter, Role


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


frames = st.tuples(st.sampled_from([1, 2, 3, 8]), st.integers(0, 65535), st.binary(max_size=30))


@given(st.lists(frames, max_size=5), st.data())
def test_any_cut_of_a_stream_gives_the_same_frames(
    found: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    stream = PROTOCOL_HEADER + b"".join(frame(*one) for one in found)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    splitter = FrameSplitter(Role.SERVER)
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += [(kind, channel, bytes(payload)) for kind, channel, payload in splitter.feed(stream[start:end])]
    assert got == found
    assert splitter.at_boundary


def test_a_frame_in_one_buffer_is_a_slice_of_it_whatever_was_torn_before() -> None:
    splitter = FrameSplitter(Role.CLIENT)
    torn, whole = frame(BODY, 1, b"torn"), frame(BODY, 1, b"whole")
    assert not list(splitter.feed(torn[:6]))
    assert not splitter.at_boundary
    received = torn[6:] + whole
    assert [view.obj is received for _, _, view in splitter.feed(received)] == [False, True]


def test_a_server_knows_one_protocol_and_says_so_at_the_first_wrong_byte() -> None:
    for opening in (b"AMQP\x00\x01\x00\x00", b"AMQP\x01\x01\x08\x00", b"GET / HTTP/1.1", b"AMQX"):
        with pytest.raises(AmqpHeaderError, match="0-9-1"):
            list(FrameSplitter(Role.SERVER).feed(opening))
    slow = FrameSplitter(Role.SERVER)
    for byte in PROTOCOL_HEADER:
        assert not list(slow.feed(bytes([byte])))
    assert [kind for kind, _, _ in slow.feed(HEARTBEAT_FRAME)] == [8]


def test_a_client_hears_that_its_server_speaks_another_protocol() -> None:
    with pytest.raises(AmqpHeaderError, match="another protocol"):
        list(FrameSplitter(Role.CLIENT).feed(b"AMQP\x03\x01\x00\x00"))


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (frame(BODY, 1, b"x" * 101), "101 bytes"),
        (b"\x03\x00\x01\xff\xff\xff\xff", "4294967295 bytes"),
        (frame(4, 1, b""), "unknown type 4"),
        (frame(BODY, 1, b"x")[:-1] + b"\xcd", "0xcd"),
    ],
)
def test_what_is_no_frame_is_a_frame_error_behind_the_frames_before_it(wrong: bytes, why: str, step: int) -> None:
    splitter = FrameSplitter(Role.CLIENT, frame_max=100)
    stream = frame(BODY, 1, b"x" * 100) + wrong
    got = 0
    with pytest.raises(AmqpError, match=why) as refused:
        for at in range(0, len(stream), step):
            for _ in splitter.feed(stream[at : at + step]):
                got += 1
    assert (got, refused.value.code) == (1, 501)


def test_a_torn_frame_is_held_as_far_as_it_came_and_the_limit_may_grow() -> None:
    splitter = FrameSplitter(Role.CLIENT, frame_max=10)
    splitter.frame_max = 1 << 20
    whole = frame(BODY, 1, b"x" * (1 << 20))
    assert not list(splitter.feed(whole[:100]))
    assert len(splitter._torn) == 100
    assert [len(payload) for _, _, payload in splitter.feed(whole[100:])] == [1 << 20]
    assert not list(splitter.feed(whole[:100]))
    splitter.forget()
    assert splitter.at_boundary
