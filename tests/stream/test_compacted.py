"""What a stream's state says of a compaction."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from weir.model.errors import WireError
from weir.model.ids import LedgerId
from weir.stream.compaction_record import MAX_GENERATIONS, Compacted, next_generations

offsets = st.lists(st.integers(0, 2**40), max_size=20).map(BitMap64)
counts = st.integers(0, 2**40)
records = st.builds(
    Compacted,
    horizon=counts,
    ledger_id=st.none() | counts.map(LedgerId),
    entries=counts,
    live=offsets,
    start=counts,
    size_bytes=counts,
    done_ms=counts,
    tombstones=st.lists(st.tuples(counts, offsets), max_size=3).map(tuple),
    own=st.booleans(),
)


@given(records)
def test_what_is_written_comes_back(compacted: Compacted) -> None:
    assert Compacted.from_bytes(compacted.to_bytes()) == compacted


@given(records, st.data())
def test_damaged_bytes_are_refused_by_name(compacted: Compacted, data: st.DataObject) -> None:
    whole = compacted.to_bytes()
    end = data.draw(st.integers(0, len(whole) - 1))
    with suppress(WireError):
        Compacted.from_bytes(whole[:end])
    with pytest.raises(WireError):
        Compacted.from_bytes(b"\x09" + whole[1:])


def test_live_messages_before_the_start_are_masked() -> None:
    compacted = Compacted(horizon=10, live=BitMap64([0, 2, 3, 7]), start=3)
    assert compacted.mask(0, 4) == 0b1000
    assert compacted.mask(0, 2) == 0
    assert compacted.mask(6, 9) == 0b10


def test_a_tombstone_stays_for_its_time_from_the_compaction_that_found_it() -> None:
    first = next_generations((), BitMap64([5, 6]), 1000, 100)
    assert first == ((1000, BitMap64([5, 6])),)
    second = next_generations(first, BitMap64([5, 9]), 1050, 100)
    assert second == ((1000, BitMap64([5])), (1050, BitMap64([9])))
    assert next_generations(second, BitMap64([5, 9]), 1100, 100) == ((1050, BitMap64([9])),)
    assert next_generations((), BitMap64([5]), 1000, 0) == ()


def test_tombstones_of_many_compactions_are_told_apart_only_so_far_and_none_goes_too_early() -> None:
    kept: tuple[tuple[int, BitMap64], ...] = ()
    for n in range(40):
        kept = next_generations(kept, BitMap64(range(n + 1)), 1000 + n, 10**6)
        assert len(kept) <= MAX_GENERATIONS
        assert all(found_ms >= 1000 + max(found) for found_ms, found in kept)
    assert sum(len(found) for _, found in kept) == 40
