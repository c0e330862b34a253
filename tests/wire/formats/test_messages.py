"""Messages that come one at a time: stored as one entry, read by every protocol, and never misread."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.batch import Batch, BatchFlags, BatchFormat, Stamp
from weir.model.errors import UnknownVersionError, WireError
from weir.model.messages import Message
from weir.wire.formats.messages import decode_messages, encode_messages
from weir.wire.formats.table import FORMATS, kafka_records, messages_of, pulsar_entry, translated
from weir.wire.kafka.records import iter_records

NOW = 1_800_000_000_000
OURS = FORMATS[BatchFormat.MESSAGES]

texts = st.text(max_size=12)
blobs = st.binary(max_size=40)
moments = st.integers(-(1 << 63), (1 << 63) - 1)
messages = st.builds(
    Message,
    st.none() | blobs,
    st.none() | blobs,
    st.lists(st.tuples(texts, st.none() | blobs), max_size=4),
    st.none() | moments,
    moments,
    st.none() | blobs,
    st.none() | st.tuples(texts, blobs),
)


def plain(message: Message) -> tuple[Any, ...]:
    value = None if message.value is None else bytes(message.value)
    more = (message.event_ms, message.publish_ms, message.ordering_key, message.native)
    return (message.key, value, list(message.headers), *more)


def stored(*found: Message) -> Batch:
    return Batch(7, len(found), BatchFormat.MESSAGES, NOW, encode_messages(found))


@given(st.lists(messages, max_size=5))
def test_what_is_encoded_comes_back(found: list[Message]) -> None:
    assert list(map(plain, decode_messages(encode_messages(found)))) == list(map(plain, found))


@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_a_shorter_or_longer_entry_is_refused(found: list[Message], data: st.DataObject) -> None:
    whole = encode_messages(found)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for torn in (whole[:cut], whole + b"x"):
        with pytest.raises(WireError):
            decode_messages(torn)


def test_other_versions_and_unknown_facts_are_refused_by_name() -> None:
    whole = bytearray(encode_messages([Message(None, b"v")]))
    with pytest.raises(UnknownVersionError):
        decode_messages(b"\x02" + whole[1:])
    whole[9] |= 0x80
    with pytest.raises(WireError, match="nobody knows"):
        decode_messages(whole)


def test_a_count_that_cannot_be_costs_nothing() -> None:
    with pytest.raises(WireError, match="do not fit"):
        decode_messages(b"\x01" + (0xFFFFFFFF).to_bytes(4, "little") + bytes(100))


def test_more_headers_than_can_be_counted_are_refused() -> None:
    with pytest.raises(WireError, match="65535"):
        encode_messages([Message(None, b"v", [("n", None)] * 0x10000)])


def test_consumers_of_both_protocols_read_them_at_their_offsets() -> None:
    batch = stored(
        Message(b"k1", b"one", [("h", b"x")], 5, NOW),
        Message(None, None, publish_ms=NOW),
        Message(b"k3", b"three"),
    )
    records = [record for piece in kafka_records(batch) for record in iter_records(piece)]
    assert [(r.offset_delta, r.key, r.value) for r in records] == [
        (0, b"k1", b"one"),
        (1, None, None),
        (2, b"k3", b"three"),
    ]
    entry = pulsar_entry(batch)
    assert entry.messages == 3
    back = messages_of(Batch(7, 3, BatchFormat.PULSAR, NOW, entry.payload))
    assert [(one.key, None if one.value is None else bytes(one.value)) for one in back] == [
        (b"k1", b"one"),
        (None, None),
        (b"k3", b"three"),
    ]


def test_batches_of_other_protocols_become_messages() -> None:
    kafka = Batch(
        7, 1, BatchFormat.KAFKA, NOW, b"".join(kafka_records(stored(Message(b"k", b"v", publish_ms=NOW))))
    )
    made = translated(kafka, BatchFormat.MESSAGES)
    assert [(one.key, bytes(one.value or b"")) for one in decode_messages(made.pieces[0])] == [(b"k", b"v")]


def test_keys_of_subscriptions_and_of_compaction_and_names_of_delayed_ones() -> None:
    batch = stored(Message(b"k", b"", ordering_key=b"o"), Message(b"l", None), Message(None, b"v"))
    assert OURS.keys(batch) == [b"o", b"l", None]
    assert OURS.keyed(batch) == [(b"k", True), (b"l", False), (None, True)]
    assert OURS.delay_id(batch) is None
    assert OURS.delay_id(stored(Message(None, b"v", [("weir-delay-id", b"mine")]))) == "mine"
    assert OURS.delay_id(stored(Message(None, b"v", [("weir-delay-id", b"\xff")]))) is None
    broken = Batch(0, 2, BatchFormat.MESSAGES, NOW, b"?")
    assert (OURS.keys(broken), OURS.keyed(broken), OURS.delay_id(broken)) == (None, [(None, True)] * 2, None)


def test_a_marker_has_no_messages_whoever_asks() -> None:
    marker = Batch(3, 1, BatchFormat.MARKER, NOW, b"", BatchFlags.CONTROL, stamp=Stamp(1, 0))
    form = FORMATS[BatchFormat.MARKER]
    assert (form.keys(marker), form.keyed(marker), form.delay_id(marker)) == (None, [(None, True)], None)
    assert [list(iter_records(piece)) for piece in kafka_records(marker)] == [[]]
