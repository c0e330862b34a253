"""Stored batches: what goes in comes out, and damaged headers are refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.batch import Batch, BatchFlags, BatchFormat, HeldId, Origin
from weir.model.errors import WireError
from weir.wire.batch import MAX_COUNT, decode_batch, encode_batch

u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
batches = st.builds(
    Batch,
    base_offset=st.integers(0, 2**62),
    count=st.integers(1, MAX_COUNT),
    format=st.sampled_from(BatchFormat),
    append_ms=i64,
    payload=st.binary(max_size=200),
    flags=st.sampled_from([BatchFlags.NONE, BatchFlags.RELEASED, BatchFlags.CONTROL]),
    origin=st.none() | st.builds(Origin, st.text(max_size=40), i64),
    held=st.none() | st.builds(HeldId, u64, u64),
)


@given(batches)
def test_a_batch_survives_the_round_trip(batch: Batch) -> None:
    assert decode_batch(b"".join(encode_batch(batch))) == batch


@given(batches, st.data())
def test_a_mutated_batch_is_a_batch_or_a_wire_error(batch: Batch, data: st.DataObject) -> None:
    raw = bytearray(b"".join(encode_batch(batch)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(raw)))
    with suppress(WireError):
        decode_batch(bytes(raw[:cut]))


@given(st.binary(max_size=80))
def test_random_bytes_are_a_batch_or_a_wire_error(raw: bytes) -> None:
    with suppress(WireError):
        decode_batch(raw)


def test_a_batch_without_messages_is_refused() -> None:
    raw = bytearray(b"".join(encode_batch(Batch(0, 1, BatchFormat.PULSAR, 0, b"x"))))
    raw[4] = 0
    with pytest.raises(WireError, match="0 messages"):
        decode_batch(bytes(raw))
