"""A batch read by another protocol's consumers: all that can be kept is kept, each message at its offset."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from weir.model.batch import Batch, BatchFlags, BatchFormat, Stamp
from weir.model.messages import Message
from weir.testing.codecs.fuzzing import mutate
from weir.testing.codecs.record_samples import compressed, sample_records
from weir.wire.formats.kafka import ORDERING_KEY
from weir.wire.formats.table import UNREADABLE, kafka_records, messages_of, pulsar_entry
from weir.wire.kafka.record_batch import Compression, split_batches, verify, with_append_time
from weir.wire.kafka.records import Record, build_batch, control_batch, iter_records
from weir.wire.pulsar import batch as pulsar
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import encode_batch, iter_batch
from weir.wire.pulsar.message import is_batch, parse_metadata, seal_message, split_message
from weir.wire.pulsar.translation import BASE64_HEADERS, CHUNK, ENCRYPTED, METADATA, NULL_HEADERS, SCHEMA_VERSION

NOW = 1_700_000_000_000
BASE = 1000

blobs = st.none() | st.binary(max_size=20)
names = st.text(max_size=5) | st.sampled_from((BASE64_HEADERS, NULL_HEADERS))
#: A null header beside an empty one of the same name is the one thing that a Pulsar message cannot tell apart.
header_lists = st.lists(st.tuples(names, blobs), max_size=4).filter(
    lambda headers: not {name for name, value in headers if value is None} & {n for n, v in headers if v == b""}
)
rows = st.lists(st.tuples(st.integers(1, 2**42), blobs, blobs, header_lists, blobs), min_size=1, max_size=5)


def record_of(delta: int, row: Any) -> Record:
    moment, key, value, headers, ordering = row
    raw = [(name.encode(), content) for name, content in headers]
    if ordering is not None:
        raw.append((ORDERING_KEY.encode(), ordering))
    return Record(delta, moment, key, value, raw)


def kafka_batch(records: Sequence[Record], kind: Compression = Compression.NONE, **more: Any) -> Batch:
    payload = compressed(build_batch(records), kind)
    return Batch(BASE, len(records), BatchFormat.KAFKA, NOW, payload, **more)


def pulsar_batch(metadata: api.MessageMetadata, payload: bytes, count: int = 1) -> Batch:
    return Batch(BASE, count, BatchFormat.PULSAR, NOW, b"".join(seal_message(metadata, payload)))


def outer(**more: Any) -> api.MessageMetadata:
    return api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=NOW, **more)


def only_piece(pieces: Sequence[Any]) -> bytes:
    return b"".join(pieces)


# --- there and back -------------------------------------------------------------------------------------------


@given(rows=rows, kind=st.sampled_from(Compression))
def test_records_read_by_pulsar_and_read_again_by_kafka_are_the_same(rows: list[Any], kind: Compression) -> None:
    records = [record_of(delta, row) for delta, row in enumerate(rows)]
    stored = kafka_batch(records, kind)
    entry, count = pulsar_entry(stored)
    assert count == len(records)
    as_pulsar = Batch(BASE, count, BatchFormat.PULSAR, NOW, entry)
    assert [m.event_ms for m in messages_of(as_pulsar)] == [record.timestamp for record in records]
    assert list(iter_records(only_piece(kafka_records(as_pulsar)))) == records


@given(rows=rows)
def test_both_forms_of_a_message_are_the_same_message_but_for_its_time_of_publication(rows: list[Any]) -> None:
    stored = kafka_batch([record_of(delta, row) for delta, row in enumerate(rows)])
    entry, count = pulsar_entry(stored)
    theirs = messages_of(Batch(BASE, count, BatchFormat.PULSAR, NOW, entry))
    for ours, other in zip(messages_of(stored), theirs, strict=True):
        assert _all_but_publish_time(ours) == _all_but_publish_time(other)
    assert theirs[0].publish_ms == rows[0][0]


def _all_but_publish_time(message: Message) -> tuple[Any, ...]:
    value = None if message.value is None else bytes(message.value)
    return message.key, value, list(message.headers), message.event_ms, message.ordering_key


# --- Kafka's records for Pulsar's consumers -------------------------------------------------------------------


def test_a_batch_of_records_is_a_pulsar_batch_of_as_many_messages() -> None:
    records = [Record(n, NOW + n, b"k%d" % n, b"v%d" % n, [(b"h", b"x")]) for n in range(3)]
    entry, count = pulsar_entry(kafka_batch(records, stamp=Stamp(77, 0, 40)))
    parts = split_message(memoryview(entry))
    metadata = parse_metadata(parts)
    assert (count, metadata.num_messages_in_batch) == (3, 3)
    assert (metadata.producer_name, metadata.sequence_id, metadata.publish_time) == ("kafka-77", 40, NOW)
    singles = list(iter_batch(parts.payload, 3))
    assert [single.metadata.partition_key for single in singles] == ["k0", "k1", "k2"]
    assert [bytes(single.payload) for single in singles] == [b"v0", b"v1", b"v2"]
    assert [single.metadata.event_time for single in singles] == [NOW, NOW + 1, NOW + 2]
    assert [single.metadata.sequence_id for single in singles] == [40, 41, 42]
    assert [(p.key, p.value) for p in singles[0].metadata.properties] == [("h", "x")]


def test_a_single_record_is_a_plain_message() -> None:
    entry, count = pulsar_entry(kafka_batch([Record(0, NOW, b"\xff\x00", None)]))
    metadata = parse_metadata(split_message(memoryview(entry)))
    assert count == 1
    assert not is_batch(metadata)
    assert metadata.null_value
    assert (metadata.partition_key, metadata.partition_key_b64_encoded) == ("/wA=", True)
    assert (metadata.event_time, metadata.publish_time, metadata.sequence_id) == (NOW, NOW, BASE)


def test_an_empty_key_is_not_the_same_as_none() -> None:
    entry, _ = pulsar_entry(kafka_batch([Record(0, NOW, b"", b""), Record(1, NOW, None, None)]))
    empty, none = list(iter_batch(split_message(memoryview(entry)).payload, 2))
    assert empty.metadata.HasField("partition_key")
    assert not empty.metadata.null_value
    assert not none.metadata.HasField("partition_key")
    assert none.metadata.null_value


def test_the_brokers_time_is_when_it_was_published_and_says_nothing_of_the_event() -> None:
    payload = with_append_time(build_batch([Record(0, 5, b"k", b"v")]), NOW)
    (message,) = messages_of(Batch(BASE, 1, BatchFormat.KAFKA, NOW, payload))
    assert (message.event_ms, message.publish_ms) == (None, NOW)


def test_a_record_without_a_time_was_published_when_it_was_stored() -> None:
    (message,) = messages_of(kafka_batch([Record(0, -1, b"k", b"v")]))
    assert (message.event_ms, message.publish_ms) == (None, NOW)


@pytest.mark.parametrize("kind", Compression)
def test_a_batch_that_is_too_large_for_pulsar_when_opened_is_compressed_again(kind: Compression) -> None:
    records = [Record(n, NOW, None, b"all work and no play " * 60_000) for n in range(6)]
    entry, count = pulsar_entry(kafka_batch(records, kind))
    assert len(entry) < 5 * 1024 * 1024
    assert count == 6
    messages = messages_of(Batch(BASE, 6, BatchFormat.PULSAR, NOW, entry))
    assert [message.value for message in messages] == [record.value for record in records]


def test_records_that_cannot_be_opened_are_one_message_that_says_why() -> None:
    payload = bytearray(build_batch([Record(n, NOW, b"k", b"v") for n in range(3)], attributes=Compression.ZSTD))
    stored = Batch(BASE, 3, BatchFormat.KAFKA, NOW, bytes(payload))
    entry, count = pulsar_entry(stored)
    parts = split_message(memoryview(entry))
    metadata = parse_metadata(parts)
    assert count == 1
    assert not is_batch(metadata)
    assert metadata.properties[0].key == UNREADABLE
    assert "decompress" in metadata.properties[0].value
    assert parts.payload == payload


# --- Pulsar's messages for Kafka's consumers ------------------------------------------------------------------


def test_what_kafka_wrote_is_passed_on_at_its_offset_and_not_copied() -> None:
    stored = kafka_batch([Record(0, NOW, b"k", b"v")], Compression.LZ4)
    head, rest = kafka_records(stored)
    assert isinstance(rest, memoryview)
    assert rest.obj is stored.payload
    assert verify(bytes(head) + bytes(rest)).base_offset == BASE


@pytest.mark.parametrize("kind", pulsar.Compression)
def test_a_pulsar_batch_in_any_compression_is_a_batch_of_records_at_its_offsets(kind: pulsar.Compression) -> None:
    singles = [
        (api.SingleMessageMetadata(payload_size=0, partition_key=f"k{n}", event_time=NOW - 1), b"v%d" % n)
        for n in range(3)
    ]
    payload = encode_batch(singles)
    metadata = outer(num_messages_in_batch=3, compression=int(kind), uncompressed_size=len(payload))
    stored = pulsar_batch(metadata, pulsar.compress(kind, payload), 3)
    (batch,) = split_batches(only_piece(kafka_records(stored)))
    theirs = DefaultRecordBatch(bytes(batch))
    assert theirs.validate_crc()
    found = [(r.offset, r.timestamp, r.key, r.value) for r in theirs]
    assert found == [(BASE + n, NOW - 1, b"k%d" % n, b"v%d" % n) for n in range(3)]


def test_a_pulsar_message_without_an_event_time_has_its_time_of_publication() -> None:
    stored = pulsar_batch(outer(partition_key="k", event_time=0), b"v")
    (record,) = list(iter_records(only_piece(kafka_records(stored))))
    assert record == Record(0, NOW, b"k", b"v", [])


def test_a_pulsar_message_of_no_value_is_a_tombstone_and_an_empty_one_is_not() -> None:
    assert messages_of(pulsar_batch(outer(null_value=True), b""))[0].value is None
    assert messages_of(pulsar_batch(outer(), b""))[0].value == b""


def test_keys_that_pulsar_sends_as_base64_are_bytes_for_kafka() -> None:
    stored = pulsar_batch(outer(partition_key="/wA=", partition_key_b64_encoded=True, ordering_key=b"o"), b"v")
    (record,) = list(iter_records(only_piece(kafka_records(stored))))
    assert record.key == b"\xff\x00"
    assert record.headers == [(ORDERING_KEY.encode(), b"o")]


def test_the_schema_version_of_a_pulsar_message_is_a_header_of_every_record_behind_its_own() -> None:
    singles = [(api.SingleMessageMetadata(payload_size=0), b"v") for _ in range(2)]
    singles[0][0].properties.add(key=SCHEMA_VERSION, value="7")  # of a message that was copied
    metadata = outer(num_messages_in_batch=2, schema_version=(3).to_bytes(8, "big"))
    copied, plain = iter_records(only_piece(kafka_records(pulsar_batch(metadata, encode_batch(singles), 2))))
    own = (SCHEMA_VERSION.encode(), b"3")
    assert copied.headers == [(SCHEMA_VERSION.encode(), b"7"), own]
    assert plain.headers == [own]
    for odd in (b"", b"\x01", b"\xff" * 5000):
        (record,) = iter_records(only_piece(kafka_records(pulsar_batch(outer(schema_version=odd), b"v"))))
        assert record.headers == []


def test_the_schema_version_comes_back_where_all_messages_of_a_batch_have_the_same() -> None:
    def read(*versions: bytes) -> api.MessageMetadata:
        headers = [[(SCHEMA_VERSION.encode(), one), (b"more", b"")] for one in versions]
        records = [Record(at, NOW, b"k", b"v", one) for at, one in enumerate(headers)]
        return parse_metadata(split_message(memoryview(pulsar_entry(kafka_batch(records)).payload)))

    for versions in ((b"3",), (b"3", b"3")):
        assert read(*versions).schema_version == (3).to_bytes(8, "big")
    assert [one.key for one in read(b"3").properties] == ["more"]
    for versions in ((b"3", b"4"), (b"x",), (b"9" * 30,)):
        assert not read(*versions).HasField("schema_version")
    assert [one.key for one in read(b"x").properties] == [SCHEMA_VERSION, "more"]


def test_what_only_a_pulsar_consumer_can_open_is_its_entry_again_when_it_was_copied_by_kafka() -> None:
    chunk = outer(uuid="u-1", chunk_id=2, num_chunks_from_msg=5, compression=api.LZ4, partition_key="k")
    encrypted = outer(encryption_algo="aes", encryption_param=b"nonce")
    encrypted.encryption_keys.add(key="key", value=b"secret")
    for metadata in (chunk, encrypted):
        metadata.properties.add(key="a", value="b")
        (record,) = iter_records(only_piece(kafka_records(pulsar_batch(metadata, b"part"))))
        copied = Record(0, NOW, record.key, record.value, [*record.headers, (b"weir-replay-id", b"r")])
        parts = split_message(memoryview(pulsar_entry(kafka_batch([copied], stamp=Stamp(77, 0, 40))).payload))
        found = parse_metadata(parts)
        assert bytes(parts.payload) == b"part"
        assert [(one.key, one.value) for one in found.properties] == [("a", "b"), ("weir-replay-id", "r")]
        assert (found.producer_name, found.sequence_id) == ("kafka-77", 40)
        for of in (found, metadata):
            for name in ("properties", "producer_name", "sequence_id"):
                of.ClearField(name)
        assert found == metadata


def test_an_encrypted_batch_goes_to_kafka_as_it_is_with_headers_that_say_so() -> None:
    metadata = outer(num_messages_in_batch=4)
    metadata.encryption_keys.add(key="key", value=b"secret")
    stored = pulsar_batch(metadata, b"\x01\x02", 4)
    batch = only_piece(kafka_records(stored))
    assert verify(batch).count == 4
    (record,) = list(iter_records(batch))
    assert record.value == b"\x01\x02"
    headers = dict(record.headers)
    assert headers[ENCRYPTED.encode()] == b"true"
    assert api.MessageMetadata.FromString(bytes(headers[METADATA.encode()] or b"")) == metadata


def test_a_chunk_goes_to_kafka_as_it_is_with_headers_that_say_so() -> None:
    stored = pulsar_batch(outer(uuid="u-1", chunk_id=2, num_chunks_from_msg=5, compression=api.LZ4), b"part")
    (record,) = list(iter_records(only_piece(kafka_records(stored))))
    assert record.value == b"part"
    assert dict(record.headers)[CHUNK.encode()] == b"u-1 2 5"


def test_a_pulsar_batch_that_cannot_be_opened_is_one_record_that_says_why() -> None:
    stored = pulsar_batch(outer(num_messages_in_batch=3), b"not a batch", 3)
    batch = only_piece(kafka_records(stored))
    assert verify(batch).count == 3
    (record,) = list(iter_records(batch))
    assert record.headers[0][0] == UNREADABLE.encode()
    assert record.value == stored.payload


def test_a_time_beyond_kafkas_is_the_last_that_kafka_knows() -> None:
    stored = pulsar_batch(outer(event_time=2**64 - 1), b"v")
    assert verify(only_piece(kafka_records(stored))).max_timestamp == 2**63 - 1


# --- what is not to be seen -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", Compression)
@given(rows=rows, wanted=st.integers(0, 31))
def test_masked_records_leave_the_others_at_their_offsets_whoever_wrote_them(
    kind: Compression, rows: list[Any], wanted: int
) -> None:
    records = [record_of(delta, row) for delta, row in enumerate(rows)]
    stored = kafka_batch(records, kind)
    as_pulsar = Batch(BASE, stored.count, BatchFormat.PULSAR, NOW, pulsar_entry(stored).payload)
    wanted &= (1 << stored.count) - 1
    for batch in (stored, as_pulsar):
        seen = only_piece(kafka_records(batch, wanted))
        header = verify(seen)
        assert (header.base_offset, header.count) == (BASE, stored.count)
        assert list(iter_records(seen)) == [r for r in records if wanted >> r.offset_delta & 1]


def test_markers_of_kafka_pass_and_those_of_others_are_empty_batches() -> None:
    marker = control_batch(1, 0, True, NOW)
    flags = BatchFlags.CONTROL | BatchFlags.TRANSACTIONAL
    assert verify(only_piece(kafka_records(Batch(BASE, 1, BatchFormat.KAFKA, NOW, marker, flags)))).control
    empty = only_piece(kafka_records(Batch(BASE, 1, BatchFormat.PULSAR, NOW, b"x", BatchFlags.CONTROL)))
    assert (verify(empty).base_offset, verify(empty).records) == (BASE, 0)
    assert list(DefaultRecordBatch(empty)) == []


@given(data=st.binary(max_size=300), format=st.sampled_from(BatchFormat), count=st.integers(1, 5))
def test_whatever_is_stored_can_be_read_by_both(data: bytes, format: BatchFormat, count: int) -> None:  # noqa: A002
    stored = Batch(BASE, count, format, NOW, data)
    assert len(messages_of(stored)) in (1, count)
    if format is not BatchFormat.KAFKA:
        assert verify(only_piece(kafka_records(stored))).count == count
    if format is not BatchFormat.PULSAR:
        assert split_message(memoryview(pulsar_entry(stored).payload)).metadata


def sample_message(dice: Random) -> bytes:
    """A batch, or a single message, as a Pulsar producer sends it."""
    kind = dice.choice(tuple(pulsar.Compression))
    count = dice.randrange(1, 5)
    payload = dice.randbytes(dice.randrange(20)) * 3
    metadata = outer(compression=int(kind), partition_key="k")
    metadata.properties.add(key="a", value="b")
    if count > 1:
        singles = [(api.SingleMessageMetadata(payload_size=0, event_time=n), payload) for n in range(count)]
        payload = encode_batch(singles)
        metadata.num_messages_in_batch = count
    metadata.uncompressed_size = len(payload)
    return b"".join(seal_message(metadata, pulsar.compress(kind, payload)))


@pytest.mark.slow
@pytest.mark.parametrize("sample", [sample_records, sample_message], ids=["kafka", "pulsar"])
def test_whatever_becomes_of_a_batch_it_can_be_read_by_both(sample: Callable[[Random], bytes]) -> None:
    dice = Random(f"translation {sample.__name__}")
    own = BatchFormat.KAFKA if sample is sample_records else BatchFormat.PULSAR
    pool = [sample(dice) for _ in range(32)]
    unreadable = 0
    for _ in range(4000):
        data = mutate(dice.choice(pool), dice, dice.choice(pool))
        stored = Batch(BASE, dice.choice((1, 1, 2, 3, 4)), own, NOW, data)
        messages = messages_of(stored)
        unreadable += any(name == UNREADABLE for name, _ in messages[0].headers)
        if own is BatchFormat.KAFKA:
            assert split_message(memoryview(pulsar_entry(stored).payload)).metadata
            assert only_piece(kafka_records(stored, dice.randrange(16)))
        else:
            assert verify(only_piece(kafka_records(stored, dice.randrange(16)))).count == stored.count
    assert 400 < unreadable < 4000
