"""Contents that go out: encoded once for many receivers, split by what each of them takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import AmqpError, WireError
from weir.model.ids import Buffer
from weir.testing.codecs.amqp_strategies import properties as some_properties
from weir.testing.codecs.amqp_strategies import short_texts
from weir.wire.amqp.command_reader import Command, CommandReader
from weir.wire.amqp.content import (
    COPIED_BYTES,
    Deliveries,
    envelope,
    get_ok,
    opened_envelope,
    outgoing,
    publish,
    returned,
)
from weir.wire.amqp.frames import BODY, FrameSplitter, ReplyCode, Role
from weir.wire.amqp.methods import basic
from weir.wire.amqp.properties import NO_PROPERTIES, Properties, encode_properties


def read(*sent: list[Buffer]) -> list[Command]:
    reader = CommandReader(Role.CLIENT, frame_max=1 << 20)
    found = list(reader.feed(b"".join(piece for pieces in sent for piece in pieces)))
    assert reader.at_boundary
    return found


@given(some_properties, st.binary(max_size=60), st.sampled_from([0, 9, 20, 4096]), short_texts, short_texts)
def test_a_client_reads_what_was_delivered_got_and_returned(
    properties: Properties, body: bytes, frame_max: int, exchange: str, key: str
) -> None:
    message = outgoing(envelope(exchange, key), encode_properties(properties), body)
    found = read(
        Deliveries(5, "tag", frame_max).frames(7, True, message),
        get_ok(6, 8, False, message, left=3, frame_max=frame_max),
        returned(7, ReplyCode.NO_ROUTE, "NO_ROUTE", message, frame_max),
    )
    assert [(one.channel, one.method) for one in found] == [
        (5, basic.Deliver("tag", 7, True, exchange, key)),
        (6, basic.GetOk(8, False, exchange, key, 3)),
        (7, basic.Return(312, "NO_ROUTE", exchange, key)),
    ]
    assert all(one.properties == properties and bytes(one.body or b"") == body for one in found)
    assert opened_envelope(message.envelope) == (exchange, key)


@pytest.mark.parametrize(
    ("size", "frame_max", "bodies"),
    [(0, 4096, []), (4088, 4096, [4088]), (4089, 4096, [4088, 1]), (8176, 4096, [4088, 4088]), (9000, 0, [9000])],
)
def test_a_body_is_split_so_that_whole_frames_have_at_most_frame_max(
    size: int, frame_max: int, bodies: list[int]
) -> None:
    sent = b"".join(publish(1, basic.Publish("e", "r"), NO_PROPERTIES, bytes(size), frame_max))
    found = FrameSplitter(Role.CLIENT, 1 << 20).feed(sent)
    assert [len(payload) for kind, _, payload in found if kind == BODY] == bodies


def test_all_receivers_share_the_bytes_of_a_large_body_and_a_small_one_is_one_buffer() -> None:
    body = bytes(COPIED_BYTES + 1)
    message = outgoing(envelope("fan", ""), NO_PROPERTIES, body)
    for at in range(1, 4):
        assert Deliveries(at, f"tag-{at}", 0).frames(1, False, message)[1] is body
        pieces = Deliveries(at, f"tag-{at}", 1000).frames(1, False, message)[1::2]
        assert all(isinstance(piece, memoryview) and piece.obj is body for piece in pieces)
    small = outgoing(envelope("fan", ""), NO_PROPERTIES, bytes(COPIED_BYTES))
    assert len(Deliveries(1, "tag", 0).frames(1, False, small)) == 1


def test_what_cannot_be_sent_is_an_error_of_ours() -> None:
    message = outgoing(envelope("", "q"), NO_PROPERTIES, b"body")
    for wrong in (
        lambda: envelope("e" * 256, ""),
        lambda: Deliveries(1, "t" * 256, 0),
        lambda: Deliveries(1 << 16, "t", 0).frames(1, False, message),
        lambda: Deliveries(1, "t", 8).frames(1, False, message),
    ):
        with pytest.raises(AmqpError) as refused:
            wrong()
        assert refused.value.code == ReplyCode.INTERNAL_ERROR


@pytest.mark.parametrize("wrong", [b"", b"\x01", b"\x01e", b"\x01e\x02r", b"\x01e\x01rx", b"\x01\xff\x00"])
def test_an_envelope_that_is_none_is_refused(wrong: bytes) -> None:
    with pytest.raises(WireError):
        opened_envelope(wrong)
