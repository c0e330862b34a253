"""A message of AMQP is the very same for AMQP, readable for all others, and whole when it comes back from them."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weir.model.batch import Batch, BatchFormat
from weir.model.errors import UnknownVersionError, WireError
from weir.model.messages import Message
from weir.testing.codecs.amqp_strategies import properties as some_properties
from weir.testing.codecs.amqp_strategies import short_texts
from weir.wire.amqp.content import opened_envelope
from weir.wire.amqp.message import message_of, outgoing_of, properties_of
from weir.wire.amqp.methods import basic
from weir.wire.amqp.properties import NAMES, Properties, decode_properties, encode_properties
from weir.wire.amqp.tables import MAX_VALUES, Field, Table
from weir.wire.formats.messages import decode_messages, encode_messages
from weir.wire.formats.table import messages_of, translated

NOW = 1_800_000_000_000
PUBLISH = basic.Publish("e", "r")


def stored(message: Message) -> Batch:
    return Batch(7, 1, BatchFormat.MESSAGES, NOW, encode_messages([message]))


def through(message: Message, form: BatchFormat) -> Message:
    """As a consumer of another protocol gets it, and sends it again."""
    payload = b"".join(translated(stored(message), form).pieces)
    (back,) = messages_of(Batch(7, 1, form, NOW, payload))
    assert back.native is None
    return back


def fields(table: Table | None) -> list[str]:
    return [] if table is None else sorted(map(repr, table.fields))


@given(some_properties, st.binary(max_size=20), short_texts, short_texts)
def test_a_consumer_of_amqp_gets_the_very_same_bytes(
    properties: Properties, body: bytes, exchange: str, key: str
) -> None:
    raw = encode_properties(properties)
    publish = basic.Publish(exchange, key)
    message = message_of(publish, properties, body, NOW, raw)
    assert message == message_of(publish, properties, body, NOW)
    (kept,) = decode_messages(encode_messages([message]))
    out = outgoing_of(kept, "queue")
    assert opened_envelope(out.envelope) == (exchange, key)
    assert (out.header[12:], int.from_bytes(out.header[4:12], "big"), bytes(out.body)) == (raw, len(body), body)


@pytest.mark.parametrize("form", [BatchFormat.KAFKA, BatchFormat.PULSAR])
@example(properties=Properties(timestamp=9223372036854776), body=b"")
@given(properties=some_properties, body=st.binary(max_size=20))
def test_what_amqp_said_survives_other_protocols(form: BatchFormat, properties: Properties, body: bytes) -> None:
    back = through(message_of(PUBLISH, properties, body, NOW), form)
    found = properties_of(back)
    assert bytes(outgoing_of(back, "q").body) == body
    for name in NAMES:
        if name == "headers":
            more = [field for field in fields(found.headers) if "amqp-user-id" not in field]
            assert more == [field for field in fields(properties.headers) if "amqp-user-id" not in field]
        elif name == "timestamp":
            # Kafka's records have a time whoever made them, and Pulsar knows no 1970.
            assert found.timestamp == properties.timestamp or not properties.timestamp
        elif name != "user_id":
            assert getattr(found, name) == getattr(properties, name)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).map("h-".__add__)
blobs = st.binary(max_size=20)
foreign = st.builds(
    Message,
    st.none() | blobs,
    st.none() | blobs,
    st.lists(st.tuples(texts, st.none() | blobs), max_size=4),
    st.none() | st.integers(0, (1 << 63) - 1),
    st.just(NOW),
    st.none() | blobs,
)


@given(foreign)
def test_what_others_said_survives_amqp(message: Message) -> None:
    out = outgoing_of(message, "queue")
    assert opened_envelope(out.envelope) == ("", "queue")
    back = message_of(basic.Publish("", "queue"), decode_properties(out.header[12:]), out.body, NOW)
    told = [(name, value) for name, value in back.headers if name != "amqp-headers"]
    assert replace(back, headers=told, native=None) == message


def test_others_read_what_amqp_says() -> None:
    table = Table.of(
        {
            "key": "k",
            "text": "é",
            "count": 5,
            "flag": True,
            "half": 0.5,
            "price": Field("D", (2, 314)),
            "none": None,
            "raw": b"\xff",
            "list": [1, {"b": b"\xff"}],
        }
    )
    said = Properties("text/plain", "gzip", table, 2, 7, "c", "r", "60000", "m", 1_800_000_000, "t", "u", "a", "z")
    message = message_of(PUBLISH, said, b"body", NOW)
    assert (message.key, message.event_ms, message.publish_ms, message.value) == (b"k", NOW, NOW, b"body")
    assert list(message.headers[:-1]) == [
        ("text", "é".encode()),
        ("count", b"5"),
        ("flag", b"true"),
        ("half", b"0.5"),
        ("price", b"3.14"),
        ("none", None),
        ("raw", b"\xff"),
        ("list", b'[1,{"b":"/w=="}]'),
        ("amqp-content-type", b"text/plain"),
        ("amqp-content-encoding", b"gzip"),
        ("amqp-correlation-id", b"c"),
        ("amqp-reply-to", b"r"),
        ("amqp-expiration", b"60000"),
        ("amqp-message-id", b"m"),
        ("amqp-type", b"t"),
        ("amqp-user-id", b"u"),
        ("amqp-app-id", b"a"),
        ("amqp-cluster-id", b"z"),
        ("amqp-delivery-mode", b"2"),
        ("weir-priority", b"7"),
    ]
    assert message.headers[-1][0] == "amqp-headers"


def test_nothing_is_said_that_nobody_said() -> None:
    assert list(message_of(PUBLISH, Properties(), b"", NOW).headers) == []
    plain = message_of(PUBLISH, Properties(headers=Table.of({"a": "b"})), b"", NOW)
    assert (plain.headers, plain.key, plain.event_ms, plain.value) == ([("a", b"b")], None, None, b"")
    assert properties_of(Message(None, b"v")) == Properties()


def test_a_kafka_message_has_its_key_time_headers_and_priority() -> None:
    said = [("h", b"x"), ("h", b"\xff"), ("n", None), ("weir-priority", b"5"), ("amqp-type", b"order")]
    found = properties_of(Message(b"k", b"v", said, event_ms=1_500))
    assert (found.priority, found.timestamp, found.type) == (5, 1, "order")
    assert found.headers == Table.of(
        [
            ("key", "k"),
            ("h", "x"),
            ("h", b"\xff"),
            ("n", None),
            ("weir-event-ms", Field("l", 1500)),
        ]
    )
    assert properties_of(Message(b"k", None)).headers == Table.of({"key": "k", "weir-null-value": True})


def test_headers_that_are_no_properties_stay_headers() -> None:
    said: list[tuple[str, bytes | None]] = [
        ("weir-priority", b"high"),
        ("weir-priority", b"256"),
        ("amqp-delivery-mode", None),
        ("amqp-type", b"x" * 256),
        ("amqp-user-id", b"admin"),
        ("amqp-headers", b"?"),
        ("amqp-app-id", b"one"),
        ("amqp-app-id", b"two"),
    ]
    found = properties_of(Message(None, b"v", said))
    assert found.headers is not None
    assert len(found.headers) == 7
    assert replace(found, headers=None) == Properties(app_id="one")


def test_a_header_that_was_changed_on_the_way_is_text_and_the_others_have_their_types() -> None:
    message = message_of(PUBLISH, Properties(headers=Table.of({"a": 1, "b": 2})), b"", NOW)
    changed = [(name, b"7" if name == "a" else value) for name, value in message.headers]
    found = properties_of(replace(message, headers=changed, native=None)).headers
    assert found == Table.of({"a": "7", "b": 2})


def test_names_that_are_too_long_for_amqp_come_back() -> None:
    message = Message(None, b"v", [("n" * 300, b"x"), ("é" * 128, None), ("short", b"y")])
    found = properties_of(message)
    assert found.headers is not None
    assert [name for name, _ in found.headers.fields] == ["short", "weir-long-headers"]
    back = message_of(PUBLISH, found, b"v", NOW)
    assert sorted(back.headers) == sorted(message.headers)


def test_headers_without_room_are_counted() -> None:
    message = Message(None, b"v", [(f"h{at}", b"x" * 100) for at in range(100)])
    for most_bytes in (500, 4000):
        out = outgoing_of(message, "q", most_bytes)
        found = decode_properties(out.header[12:]).headers
        assert found is not None
        assert len(out.header) - 12 <= most_bytes
        assert found.get("weir-headers-omitted") == 100 - (len(found) - 1)
        assert len(found) > most_bytes // 200
    many = properties_of(Message(None, b"v", [("", None)] * 60_000)).headers
    assert many is not None
    assert len(many) == MAX_VALUES
    assert many.get("weir-headers-omitted") == 60_000 - MAX_VALUES + 1


def test_times_beyond_what_others_count_are_kept_in_a_header() -> None:
    said = Properties(timestamp=(1 << 64) - 1)
    message = message_of(PUBLISH, said, b"", NOW)
    assert (message.event_ms, message.headers) == (None, [("amqp-timestamp", b"18446744073709551615")])
    assert properties_of(replace(message, native=None)) == said


@pytest.mark.parametrize("native", [b"", b"\x01", b"\x01\x05e", b"\x01\x00\x09"])
def test_what_was_kept_and_is_broken_is_refused(native: bytes) -> None:
    with pytest.raises(WireError):
        outgoing_of(Message(None, b"v", native=("amqp", native)), "q")
    with pytest.raises(UnknownVersionError):
        outgoing_of(Message(None, b"v", native=("amqp", b"\x02\x00\x00\x00\x00")), "q")
    assert outgoing_of(Message(None, b"v", native=("mqtt", native)), "q").header[12:] == b"\x00\x00"
