"""Acknowledgements that lie one after the other are taken at a glance, exactly as they are taken one by one."""

from hypothesis import given
from hypothesis import strategies as st

from weir.wire.amqp.command_reader import CommandReader
from weir.wire.amqp.frames import PROTOCOL_HEADER, Role, begins_with_ack, take_acks
from weir.wire.amqp.methods import Method, basic, encode_method

methods = st.one_of(
    st.builds(basic.Ack, st.integers(0, 2**64 - 1), st.booleans()),
    st.builds(basic.Ack, st.integers(1, 50)),
    st.builds(basic.Nack, st.integers(1, 50)),
    st.just(basic.Recover(True)),
)


def reader() -> CommandReader:
    made = CommandReader(Role.SERVER)
    assert list(made.feed(PROTOCOL_HEADER)) == []
    return made


@given(
    st.lists(st.tuples(st.sampled_from([1, 1, 1, 2047]), methods), max_size=20),
    st.lists(st.integers(1, 60), max_size=10),
    st.integers(1, 30),
)
def test_they_are_the_same_as_one_by_one_however_they_are_cut(
    said: list[tuple[int, Method]], cuts: list[int], most: int
) -> None:
    data = b"".join(encode_method(channel, method) for channel, method in said)
    made, found = reader(), []
    at = 0
    for step in (*cuts, len(data)):
        begun, view = made.resume(data[at : at + step])
        at += step
        found += [(one.channel, one.method) for one in begun]
        while begins_with_ack(view):
            channel, tags, end = take_acks(view, most)
            assert len(tags) <= most
            if not tags:
                break
            found += [(channel, basic.Ack(tag)) for tag in tags]
            view = view[end:]
        found += [(one.channel, one.method) for one in made.feed(view)]
    assert found == said


@given(st.binary(max_size=64))
def test_what_is_no_acknowledgement_is_left_where_it_is(data: bytes) -> None:
    view = memoryview(data)
    if not begins_with_ack(view) or len(data) < 21:
        assert take_acks(view, 10)[1:] == ([], 0)


def test_channel_0_has_none() -> None:
    frame = bytearray(encode_method(1, basic.Ack(7)))
    frame[1:3] = b"\x00\x00"
    assert take_acks(memoryview(frame), 10)[1:] == ([], 0)
