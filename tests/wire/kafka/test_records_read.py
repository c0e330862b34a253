"""Records come back as they were put in, by our hand or by those of Kafka's clients, in every compression."""

import tracemalloc
from collections.abc import Sequence
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_records
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.model.errors import FrameTooLargeError, WireError
from weir.testing.codecs.record_samples import compress, compressed
from weir.testing.kinds import rounds
from weir.wire.kafka.compression import decompress
from weir.wire.kafka.record_batch import HEADER_BYTES, Compression, produced, verify
from weir.wire.kafka.records import Record, build_batch, iter_records, keep_records, number, zigzag

EVERY = pytest.mark.parametrize("kind", Compression)
PACKED = [kind for kind in Compression if kind is not Compression.NONE]
THEIRS = pytest.mark.parametrize("theirs", [kafka_records, aiokafka_records], ids=["kafka-python", "aiokafka"])
LIMIT = 1 << 20

blobs = st.none() | st.binary(max_size=40)
names = st.text(max_size=6)
times = st.integers(0, 2**42)
fields = st.tuples(times, blobs, blobs, st.lists(st.tuples(names, blobs), max_size=3))
batches = st.lists(fields, min_size=1, max_size=6)


def records_of(rows: Sequence[Any]) -> list[Record]:
    return [
        Record(delta, moment, key, value, [(name.encode(), header) for name, header in headers])
        for delta, (moment, key, value, headers) in enumerate(rows)
    ]


def as_rows(theirs: Any) -> list[Any]:
    return [
        (
            record.timestamp,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            [(name, None if value is None else bytes(value)) for name, value in record.headers],
        )
        for record in theirs
    ]


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_a_number_comes_back(value: int) -> None:
    data = zigzag(value)
    assert number(data, 0) == (value, len(data))


@EVERY
@given(rows=batches, framed=st.booleans())
def test_records_come_back_as_they_were(kind: Compression, rows: list[Any], framed: bool) -> None:
    records = records_of(rows)
    batch = compressed(build_batch(records, base_offset=9), kind, framed=framed)
    assert list(iter_records(batch)) == records
    assert verify(batch).max_timestamp == max(record.timestamp for record in records)


@pytest.mark.slow
@EVERY
@THEIRS
@given(rows=batches)
def test_what_kafkas_clients_build_is_read(kind: Compression, theirs: Any, rows: list[Any]) -> None:
    builder = theirs.DefaultRecordBatchBuilder(2, int(kind), 0, -1, -1, -1, 1 << 20)
    # Clients compress only what gets smaller by it.
    rows = [*rows, (5, b"repeated" * 50, b"again" * 200, [])]
    for offset, (moment, key, value, headers) in enumerate(rows):
        assert builder.append(offset, moment, key, value, headers) is not None
    data = bytes(builder.build())
    ((header, batch),) = produced(data)
    assert header.compression is kind
    assert list(iter_records(batch)) == records_of(rows)


@pytest.mark.slow
@EVERY
@THEIRS
@given(rows=batches)
def test_what_we_build_is_read_by_kafkas_clients(kind: Compression, theirs: Any, rows: list[Any]) -> None:
    batch = compressed(build_batch(records_of(rows), base_offset=7), kind)
    read = theirs.DefaultRecordBatch(batch)
    assert read.validate_crc()
    assert as_rows(theirs.DefaultRecordBatch(batch)) == rows
    assert [record.offset for record in theirs.DefaultRecordBatch(batch)] == [7 + n for n in range(len(rows))]


@EVERY
@given(rows=batches, wanted=st.integers(0, 63))
def test_dropping_records_leaves_the_others_at_their_offsets(
    kind: Compression, rows: list[Any], wanted: int
) -> None:
    records = records_of(rows)
    batch = compressed(build_batch(records), kind)
    left = keep_records(batch, wanted, base_offset=100)
    header = verify(left)
    kept = [record for record in records if wanted >> record.offset_delta & 1]
    assert list(iter_records(left)) == kept
    assert (header.base_offset, header.count, header.records) == (100, len(records), len(kept))
    assert header.compression is Compression.NONE
    theirs = list(kafka_records.DefaultRecordBatch(left))
    assert [record.offset for record in theirs] == [100 + record.offset_delta for record in kept]


@pytest.mark.parametrize("kind", PACKED)
def test_what_is_left_of_a_batch_that_was_packed_very_well_is_packed_again(kind: Compression) -> None:
    records = [Record(n, 1_700_000_000_000, b"k", bytes(2_000_000), []) for n in range(2)]
    batch = compressed(build_batch(records), kind)
    left = keep_records(batch, 0b10)
    assert verify(left).compression is kind
    assert len(left) < len(batch)
    assert list(iter_records(left)) == records[1:]


@pytest.mark.parametrize("kind", PACKED)
@given(data=st.binary(max_size=400), times=st.integers(0, 200), framed=st.booleans())
def test_what_was_compressed_comes_out(kind: Compression, data: bytes, times: int, framed: bool) -> None:
    whole = data * times
    assert decompress(kind, memoryview(compress(kind, whole, framed=framed))) == whole


@pytest.mark.slow
@pytest.mark.parametrize("framed", [True, False], ids=["framed", "bare"])
@pytest.mark.parametrize("kind", PACKED)
def test_a_bomb_goes_off_in_a_small_room(kind: Compression, framed: bool) -> None:
    bomb = compress(kind, bytes(32 * LIMIT), framed=framed)
    tracemalloc.start()
    with pytest.raises(FrameTooLargeError):
        decompress(kind, bomb, LIMIT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * LIMIT


@pytest.mark.parametrize("kind", PACKED)
def test_room_is_made_for_what_compresses_well(kind: Compression) -> None:
    assert decompress(kind, compress(kind, bytes(5 * LIMIT))) == bytes(5 * LIMIT)


@pytest.mark.parametrize("kind", PACKED)
def test_compressed_bytes_that_end_early_are_a_wire_error(kind: Compression) -> None:
    packed = compress(kind, b"to be or not to be" * 100)
    for end in range(len(packed)):
        if kind is Compression.SNAPPY and end == 16:
            continue  # the frame of snappy without a block: no bytes
        with pytest.raises(WireError):
            decompress(kind, packed[:end], LIMIT)


def test_gzip_of_several_parts_is_one_whole() -> None:
    packed = compress(Compression.GZIP, b"one ") + compress(Compression.GZIP, b"two")
    assert decompress(Compression.GZIP, packed) == b"one two"
    with pytest.raises(FrameTooLargeError):
        decompress(Compression.GZIP, packed, 6)
    with pytest.raises(WireError, match="members"):  # each would cost a copy of all that follow
        decompress(Compression.GZIP, packed * 10_000)


@given(at=st.integers(HEADER_BYTES, 400), byte=st.integers(0, 255))
@settings(max_examples=rounds(300))
def test_a_damaged_record_is_a_wire_error_or_another_record(at: int, byte: int) -> None:
    rows = [(5, b"key", b"value", [("name", b"header"), ("other", None)])] * 4
    batch = bytearray(build_batch(records_of(rows)))
    batch[min(at, len(batch) - 1)] = byte
    try:
        assert len(list(iter_records(batch))) == 4
        keep_records(batch, 15)
    except WireError:
        pass


def test_a_number_without_an_end_is_a_wire_error() -> None:
    with pytest.raises(WireError):
        number(b"\xff" * 20, 0)
