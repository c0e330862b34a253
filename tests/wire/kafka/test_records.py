"""The header of a record batch: read, verified, patched; what no producer may send is refused."""

from random import Random
from struct import pack, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from weir.model.batch import Stamp
from weir.model.errors import ChecksumError, UnknownVersionError, WireError
from weir.testing.codecs.record_samples import compressed, reseal_records, sample_records
from weir.wire.kafka.record_batch import (
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    Compression,
    parse_header,
    patched,
    produced,
    split_batches,
    verify,
    with_append_time,
)
from weir.wire.kafka.records import Record, build_batch, control_batch, iter_records

NOW = 1_700_000_000_000


def a_batch(count: int = 3, **more: object) -> bytes:
    records = [Record(n, NOW + n, b"key", b"value %d" % n, [(b"h", None)]) for n in range(count)]
    return build_batch(records, **more)  # type: ignore[arg-type]


def test_a_header_says_what_its_batch_holds() -> None:
    header = verify(a_batch(base_offset=70, attributes=TRANSACTIONAL, stamp=Stamp(5, 2, 9)))
    assert (header.base_offset, header.count, header.records) == (70, 3, 3)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 2)
    assert header.stamp == Stamp(5, 2, 9)
    assert header.transactional
    assert not header.control
    assert not header.log_append_time
    assert header.compression is Compression.NONE
    assert parse_header(a_batch()).stamp is None


def test_a_batch_is_patched_without_touching_what_the_checksum_covers() -> None:
    batch = a_batch()
    pieces = patched(batch, 1 << 40, 7)
    moved = b"".join(pieces)
    assert len(pieces[0]) == 16
    assert isinstance(pieces[1], memoryview)
    header = verify(moved)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 7)
    assert moved[16:] == batch[16:]


@pytest.mark.parametrize("magic", [0, 1, 3, 127])
def test_another_message_format_is_refused_by_name(magic: int) -> None:
    old = bytearray(a_batch())
    old[16] = magic
    with pytest.raises(UnknownVersionError, match=f"format {magic}"):
        produced(old)


def test_a_message_of_the_old_format_that_is_shorter_than_a_header_is_refused_by_name_too() -> None:
    body = pack(">IbbqiI", 0, 1, 0, NOW, -1, 0)
    with pytest.raises(UnknownVersionError):
        produced(pack(">qi", 0, len(body)) + body)


def test_a_flipped_bit_anywhere_behind_the_leader_epoch_is_noticed() -> None:
    batch = a_batch()
    for bit in range(16 * 8, len(batch) * 8):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            verify(damaged)


def test_a_wrong_checksum_has_an_error_of_its_own() -> None:
    damaged = bytearray(a_batch())
    damaged[-1] ^= 1
    with pytest.raises(ChecksumError):
        produced(damaged)


@given(cut=st.integers(0, 200))
def test_a_batch_that_ends_early_is_refused(cut: int) -> None:
    batch = a_batch()
    with pytest.raises(WireError):
        verify(batch[: min(cut, len(batch) - 1)])


@pytest.mark.parametrize(
    ("what", "batch"),
    [
        ("a control batch", control_batch(1, 0, True, NOW)),
        ("an unmarked control batch", a_batch(attributes=CONTROL)),
        ("a transaction of nobody", a_batch(attributes=TRANSACTIONAL)),
        ("an idempotent producer without a sequence", a_batch(stamp=Stamp(1, 0, -1))),
        ("an idempotent producer without an epoch", a_batch(stamp=Stamp(1, -1, 0))),
        ("offsets without records", a_batch(last_offset_delta=5)),
        ("a delete horizon", a_batch(attributes=0x40)),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_no_producer_may_send_is_refused(what: str, batch: bytes) -> None:
    verify(batch)
    with pytest.raises(WireError):
        produced(batch)


@pytest.mark.parametrize(
    ("at", "number"),
    [(23, -1), (23, 2**31 - 1), (57, -1), (57, 4)],
    ids=["no offsets", "too many offsets", "less than no records", "more records than offsets"],
)
def test_counts_that_cannot_be_are_refused(at: int, number: int) -> None:
    batch = bytearray(a_batch())
    pack_into(">i", batch, at, number)
    reseal_records(batch)
    with pytest.raises(WireError):
        verify(batch)


def test_an_unknown_compression_is_refused() -> None:
    for kind in (5, 6, 7):
        with pytest.raises(WireError, match="compression"):
            verify(a_batch(attributes=kind))


def test_a_field_of_several_batches_is_cut_into_them_and_a_rest_is_left() -> None:
    dice = Random("several")
    batches = [sample_records(dice) for _ in range(5)]
    whole = b"".join(batches)
    assert split_batches(whole) == batches
    assert split_batches(whole + batches[0][:40]) == batches
    assert [batch for _, batch in produced(whole)] == batches
    assert produced(b"") == []
    with pytest.raises(WireError):
        produced(whole + batches[0][:40])
    with pytest.raises(WireError):
        split_batches(b"\x00" * HEADER_BYTES)


@pytest.mark.parametrize("kind", Compression)
def test_the_brokers_time_is_set_without_opening_the_records(kind: Compression) -> None:
    batch = compressed(a_batch(), kind)
    stamped = with_append_time(batch, NOW + 5000)
    header = verify(stamped)
    assert header.log_append_time
    assert header.max_timestamp == NOW + 5000
    assert stamped[HEADER_BYTES:] == batch[HEADER_BYTES:]
    assert {record.timestamp for record in iter_records(stamped)} == {NOW + 5000}
    assert {record.timestamp for record in DefaultRecordBatch(stamped)} == {NOW + 5000}


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_marker_is_what_kafkas_clients_take_for_one(commit: bool) -> None:
    marker = control_batch(77, 3, commit, NOW)
    header = verify(marker)
    assert header.control
    assert header.transactional
    assert header.count == 1
    assert header.stamp == Stamp(77, 3, -1)
    theirs = DefaultRecordBatch(marker)
    assert theirs.validate_crc()
    (record,) = list(theirs)
    assert record.abort is not commit
    assert record.timestamp == NOW
