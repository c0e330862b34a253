"""Plain sends taken at a glance are what protobuf would have found; all others are left to it."""

from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import WeirError
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.fast_frames import PlainSends
from weir.wire.pulsar.frames import MAX_FRAME_BYTES, decode_frame, encode_with_message, splitter
from weir.wire.pulsar.message import parse_metadata, seal_message, split_message

NUMBER = st.one_of(st.integers(0, 2**63 - 1), st.integers(0, 300))
NAME = st.text(max_size=200)
#: Fields that make a send another than a plain one.
COMMAND = st.sampled_from(
    [{}, {}, {"num_messages": 1}, {"num_messages": 2}, {"is_chunk": True}, {"txnid_least_bits": 1}]
)
METADATA = st.sampled_from(
    [
        {},
        {},
        {"uncompressed_size": 1024},
        {"compression": api.NONE, "uncompressed_size": 3},
        {"compression": api.LZ4},
        {"num_messages_in_batch": 1},
        {"num_messages_in_batch": 3},
        {"deliver_at_time": 5},
        {"partition_key": "k"},
        {"num_chunks_from_msg": 2},
    ]
)
SEND = st.tuples(NUMBER, NUMBER, NUMBER, COMMAND, METADATA, st.binary(max_size=50))


def frame(producer_id: int, name: str, sequence: int, sent: tuple = (), **fields: object) -> bytes:  # type: ignore[type-arg]
    number, published, command, metadata, payload = sent or (sequence, 1, {}, {}, b"")
    head = api.MessageMetadata(producer_name=name, sequence_id=number, publish_time=published, **metadata)
    said = api.CommandSend(producer_id=producer_id, sequence_id=sequence, **command)
    return b"".join(encode_with_message(said, seal_message(head, payload)))


def take(
    plain: PlainSends, data: bytes, *, count: int = 1000, size: int = 1 << 30, limit: int = MAX_FRAME_BYTES
) -> tuple:  # type: ignore[type-arg]
    return plain.take(memoryview(data), 0, count=count, size=size, limit=limit)


@given(producer_id=NUMBER, name=NAME, sends=st.lists(SEND, max_size=4), cut=st.integers(0, 60))
def test_what_is_taken_is_what_the_parser_finds(
    producer_id: int,
    name: str,
    sends: list[tuple],
    cut: int,  # type: ignore[type-arg]
) -> None:
    data = b"".join(frame(producer_id, name, sequence, tuple(sent)) for sequence, *sent in sends)
    data = data[: len(data) - cut]
    taken, end = take(PlainSends(producer_id, name), data)
    bodies = list(splitter().feed(data))
    assert end == sum(4 + len(body) for body in bodies[: len(taken)])
    for body, send in zip(bodies, taken, strict=False):
        found = decode_frame(body)
        assert isinstance(found.command, api.CommandSend)
        assert found.message is not None
        assert (found.command.producer_id, found.command.sequence_id) == (producer_id, send.sequence)
        assert bytes(found.message) == send.message
        metadata = parse_metadata(split_message(found.message))
        assert (metadata.num_messages_in_batch, metadata.deliver_at_time, metadata.num_chunks_from_msg) == (
            1,
            0,
            0,
        )
        assert not found.command.HasField("txnid_least_bits")
        assert not found.command.is_chunk


def test_plain_sends_are_taken_up_to_the_first_that_is_none() -> None:
    plain = PlainSends(7, "me")
    one, two = frame(7, "me", 300), frame(7, "me", 301)
    other = frame(8, "me", 302)
    taken, end = take(plain, one + two + other + one)
    assert [send.sequence for send in taken] == [300, 301]
    assert end == len(one + two)


def test_no_more_are_taken_than_are_asked_for() -> None:
    plain, one = PlainSends(7, "me"), frame(7, "me", 1)
    assert len(take(plain, one * 5, count=2)[0]) == 2
    assert len(take(plain, one * 5, size=len(one) + 1)[0]) == 2  # the one that reaches it is the last
    assert take(plain, one, limit=len(one) - 5) == ([], 0)


@given(at=st.integers(0, 200), value=st.integers(0, 255))
def test_a_damaged_send_is_left_to_the_parser(at: int, value: int) -> None:
    data = bytearray(frame(7, "me", 5, (5, 1_700_000_000_000, {}, {}, b"payload" * 9)))
    at %= len(data)
    was, data[at] = data[at], value
    taken, _ = take(PlainSends(7, "me"), bytes(data))
    if was == value:
        assert len(taken) == 1
    for send in taken:
        (body,) = splitter().feed(bytes(data))
        try:
            found = decode_frame(body)
            assert found.message is not None
            split_message(found.message)
        except WeirError as refused:
            raise AssertionError("what the parser refuses is not taken") from refused
        assert isinstance(found.command, api.CommandSend)
        assert found.command.sequence_id == send.sequence
