"""The plain parts of the holding area: windows, places, the index in memory, grouped reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import WireError
from weir.model.ids import LedgerId
from weir.model.messages import FOREVER_MS
from weir.stream.holding.area import groups
from weir.stream.holding.ledger import (
    UNDATED,
    HeldLedger,
    NearIndex,
    due_of,
    entry_of,
    moment,
    place_of,
    serial_of,
    window_of,
)
from weir.stream.holding.loader import runs
from weir.wire.delayed_batches import HoldingRecord, encode_record

moments = st.integers(0, 2**62)
serials = st.integers(0, 2**24 - 1)
entries = st.integers(0, 2**40 - 1)


@given(moments, serials, entries)
def test_a_place_tells_what_it_was_made_of(due_ms: int, serial: int, entry: int) -> None:
    place = place_of(due_ms, serial, entry)
    assert (due_of(place), serial_of(place), entry_of(place)) == (due_ms, serial, entry)
    assert moment(due_ms) <= place < moment(due_ms + 1)


@given(st.lists(st.tuples(moments, serials, entries)))
def test_places_sort_by_moment_then_ledger_then_entry(parts: list[tuple[int, int, int]]) -> None:
    assert sorted(place_of(*part) for part in parts) == [place_of(*part) for part in sorted(parts)]


@given(due_ms=moments, now_ms=moments, width_ms=st.integers(1, 10**8), fine=st.integers(2, 64))
def test_a_window_holds_the_moment_or_now_if_that_is_past(
    due_ms: int, now_ms: int, width_ms: int, fine: int
) -> None:
    window = window_of(due_ms, now_ms, width_ms, fine)
    assert window == UNDATED or window.first_ms <= max(due_ms, now_ms) < window.end_ms


def test_far_ahead_few_windows_are_in_use() -> None:
    now, hour = 1_700_000_000_000, 3_600_000
    a_month = {window_of(now + n * hour // 4, now, 4 * hour, 32): None for n in range(30 * 24 * 4)}
    a_century = {window_of(now + n * 24 * hour, now, 4 * hour, 32): None for n in range(100 * 365)}
    assert len(a_month) < 80
    assert len(a_century) < 320


def test_what_is_never_due_lies_in_a_window_that_never_comes() -> None:
    assert not UNDATED.dated
    assert window_of(FOREVER_MS - 1, 0, 1000, 32) == UNDATED


@given(st.lists(st.integers(0, 10**6)), st.integers(2, 20))
def test_the_index_gives_the_earliest_first_and_says_from_where_on_it_forgot(
    places: list[int], limit: int
) -> None:
    index = NearIndex(limit)
    forgotten_from = None
    for place in places:
        if forgotten_from is None or place < forgotten_from:
            index.push(place)
        if index.is_over:
            cut = index.cut()
            forgotten_from = cut if cut is not None else forgotten_from
        assert not index.is_over
    popped = [index.pop() for _ in range(len(index))]
    assert popped == sorted(popped)
    kept = {place for place in places if forgotten_from is None or place < forgotten_from}
    assert set(popped) == kept


def test_a_place_that_is_there_twice_is_forgotten_before_another_one() -> None:
    index = NearIndex(4)
    for place in (1, 1, 2, 2, 3):
        index.push(place)
    assert index.cut() is None
    assert [index.pop() for _ in range(len(index))] == [1, 2, 3]


@given(st.lists(st.integers(0, 10_000), unique=True), st.integers(1, 10**7))
def test_runs_have_every_entry_once_in_order(wanted: list[int], mean_bytes: int) -> None:
    found = runs(sorted(wanted), mean_bytes)
    assert [entry for run in found for entry in run] == sorted(wanted)


def test_entries_close_together_are_one_read_and_far_ones_are_not() -> None:
    assert runs([1, 2, 5, 100, 101], 100) == [[1, 2, 5], [100, 101]]
    assert runs([1, 2, 3], 10**7) == [[1], [2], [3]]


def _ledger(serial: int, first_ms: int, end_ms: int) -> HeldLedger:
    return HeldLedger(LedgerId(serial), HoldingRecord(serial, first_ms, end_ms))


def test_ledgers_whose_windows_overlap_are_listed_together() -> None:
    near, wide, inside, after = _ledger(3, 0, 10), _ledger(1, 10, 50), _ledger(2, 20, 30), _ledger(0, 50, 60)
    assert groups([after, wide, inside, near]) == [[near], [wide, inside], [after]]


def test_a_ledger_survives_being_written_down() -> None:
    ledger = _ledger(5, 100, 200)
    for size in (10, 20, 30):
        ledger.grow(2, size)
    ledger.finish(1, 2)
    again = HeldLedger.from_bytes(ledger.key, ledger.to_bytes())
    assert (again.ledger_id, again.serial, again.window) == (ledger.ledger_id, ledger.serial, ledger.window)
    assert (again.held_entries, again.held_messages, again.mean_bytes) == (2, 4, 20)
    assert [again.is_free(entry) for entry in range(-1, 4)] == [False, True, False, True, False]
    assert again.in_doubt
    assert not again.is_drained


@pytest.mark.parametrize(
    ("key", "data"),
    [("holding/x", HoldingRecord(1, 2, 3)), ("holding/7", HoldingRecord(1, 2, 3, done=b"no bitmap"))],
)
def test_a_malformed_record_is_refused(key: str, data: HoldingRecord) -> None:
    with pytest.raises(WireError):
        HeldLedger.from_bytes(key, encode_record(data))
