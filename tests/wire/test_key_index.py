"""The codec of an index of keys: what is written is read, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import WireError
from weir.wire.key_index import (
    Run,
    bucket_of,
    check_head,
    decode_state,
    encode_head,
    encode_record,
    encode_state,
    key_hash,
    offsets_in,
)

numbers = st.integers(0, 2**64 - 1)
runs = st.builds(Run, numbers, numbers, numbers, numbers, st.integers(0, 24), st.integers(0, 255))


@given(st.lists(runs, max_size=5), st.lists(numbers, max_size=5))
def test_a_state_is_read_as_it_was_written(some: list[Run], left: list[int]) -> None:
    assert decode_state(encode_state(some, left)) == (some, left)


@given(st.binary(max_size=80))
def test_what_is_no_state_is_refused(data: bytes) -> None:
    try:
        found = decode_state(data)
    except WireError:
        return
    assert encode_state(*found) == data[: len(encode_state(*found))]


@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 2**40)), max_size=30), st.binary(max_size=3))
def test_a_bucket_has_the_offsets_of_each_hash(pairs: list[tuple[bytes, int]], key: bytes) -> None:
    bucket = b"".join(encode_record(key_hash(one), offset) for one, offset in pairs)
    assert offsets_in(bucket, key_hash(key)) == sorted(offset for one, offset in pairs if one == key)


@given(st.binary(max_size=8), st.integers(0, 24))
def test_a_bucket_is_told_by_the_first_bits(key: bytes, bits: int) -> None:
    hashed = key_hash(key)
    assert bucket_of(hashed, bits) == int.from_bytes(hashed, "big") >> (64 - bits)


@given(runs, runs)
def test_the_head_of_another_run_is_noticed(one: Run, other: Run) -> None:
    check_head(encode_head(one), one)
    if encode_head(one) != encode_head(other):
        with pytest.raises(WireError):
            check_head(encode_head(one), other)
