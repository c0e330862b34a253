"""Publishes that are alike are taken at a glance, exactly as they are taken one by one."""

from hypothesis import given
from hypothesis import strategies as st

from weir.testing.codecs.amqp_strategies import properties as some_properties
from weir.wire.amqp.command_reader import Command, CommandReader
from weir.wire.amqp.content import publish
from weir.wire.amqp.frames import PROTOCOL_HEADER, Role
from weir.wire.amqp.methods import basic, encode_method
from weir.wire.amqp.properties import NO_PROPERTIES, Properties, encode_properties

FRAME_MAX = 4096
LIMITS = {"count": 1000, "size": 1 << 20, "limit": FRAME_MAX - 8}


def reader() -> CommandReader:
    made = CommandReader(Role.SERVER, frame_max=FRAME_MAX)
    assert list(made.feed(PROTOCOL_HEADER)) == []
    return made


def sent(method: basic.Publish, raw: bytes, body: bytes, channel: int = 1) -> bytes:
    return b"".join(map(bytes, publish(channel, method, raw, body, FRAME_MAX)))


def taken(made: CommandReader, data: bytes) -> list[tuple[int, object, bytes | None, bytes]]:
    """All that comes, at a glance where that is possible."""
    found: list[Command] = []
    begun, view = made.resume(data)
    found += begun
    while (plain := made.plain_publishes()) is not None:
        bodies, at = plain.take(view, 0, **LIMITS)
        if not bodies:
            break
        found += [Command(plain.channel, plain.method, plain.properties, plain.header, body) for body in bodies]
        view = view[at:]
    found += made.feed(view)
    return [(one.channel, one.method, one.header, bytes(one.body or b"")) for one in found]


publishes = st.tuples(
    st.sampled_from([basic.Publish("", "q"), basic.Publish("x", "q", True)]),
    st.sampled_from([NO_PROPERTIES, encode_properties(Properties(delivery_mode=2))]),
    st.one_of(st.binary(max_size=30), st.just(b"long" * 2000), st.just(b"\xce\x01\x00\x01")),
    st.sampled_from([1, 1, 1, 2]),
)


@given(st.lists(publishes, max_size=12), some_properties, st.lists(st.integers(1, 400), max_size=8))
def test_they_are_the_same_as_one_by_one_however_they_are_cut(
    said: list[tuple[basic.Publish, bytes, bytes, int]], properties: Properties, cuts: list[int]
) -> None:
    raw = encode_properties(properties)
    alike = [(basic.Publish("e", "k"), raw, b"%d" % n, 3) for n in range(4)]
    data = b"".join(sent(*one) for one in (*alike, *said, *alike))
    data += encode_method(1, basic.Ack(1))
    by_glance, one_by_one = reader(), reader()
    expected = [(c.channel, c.method, c.header, bytes(c.body or b"")) for c in one_by_one.feed(data)]
    found, at = [], 0
    for cut in (*cuts, len(data)):
        found += taken(by_glance, data[at : at + cut])
        at += cut
    found += taken(by_glance, data[at:])
    assert found == expected
    assert by_glance.at_boundary


def test_two_that_are_alike_make_a_pattern_and_the_rest_are_taken_with_it() -> None:
    made, method = reader(), basic.Publish("", "q")
    one = [sent(method, NO_PROPERTIES, b"%d" % n) for n in range(5)]
    assert len(list(made.feed(b"".join(one[:3])))) == 3
    plain = made.plain_publishes()
    assert plain is not None
    data = memoryview(b"".join(one[3:]) + one[0][:-1])
    bodies, at = plain.take(data, 0, **LIMITS)
    assert ([bytes(body) for body in bodies], at) == ([b"3", b"4"], len(one[3]) + len(one[4]))


def test_a_frame_that_ends_wrong_or_is_too_long_is_left_for_the_reader() -> None:
    made, method = reader(), basic.Publish("", "q")
    good = sent(method, NO_PROPERTIES, b"body")
    list(made.feed(good * 3))
    plain = made.plain_publishes()
    assert plain is not None
    assert plain.take(memoryview(good[:-1] + b"\x00"), 0, **LIMITS) == ([], 0)
    assert plain.take(memoryview(good), 0, **{**LIMITS, "limit": 3}) == ([], 0)
    wrong = bytearray(good)
    wrong[-9] ^= 1  # the body's frame says another size than the header
    assert plain.take(memoryview(wrong), 0, **LIMITS) == ([], 0)
