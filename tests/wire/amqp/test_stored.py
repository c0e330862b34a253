"""Stored messages of AMQP go out as they came, opened or not; those that are alike are encoded by a template."""

from hypothesis import given
from hypothesis import strategies as st

from weir.model.messages import Message
from weir.testing.codecs.amqp_strategies import properties as some_properties
from weir.wire.amqp.content import stored_outgoing
from weir.wire.amqp.message import message_of, outgoing_of
from weir.wire.amqp.methods import basic
from weir.wire.amqp.properties import Properties
from weir.wire.formats.messages import MessageTemplate, encode_message, encode_messages

NOW = 1_800_000_000_000
PUBLISH = basic.Publish("exchange", "key")

messages = st.lists(
    st.tuples(some_properties, st.lists(st.binary(max_size=20), min_size=1, max_size=3)), max_size=4
)


@given(messages)
def test_they_are_those_that_opening_each_gives(said: list[tuple[Properties, list[bytes]]]) -> None:
    every = [message_of(PUBLISH, one, body, NOW + n) for one, bodies in said for n, body in enumerate(bodies)]
    found = stored_outgoing(encode_messages(every))
    if any(message.value is None for message in every):
        assert found is None
    else:
        assert found is not None
        expected = [outgoing_of(message, "q") for message in every]
        assert [(o.envelope, o.header, bytes(o.body)) for o in found] == [
            (o.envelope, o.header, bytes(o.body)) for o in expected
        ]


@given(messages, st.integers(0, 400), st.integers(1, 255))
def test_what_is_damaged_is_opened_the_long_way_or_the_same(
    said: list[tuple[Properties, list[bytes]]], at: int, change: int
) -> None:
    data = bytearray(encode_messages([message_of(PUBLISH, one, b"x", NOW) for one, _ in said]))
    data[at % len(data)] ^= change
    stored_outgoing(bytes(data))  # whatever it says, it raises nothing


def test_messages_of_other_protocols_are_not_taken_for_its_own() -> None:
    ours = message_of(PUBLISH, Properties(), b"x", NOW)
    theirs = Message(b"key", b"x", publish_ms=NOW)
    other = Message(None, b"x", publish_ms=NOW, native=("mqtt", b"\x01\x00\x00"))
    assert stored_outgoing(encode_messages([ours, theirs])) is None
    assert stored_outgoing(encode_messages([ours, other])) is None
    assert stored_outgoing(b"\x09" + encode_messages([ours])[1:]) is None
    assert stored_outgoing(encode_messages([ours]) + b"x") is None


@given(some_properties, st.lists(st.binary(max_size=20), max_size=3), st.integers(0, NOW))
def test_a_template_encodes_as_each_alone(properties: Properties, bodies: list[bytes], at_ms: int) -> None:
    message = message_of(PUBLISH, properties, b"some", 0)
    template = MessageTemplate(message)
    expected = [
        encode_message(
            Message(
                message.key, body, message.headers, message.event_ms, at_ms, message.ordering_key, message.native
            )
        )
        for body in bodies
    ]
    assert template.encode_all(bodies, at_ms) == expected
    assert [template.encode(body, at_ms) for body in bodies] == expected
