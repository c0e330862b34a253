"""Compressed bytes come back, and never more of them than were announced."""

import contextlib
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import FrameTooLargeError, WireError
from weir.wire.pulsar.batch import Compression, compress, decompress

PACKED = [kind for kind in Compression if kind is not Compression.NONE]
EVERY = pytest.mark.parametrize("kind", Compression)
EVERY_PACKED = pytest.mark.parametrize("kind", PACKED)


@EVERY
@given(data=st.binary(max_size=500), times=st.integers(1, 50))
def test_what_goes_in_comes_out(kind: Compression, data: bytes, times: int) -> None:
    whole = data * times
    assert decompress(kind, memoryview(compress(kind, memoryview(whole))), len(whole)) == whole


@EVERY_PACKED
@pytest.mark.parametrize("off_by", [-1000, -1, 1, 1000])
def test_another_size_than_the_announced_is_a_wire_error(kind: Compression, off_by: int) -> None:
    data = b"abc" * 1000
    with pytest.raises(WireError):
        decompress(kind, compress(kind, data), len(data) + off_by)


@EVERY_PACKED
def test_a_bomb_goes_off_in_a_small_room(kind: Compression) -> None:
    bomb = compress(kind, bytes(32 * 1024 * 1024))
    assert len(bomb) < 4 * 1024 * 1024
    for size in (1000, 0):
        tracemalloc.start()
        with pytest.raises(WireError):
            decompress(kind, bomb, size)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1024 * 1024


@EVERY_PACKED
def test_a_size_over_the_limit_is_refused_before_it_is_believed(kind: Compression) -> None:
    with pytest.raises(FrameTooLargeError):
        decompress(kind, b"", 2**32 - 1)
    with pytest.raises(FrameTooLargeError):
        decompress(kind, compress(kind, bytes(101)), 101, limit=100)


@EVERY_PACKED
def test_damaged_bytes_are_a_wire_error_or_at_worst_other_bytes_of_the_same_size(kind: Compression) -> None:
    dice = Random(f"compression {kind}")
    data = dice.randbytes(200) * 3
    packed = compress(kind, data)
    for _ in range(3000):
        damaged = bytearray(packed)
        for _ in range(dice.randrange(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        cut = bytes(damaged)[: dice.choice((None, dice.randrange(len(damaged))))]
        with contextlib.suppress(WireError):
            assert len(decompress(kind, cut, len(data))) == len(data)
        with contextlib.suppress(WireError):
            decompress(kind, dice.randbytes(dice.randrange(60)), dice.randrange(1000))
