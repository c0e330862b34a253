"""Held batches and holding records: what goes in comes out, and damaged bytes are refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.batch import Batch, BatchFlags, BatchFormat, HeldId, Origin
from weir.model.errors import UnknownVersionError, WireError
from weir.wire.batch import MAX_COUNT
from weir.wire.delayed_batches import (
    MAX_SERIAL,
    HoldingRecord,
    decode_covered,
    decode_held,
    decode_record,
    encode_covered,
    encode_held,
    encode_record,
    peek_held,
)

moments = st.integers(0, 2**63 - 1)
batches = st.builds(
    Batch,
    base_offset=st.just(0),
    count=st.integers(1, MAX_COUNT),
    format=st.sampled_from(BatchFormat),
    append_ms=st.just(0),
    payload=st.binary(max_size=100),
    flags=st.sampled_from([BatchFlags.NONE, BatchFlags.CONTROL]),
    origin=st.none() | st.builds(Origin, st.text(max_size=20), st.integers(-(2**63), 2**63 - 1)),
    held=st.none() | st.just(HeldId(1, 2)),
)
numbers = st.integers(0, 2**63 - 1)
records = st.builds(
    HoldingRecord,
    serial=st.integers(0, MAX_SERIAL),
    first_ms=st.integers(0, 2**62),
    end_ms=st.integers(2**62 + 1, 2**63 - 1),
    closed=st.booleans(),
    entries=numbers,
    messages=numbers,
    size_bytes=numbers,
    gone_messages=numbers,
    done=st.binary(max_size=50),
)


@given(moments, batches)
def test_a_held_batch_survives_the_round_trip(due_ms: int, batch: Batch) -> None:
    assert decode_held(encode_held(due_ms, batch)) == (due_ms, batch)


@given(moments, batches)
def test_a_peek_sees_what_decoding_sees(due_ms: int, batch: Batch) -> None:
    assert peek_held(encode_held(due_ms, batch)) == (due_ms, batch.count)


@given(records)
def test_a_record_survives_the_round_trip(record: HoldingRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(numbers)
def test_the_progress_survives_the_round_trip(offset: int) -> None:
    assert decode_covered(encode_covered(offset)) == offset


@given(st.binary(max_size=80))
def test_random_bytes_are_decoded_or_refused(raw: bytes) -> None:
    for decode in (decode_held, peek_held, decode_record, decode_covered):
        with suppress(WireError):
            decode(raw)


@given(moments, batches, st.data())
def test_a_cut_held_batch_is_refused_or_shorter(due_ms: int, batch: Batch, data: st.DataObject) -> None:
    whole = encode_held(due_ms, batch)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with suppress(WireError):
        assert len(decode_held(whole[:cut])[1]) < len(batch)


def test_a_newer_version_is_named_as_such() -> None:
    newer = bytes([9])
    for decode, data in (
        (decode_held, encode_held(1, Batch(0, 1, BatchFormat.PULSAR, 0, b""))),
        (decode_record, encode_record(HoldingRecord(1, 2, 3))),
        (decode_covered, encode_covered(4)),
    ):
        with pytest.raises(UnknownVersionError):
            decode(newer + data[1:])


def test_a_moment_before_1970_is_refused() -> None:
    raw = encode_held(-1, Batch(0, 1, BatchFormat.PULSAR, 0, b""))
    for decode in (decode_held, peek_held):
        with pytest.raises(WireError):
            decode(raw)
