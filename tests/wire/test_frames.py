"""Frames out of receive buffers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import FrameTooLargeError
from weir.wire.node.frames import FrameSplitter


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "little") + body for body in bodies)


@given(st.lists(st.binary(max_size=60), max_size=12), st.data())
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    bodies: list[bytes], data: st.DataObject
) -> None:
    stream = framed(*bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    splitter = FrameSplitter(60)
    got: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += [bytes(frame) for frame in splitter.feed(stream[start:end])]
    assert got == bodies
    assert splitter.at_boundary


def test_frames_that_lie_whole_in_a_buffer_are_slices_of_it() -> None:
    buffer = bytearray(framed(b"one", b"two"))
    one, two = FrameSplitter(10).feed(buffer)
    assert one.obj is buffer
    assert two.obj is buffer


def test_frames_after_a_torn_one_are_slices_of_their_buffer() -> None:
    splitter = FrameSplitter(10)
    stream = framed(b"torn", b"whole")
    assert list(splitter.feed(stream[:6])) == []
    rest = bytearray(stream[6:])
    torn, whole = splitter.feed(rest)
    assert bytes(torn) == b"torn"
    assert torn.obj is not rest
    assert whole.obj is rest


def test_a_frame_over_the_limit_is_refused_by_its_announcement_alone() -> None:
    splitter = FrameSplitter(100)
    with pytest.raises(FrameTooLargeError, match="101"):
        list(splitter.feed((101).to_bytes(4, "little")))


def test_a_frame_over_the_limit_is_refused_when_its_announcement_is_torn() -> None:
    splitter = FrameSplitter(100)
    assert list(splitter.feed(b"\x65\x00")) == []
    with pytest.raises(FrameTooLargeError, match="101"):
        list(splitter.feed(b"\x00\x00"))


def test_the_limit_can_grow_once_the_peer_is_known() -> None:
    splitter = FrameSplitter(4)
    frames = splitter.feed(framed(b"helo", b"12345678"))
    assert bytes(next(frames)) == b"helo"
    splitter.limit = 8
    assert [bytes(frame) for frame in frames] == [b"12345678"]


def test_what_is_held_grows_with_what_came_and_not_with_what_was_announced() -> None:
    splitter = FrameSplitter(2**30)
    assert list(splitter.feed((2**30).to_bytes(4, "little") + b"x")) == []
    assert len(splitter._torn) == 5
    assert not splitter.at_boundary


def test_frames_before_one_that_is_too_large_are_given_out_first() -> None:
    frames = FrameSplitter(4).feed(framed(b"fine", b"too large"))
    assert bytes(next(frames)) == b"fine"
    with pytest.raises(FrameTooLargeError):
        next(frames)


def test_large_torn_frames_share_memory_only_when_nobody_looks_at_them_any_more() -> None:
    splitter = FrameSplitter(limit=1 << 20)
    texts = [bytes([number]) * (40_000 + 7_000 * number) for number in range(30)]
    stream = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    kept: list[memoryview] = []
    passing = []
    for at in range(0, len(stream), 30_000):
        for number, frame in enumerate(splitter.feed(stream[at : at + 30_000]), len(passing)):
            passing.append(bytes(frame))
            if number % 2:
                kept.append(frame)  # many more than there are rooms
            del frame
    assert passing == texts
    assert [bytes(frame) for frame in kept] == texts[1::2]


def test_a_very_large_frame_comes_out_whole_and_its_memory_goes_back() -> None:
    splitter = FrameSplitter(1 << 26)
    body = bytes(range(256)) * (80 * 1024) + b"end"
    stream = framed(b"first", body, b"last")
    got = []
    for at in range(0, len(stream), 300_000):
        for frame in splitter.feed(stream[at : at + 300_000]):
            got.append(bytes(frame))
            del frame
        if at + 300_000 < len(body):
            assert splitter.announced == len(body)
    assert got == [b"first", body, b"last"]
    assert splitter.at_boundary
