"""The bookie's plain parts: cache, index, tombstones, the choice of logs to rewrite."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.bookie.entry_index import Index, LedgerRuns, LogRun, LogUse
from weir.bookie.entry_logs import BytesLru
from weir.bookie.garbage_collection import choose
from weir.bookie.settings import GcSettings
from weir.bookie.space import BookieState, StateBox
from weir.bookie.store import LedgerTable, Tombstones
from weir.bookie.write_cache import ENTRY_OVERHEAD_BYTES, Batch, WriteCache
from weir.model.errors import InvariantError
from weir.model.ids import NO_ENTRY, Buffer, EntryId, LedgerId
from weir.wire.bookie_files import Run

L1, L2 = LedgerId(1), LedgerId(2)


def put(cache: WriteCache, ledger_id: LedgerId, ids: list[int], size: int = 10) -> None:
    entries: list[tuple[EntryId, Buffer]] = [(EntryId(n), bytes(size)) for n in ids]
    cache.put(Batch(ledger_id, entries, size * len(ids), EntryId(max(ids) - 1), EntryId(max(ids))))


# --- the write cache --------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=20, unique=True),
    st.lists(st.integers(0, 300), max_size=20, unique=True),
    st.integers(0, 310),
    st.integers(0, 310),
)
def test_the_lowest_cached_id_in_a_range_is_found(old: list[int], new: list[int], first: int, last: int) -> None:
    cache = WriteCache(1 << 20)
    put(cache, L1, old)
    cache.rotate()
    if new:
        put(cache, L1, new)
    expected = min((n for n in old + new if first <= n <= last), default=None)
    assert cache.at_or_after(L1, EntryId(first), EntryId(last)) == expected
    assert cache.last_entry(L1) == max(old + new)
    assert cache.at_or_after(L2, EntryId(first), EntryId(last)) is None


def test_there_is_no_room_only_while_one_generation_is_full_and_the_other_flushing() -> None:
    cache = WriteCache(2 * (10 + ENTRY_OVERHEAD_BYTES))
    assert cache.has_room
    put(cache, L1, [0])
    assert cache.has_room
    assert cache.full.is_set()
    cache.rotate()
    assert cache.has_room
    put(cache, L1, [1])
    assert not cache.has_room
    cache.drop_flushed()
    assert cache.has_room
    assert cache.get(L1, EntryId(0)) is None
    assert cache.get(L1, EntryId(1)) is not None


def test_a_flush_hurries_once_the_generation_that_takes_entries_is_half_full() -> None:
    cache = WriteCache(2 * 4 * (10 + ENTRY_OVERHEAD_BYTES))
    put(cache, L1, [0, 1, 2, 3])
    cache.rotate()
    put(cache, L1, [4])
    assert not cache.hurries
    put(cache, L1, [5])
    assert cache.hurries


def test_one_generation_is_flushed_at_a_time() -> None:
    cache = WriteCache(100)
    put(cache, L1, [0])
    cache.rotate()
    with pytest.raises(InvariantError):
        cache.rotate()


def test_a_forgotten_ledger_leaves_both_generations_while_they_are_walked_through() -> None:
    cache = WriteCache(1 << 20)
    put(cache, L1, [0])
    put(cache, L2, [0])
    flushing = cache.rotate()
    put(cache, L1, [1])
    for ledger_id in flushing.ledgers:
        if ledger_id == L1:
            cache.forget(L1)
    assert cache.ledgers() == [L2]
    assert cache.last_entry(L1) == NO_ENTRY


# --- the index --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=12), st.integers(0, 140))
def test_runs_are_found_newest_first_however_they_overlap(spans: list[tuple[int, int]], entry_id: int) -> None:
    runs = LedgerRuns()
    made = [
        LogRun(first, first + length, log, 0, length + 1, 0, 1) for log, (first, length) in enumerate(spans, 1)
    ]
    for run in made:
        runs.add(run)
    covering = [run for run in made if run.first <= entry_id <= run.last]
    assert runs.covering(entry_id) == sorted(covering, key=lambda run: -run.log)
    assert runs.next_first(entry_id) == min((run.first for run in made if run.first > entry_id), default=None)
    assert runs.last == max((run.last for run in made), default=-1)
    assert [run.first for run in runs] == sorted(run.first for run in made)
    runs.remove_logs(dict.fromkeys(range(1, len(made) + 1, 2)))
    assert runs.covering(entry_id) == sorted((r for r in covering if r.log % 2 == 0), key=lambda run: -run.log)


def run_of(ledger_id: LedgerId, first: int, size: int) -> Run:
    return Run(ledger_id, EntryId(first), EntryId(first), 0, 1, 0, size, EntryId(first - 1))


def test_live_bytes_follow_what_happens_to_runs() -> None:
    index = Index()
    for log in (1, 2):
        index.add_log(log, 100)
        index.add_run(log, run_of(L1, log, 60))
        index.add_run(log, run_of(L2, log, 40))
        index.seal(log)
    index.forget(L2)
    assert index.usage() == [LogUse(1, 100, 60), LogUse(2, 100, 60)]
    index.remove_runs(L1, {1: None})
    assert index.usage() == [LogUse(1, 100, 0), LogUse(2, 100, 60)]
    index.unseal([1])
    index.remove_logs([1])
    assert index.logs() == [2]
    assert index.last_entry(L1) == 2
    assert L2 not in index


# --- tombstones -------------------------------------------------------------------------------------------------


def test_a_tombstone_stands_until_the_last_log_that_holds_the_ledger_is_gone() -> None:
    stones = Tombstones()
    stones.bury(L1, 5)
    stones.found(L1, 3)
    stones.found(L1, 5)
    assert stones.is_dead(L1, 5)
    assert not stones.is_dead(L1, 6)
    stones.log_removed(3)
    assert stones.needed([]) == [(L1, 5)]
    stones.log_removed(5)
    assert stones.needed([]) == []
    assert len(stones) == 0


def test_a_tombstone_waits_for_a_log_that_was_begun_before_the_deletion() -> None:
    stones = Tombstones()
    stones.bury(L1, 5)
    assert stones.needed([5, 6]) == [(L1, 5)]
    assert stones.needed([6]) == []


# --- which logs to rewrite --------------------------------------------------------------------------------------

GC = GcSettings(live_below=0.5, small_bytes=10, merge_logs=3, target_bytes=100)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param([], [], id="nothing there"),
        pytest.param([LogUse(1, 100, 50), LogUse(2, 100, 100)], [], id="all are live enough"),
        pytest.param([LogUse(1, 100, 49), LogUse(2, 100, 60)], [1], id="a sparse one"),
        pytest.param([LogUse(1, 5, 5), LogUse(2, 5, 5)], [], id="few small ones are left alone"),
        pytest.param(
            [LogUse(1, 5, 5), LogUse(2, 90, 90), LogUse(3, 5, 5), LogUse(4, 5, 5)], [1, 3, 4], id="merged"
        ),
        pytest.param([LogUse(n, 200, 45) for n in range(1, 9)], [1, 2], id="as many as fit together"),
        pytest.param([LogUse(1, 1000, 400)], [1], id="one that does not fit goes alone"),
    ],
)
def test_which_logs_are_rewritten(usage: list[LogUse], expected: list[int]) -> None:
    assert choose(usage, GC) == expected


# --- small things -----------------------------------------------------------------------------------------------


def test_the_lru_forgets_what_was_used_longest_ago() -> None:
    lru: BytesLru[int] = BytesLru(30)
    for key in (1, 2, 3):
        lru.put(key, bytes(10))
    lru.get(1)
    lru.put(4, bytes(10))
    assert [lru.get(key) is not None for key in (1, 2, 3, 4)] == [True, False, True, True]
    assert lru.size == 30
    lru.put(5, bytes(50))  # larger than the limit: it alone stays
    assert lru.size == 50


async def test_a_failed_bookie_never_becomes_writable_again() -> None:
    box = StateBox()
    box.become(BookieState.FAILED)
    box.become(BookieState.WRITABLE)
    assert box.state is BookieState.FAILED
    assert await box.changed_from(BookieState.WRITABLE) is BookieState.FAILED


def test_a_fence_on_its_way_outlasts_a_deletion_before_it() -> None:
    table = LedgerTable()
    table.begin_fence(L1)
    table.forget(L1)
    assert table.is_fenced(L1)
    table.fence(L1)
    table.end_fence(L1)
    assert table.is_fenced_durably(L1)
