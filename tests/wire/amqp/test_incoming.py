"""Commands: methods with their contents, of many channels at once, held within bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import AmqpError
from weir.testing.codecs.amqp_strategies import properties as some_properties
from weir.wire.amqp.command_reader import Command, CommandReader
from weir.wire.amqp.content import publish
from weir.wire.amqp.frames import BODY, HEAD, HEADER, HEARTBEAT, HEARTBEAT_FRAME, PROTOCOL_HEADER, Role
from weir.wire.amqp.methods import Method, basic, channel, connection, encode_method, queue
from weir.wire.amqp.properties import NO_PROPERTIES, Properties, encode_properties

PUBLISH = basic.Publish("e", "r")


def server(**limits: int) -> CommandReader:
    reader = CommandReader(Role.SERVER, **limits)
    assert not list(reader.feed(PROTOCOL_HEADER))
    return reader


def frame(kind: int, at: int, payload: bytes) -> bytes:
    return HEAD.pack(kind, at, len(payload)) + payload + b"\xce"


def header(at: int, size: int, properties: bytes = NO_PROPERTIES, class_id: int = 60, weight: int = 0) -> bytes:
    payload = class_id.to_bytes(2, "big") + weight.to_bytes(2, "big") + size.to_bytes(8, "big") + properties
    return frame(HEADER, at, payload)


def refusal(reader: CommandReader, *sent: bytes) -> AmqpError:
    with pytest.raises(AmqpError) as refused:
        list(reader.feed(b"".join(sent)))
    return refused.value


def bodies(found: list[Command]) -> list[tuple[int, bytes | None]]:
    return [(one.channel, None if one.body is None else bytes(one.body)) for one in found]


@given(some_properties, st.binary(max_size=60), st.integers(9, 40), st.data())
def test_a_published_message_comes_as_it_was_sent_however_it_is_cut(
    properties: Properties, body: bytes, frame_max: int, data: st.DataObject
) -> None:
    raw = encode_properties(properties)
    stream = b"".join(publish(3, PUBLISH, raw, body, frame_max)) + encode_method(3, channel.Close(200))
    reader = server()
    cut = data.draw(st.integers(0, len(stream)))
    found = [*reader.feed(stream[:cut]), *reader.feed(stream[cut:])]
    assert [(one.channel, one.method, one.properties, one.header) for one in found] == [
        (3, PUBLISH, properties, raw),
        (3, channel.Close(200), None, None),
    ]
    assert bodies(found) == [(3, body), (3, None)]
    assert (reader.held_bytes, reader.at_boundary) == (0, True)


def test_a_body_in_one_frame_is_a_slice_of_the_receive_buffer() -> None:
    received = b"".join(publish(1, PUBLISH, NO_PROPERTIES, b"whole", 4096))
    (command,) = server().feed(received)
    assert isinstance(command.body, memoryview)
    assert command.body.obj is received


def test_contents_of_several_channels_lie_between_one_another() -> None:
    reader = server()
    method = [encode_method(at, PUBLISH) for at in range(3)]
    piece = [frame(BODY, at, b"%d" % at * 5) for at in range(3)]
    stream = [method[1], method[2], header(2, 10), piece[2], header(1, 10), HEARTBEAT_FRAME, piece[1], piece[1]]
    assert bodies(list(reader.feed(b"".join([*stream, encode_method(7, basic.Ack(1))])))) == [
        (1, b"1" * 10),
        (7, None),
    ]
    assert reader.held_bytes == 5
    assert bodies(list(reader.feed(piece[2]))) == [(2, b"2" * 10)]


def test_what_is_out_of_turn_is_an_unexpected_frame_of_the_method_it_interrupts() -> None:
    method, body = encode_method(1, PUBLISH), frame(BODY, 1, b"x")
    for sent in (
        [body],
        [header(1, 1)],
        [method, body],
        [method, method],
        [method, header(1, 2), method],
        [method, header(1, 2), header(1, 2)],
        [method, header(1, 2), body, encode_method(1, channel.Close(200))],
        [method, header(1, 1, class_id=50)],
        [method, header(1, 1, weight=1)],
        [frame(HEARTBEAT, 1, b"")],
    ):
        wrong = refusal(server(), *sent)
        assert wrong.code == 505
        assert (wrong.class_id, wrong.method_id) == ((60, 40) if sent[0] is method else (0, 0))


def test_frames_that_cannot_be_are_frame_errors() -> None:
    method = encode_method(1, PUBLISH)
    assert refusal(server(), method, frame(HEADER, 1, b"\x00\x3c")).code == 501
    assert refusal(server(), method, header(1, 3), frame(BODY, 1, b"four")).code == 501
    assert refusal(server(), method, header(1, 1 << 63)).code == 501
    assert refusal(server(), frame(HEARTBEAT, 0, b"x")).code == 501
    assert refusal(server(), frame(1, 1, b"\x00")).code == 501
    wrong = refusal(server(), method, header(1, 0, b"\x80\x00\xff"))
    assert (wrong.code, wrong.class_id, wrong.method_id) == (502, 60, 40)


@pytest.mark.parametrize(
    ("role", "at", "method", "code"),
    [
        (Role.SERVER, 1, basic.ConsumeOk("t"), 503),
        (Role.SERVER, 0, connection.Start(), 503),
        (Role.CLIENT, 1, PUBLISH, 503),
        (Role.SERVER, 1, connection.Close(200), 503),
        (Role.SERVER, 0, queue.Declare("q"), 504),
        (Role.SERVER, 0, PUBLISH, 504),
        (Role.SERVER, 11, channel.Open(), 504),
    ],
    ids=str,
)
def test_methods_come_from_whom_and_where_they_may(role: Role, at: int, method: Method, code: int) -> None:
    reader = CommandReader(role, channel_max=10)
    opening = PROTOCOL_HEADER if role is Role.SERVER else b""
    wrong = refusal(reader, opening, encode_method(at, method))
    assert (wrong.code, wrong.class_id, wrong.method_id) == (code, method.class_id, method.method_id)


def test_a_body_over_the_limit_is_read_to_its_end_and_never_kept() -> None:
    reader = server(max_body=10)
    method = encode_method(1, PUBLISH)
    assert not list(reader.feed(method + header(1, 11) + frame(BODY, 1, b"x" * 6)))
    assert reader.held_bytes == 0
    (command,) = reader.feed(frame(BODY, 1, b"x" * 5))
    assert (command.method, command.size, command.body, reader.held_bytes) == (PUBLISH, 11, None, 0)
    assert bodies(list(reader.feed(method + header(1, 10) + frame(BODY, 1, b"y" * 10)))) == [(1, b"y" * 10)]
    # Its channel was closed for another reason, and the client stopped in the middle.
    assert len(list(reader.feed(method + header(1, 11) + encode_method(1, channel.CloseOk())))) == 1
    assert reader.at_boundary


def test_unfinished_contents_together_are_bounded() -> None:
    reader = server(max_body=100, max_held=150)
    for at in (1, 2):
        assert not list(reader.feed(encode_method(at, PUBLISH) + header(at, 100) + frame(BODY, at, b"x" * 70)))
    assert reader.held_bytes == 140
    reader.forget_channel(1)
    assert reader.held_bytes == 70
    wrong = refusal(reader, encode_method(3, PUBLISH), header(3, 100), frame(BODY, 3, b"x" * 90))
    assert wrong.code == 506
    reader.forget()
    assert (reader.held_bytes, reader.at_boundary) == (0, True)


def test_a_body_of_tiny_pieces_does_not_keep_their_receive_buffers() -> None:
    reader = server()
    assert not list(reader.feed(encode_method(1, PUBLISH) + header(1, 100)))
    for _ in range(99):
        assert not list(reader.feed(frame(BODY, 1, b"x") + HEARTBEAT_FRAME * 100))
    assert reader.held_bytes == 99
    assert bodies(list(reader.feed(frame(BODY, 1, b"y")))) == [(1, b"x" * 99 + b"y")]


def test_what_publishers_repeat_is_remembered_and_never_more_than_a_little() -> None:
    reader = server()
    raw = encode_properties(Properties(content_type="text/plain"))
    first, second = reader.feed(b"".join(publish(1, PUBLISH, raw, b"x", 4096)) * 2)
    assert first.method is second.method
    assert first.properties is second.properties
    for number in range(1000):
        raw = encode_properties(Properties(message_id=str(number)))
        (one,) = reader.feed(b"".join(publish(1, basic.Publish("e", str(number)), raw, b"x", 4096)))
        assert (one.method, one.properties) == (
            basic.Publish("e", str(number)),
            Properties(message_id=str(number)),
        )
    assert len(reader._publishes) <= 64
    assert len(reader._properties) <= 64
