"""Stored batches: what goes in comes out, and damaged headers are refused."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.batch import Addressed, Batch, BatchFlags, BatchFormat, HeldId, MovedFrom, Origin, Prepared, Stamp
from weir.model.errors import InvariantError, WireError
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
    origin=st.none()
    | st.builds(Origin, st.text(max_size=40) | st.just(" moved"), i64)
    | st.builds(MovedFrom, st.integers(0, 2**62))
    | st.builds(Prepared, st.text(max_size=20), st.integers(0, 2**62), st.integers(0, 2**62)),
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


@pytest.mark.parametrize(("format_", "moved"), [(BatchFormat.KAFKA, True), (BatchFormat.PULSAR, False)])
def test_what_was_moved_before_it_had_a_form_of_its_own_is_told_from_a_producer_of_that_name(
    format_: BatchFormat, moved: bool
) -> None:
    origin = Origin(" committed", 7)
    old = b"".join(encode_batch(Batch(3, 1, format_, 0, b"x", origin=origin)))
    assert decode_batch(old).origin == (MovedFrom(7) if moved else origin)


@given(st.integers(0, 2**32 - 1))
def test_a_stamped_batch_keeps_the_checksum_of_what_was_sent(checksum: int) -> None:
    batch = Batch(3, 1, BatchFormat.KAFKA, 0, b"x", stamp=Stamp(1, 2, 3, checksum))
    again = decode_batch(b"".join(encode_batch(batch)))
    assert again == batch
    assert again.stamp is not None
    assert again.stamp.checksum == checksum


def test_a_name_of_any_length_is_not_taken_for_what_was_moved() -> None:
    for length in (0, 0xFFFC):
        batch = Batch(3, 1, BatchFormat.PULSAR, 0, b"x", origin=Origin("n" * length, 7))
        assert decode_batch(b"".join(encode_batch(batch))) == batch
    with pytest.raises(InvariantError):
        encode_batch(replace(batch, origin=Origin("n" * 0xFFFF, 7)))


@pytest.mark.parametrize("stamp", [None, Stamp(5, 1, 9)])
def test_a_batch_for_one_subscription_says_so_by_its_origin(stamp: Stamp | None) -> None:
    batch = Batch(
        3,
        2,
        BatchFormat.KAFKA,
        4,
        b"x",
        BatchFlags.PRIVATE | BatchFlags.RELEASED,
        Addressed("bücher"),
        None,
        stamp,
    )
    assert decode_batch(b"".join(encode_batch(batch))) == batch


@given(st.binary(max_size=80))
def test_random_bytes_are_a_batch_or_a_wire_error(raw: bytes) -> None:
    with suppress(WireError):
        decode_batch(raw)


def test_a_batch_without_messages_is_refused() -> None:
    raw = bytearray(b"".join(encode_batch(Batch(0, 1, BatchFormat.PULSAR, 0, b"x"))))
    raw[4] = 0
    with pytest.raises(WireError, match="0 messages"):
        decode_batch(bytes(raw))
