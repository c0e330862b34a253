"""Bits of a number, runs of them, and their indices say the same."""

from hypothesis import given
from hypothesis import strategies as st

from weir.model.batch import bits_at, bits_of_runs, indices_of, runs_of


@given(st.integers(0, 2**300 - 1), st.integers(0, 1000))
def test_runs_and_bits_say_the_same(bits: int, base: int) -> None:
    runs = runs_of(bits, base)
    assert [at for first, end in runs for at in range(first, end)] == [
        base + at for at in range(300) if bits >> at & 1
    ]
    assert bits_of_runs(runs, base) == bits


@given(st.integers(0, 2**300 - 1))
def test_indices_and_bits_say_the_same(bits: int) -> None:
    assert indices_of(bits) == [at for at in range(300) if bits >> at & 1]
    assert bits_at(indices_of(bits), 300) == bits


def test_nothing_is_nothing() -> None:
    assert runs_of(0) == []
    assert bits_of_runs([]) == bits_at([], 0) == bits_at([], 5) == 0
