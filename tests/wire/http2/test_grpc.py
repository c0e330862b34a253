"""gRPC's framing: messages in pieces, compression, deadlines and statuses."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.wire.http2 import grpc
from weir.wire.http2.grpc import GrpcError, GrpcStatus, MessageReader


@given(st.lists(st.binary(max_size=50)), st.integers(1, 30))
def test_messages_are_found_however_their_body_is_cut(messages: list[bytes], cut: int) -> None:
    body = b"".join(map(grpc.message, messages))
    reader, found = MessageReader(100), []
    for at in range(0, len(body), cut):
        found += [bytes(one) for one in reader.feed(body[at : at + cut])]
    assert (found, reader.kept_bytes) == (messages, 0)


def test_a_message_that_is_too_large_is_refused_by_its_first_bytes() -> None:
    with pytest.raises(GrpcError) as refused:
        MessageReader(10).feed(b"\0\0\0\0\x0b")
    assert refused.value.status is GrpcStatus.RESOURCE_EXHAUSTED


def test_gzip_is_opened_if_it_was_announced_and_no_further_than_the_limit() -> None:
    packed = gzip.compress(b"x" * 1000)
    framed = b"\1" + len(packed).to_bytes(4, "big") + packed
    assert MessageReader(1000, b"gzip").feed(framed) == [b"x" * 1000]
    for reader, status in (
        (MessageReader(1000), GrpcStatus.UNIMPLEMENTED),
        (MessageReader(999, b"gzip"), GrpcStatus.RESOURCE_EXHAUSTED),
    ):
        with pytest.raises(GrpcError) as refused:
            reader.feed(framed)
        assert refused.value.status is status


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"3S", 3.0), (b"20m", 0.02), (b"1H", 3600.0), (b"500u", 0.0005), (b"", None), (b"5", None), (b"-1S", None)],
)
def test_a_deadline_is_read(text: bytes, seconds: float | None) -> None:
    assert grpc.timeout_s(text) == seconds
