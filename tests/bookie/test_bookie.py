"""What a bookie promises to whoever calls it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from weir.bookie.bookie import Bookie
from weir.bookie.settings import JournalSettings
from weir.bookie.space import BookieState
from weir.bookie.write_cache import WriteCache
from weir.model.errors import (
    BookieBusyError,
    BookieCookieError,
    BookieUnavailableError,
    EntryCorruptError,
    FileLockedError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from weir.model.ids import NO_ENTRY, EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.runtime.real import real_runtime
from weir.testing.storage.bookies import batch, entry, periodic, tiny_settings
from weir.wire.entry import HEADER_BYTES

Tell = Callable[..., None]
L1, L2 = LedgerId(1), LedgerId(2)


def ids(result: object) -> list[int]:
    return [entry_id for entry_id, _ in result.entries]  # type: ignore[attr-defined]


# --- adding and reading ----------------------------------------------------------------------------------------


def test_an_entry_comes_back_as_it_went(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        await bookie.add(L1, [(EntryId(0), entry(1, 0, b"hello"))])
        result = await bookie.read(L1, EntryId(0), EntryId(0), max_bytes=1)
        assert result.entries == [(0, entry(1, 0, b"hello"))]
        assert result.last_confirmed == NO_ENTRY

    tell(story)


@pytest.mark.parametrize("flushed", [False, True], ids=["from the cache", "from a log"])
@pytest.mark.parametrize("size", [60, 4_500], ids=["many in a block", "larger than a block"])
def test_a_range_stops_at_the_bytes_asked_for_but_gives_one_entry(tell: Tell, size: int, flushed: bool) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        await bookie.add(L1, batch(1, 0, 10, b"x" * size))
        if flushed:
            await bookie.flush()
        one = HEADER_BYTES + size
        assert ids(await bookie.read(L1, EntryId(2), EntryId(9), max_bytes=1)) == [2]
        assert ids(await bookie.read(L1, EntryId(2), EntryId(9), max_bytes=3 * one)) == [2, 3, 4]
        assert ids(await bookie.read(L1, EntryId(2), EntryId(9), max_bytes=4 * one - 1)) == [2, 3, 4]
        assert ids(await bookie.read(L1, EntryId(2), EntryId(4), max_bytes=1 << 20)) == [2, 3, 4]
        assert ids(await bookie.read(L1, EntryId(7), EntryId(1 << 62), max_bytes=1 << 20)) == [7, 8, 9]

    tell(story)


@pytest.mark.parametrize("flushed", [False, True], ids=["from the cache", "from a log"])
def test_missing_entries_are_left_out_of_a_range_and_denied_as_its_first(tell: Tell, flushed: bool) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        held = [0, 1, 3, 4, 6, 7, 500_000]
        for number in held:
            await bookie.add(L1, [(EntryId(number), entry(1, number))])
        if flushed:
            await bookie.flush()
        assert ids(await bookie.read(L1, EntryId(0), EntryId(1 << 50), max_bytes=1 << 20)) == held
        for missing in (2, 5, 8, 499_999, 500_001):
            with pytest.raises(NoSuchEntryError):
                await bookie.read(L1, EntryId(missing), EntryId(1 << 50), max_bytes=1 << 20)

    tell(story)


def test_a_range_goes_through_logs_and_cache_without_a_seam(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        for first in range(0, 60, 10):
            await bookie.add(
                L1, [(EntryId(n), entry(1, n, bytes(100))) for n in range(first, first + 10) if n % 3]
            )
            if first < 50:
                await bookie.flush()
        result = await bookie.read(L1, EntryId(1), EntryId(100), max_bytes=1 << 20)
        assert ids(result) == [n for n in range(60) if n % 3]

    tell(story)


def test_entries_larger_than_a_read_ahead_block_come_back(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        payloads = {n: bytes([n]) * (1000 + 3000 * n) for n in range(8)}
        for n, payload in payloads.items():
            await bookie.add(L1, [(EntryId(n), entry(1, n, payload))])
        await bookie.flush()
        result = await bookie.read(L1, EntryId(0), EntryId(7), max_bytes=1 << 20)
        assert result.entries == [(n, entry(1, n, payload)) for n, payload in payloads.items()]

    tell(story)


@pytest.mark.parametrize("flushed", [False, True], ids=["cache over cache", "log over log"])
def test_an_entry_that_is_added_again_replaces_the_first(tell: Tell, flushed: bool) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        await bookie.add(L1, batch(1, 0, 5))
        if flushed:
            await bookie.flush()
        await bookie.add(L1, [(EntryId(2), entry(1, 2, b"again"))], recovery=True)
        if flushed:
            await bookie.flush()
        result = await bookie.read(L1, EntryId(1), EntryId(3), max_bytes=1 << 20)
        assert result.entries == [(1, entry(1, 1)), (2, entry(1, 2, b"again")), (3, entry(1, 3))]

    tell(story)


def test_what_a_bookie_never_held_is_denied(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        with pytest.raises(NoSuchLedgerError):
            await bookie.read(L1, EntryId(0), EntryId(0), max_bytes=1)
        with pytest.raises(NoSuchLedgerError):
            await bookie.last_confirmed(L1)

    tell(story)


@pytest.mark.parametrize(
    "data",
    [
        entry(1, 8),
        entry(2, 7),
        entry(1, 7)[:-1],
        entry(1, 7) + b"x",
        entry(1, 7)[:20],
        entry(1, 7)[:-1] + b"X",
    ],
    ids=["another id", "another ledger", "cut", "too long", "no header", "damaged"],
)
def test_an_entry_that_is_not_what_it_is_said_to_be_is_refused(tell: Tell, data: bytes) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        refused = bookie.add(L1, [(EntryId(6), entry(1, 6)), (EntryId(7), data)])
        assert refused.done()
        with pytest.raises(EntryCorruptError):
            await refused
        with pytest.raises(NoSuchLedgerError):
            await bookie.read(L1, EntryId(6), EntryId(6), max_bytes=1)

    tell(story)


def test_nothing_can_be_read_before_it_is_durable(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        adding = bookie.add(L1, batch(1, 0, 1))
        with pytest.raises(NoSuchLedgerError):
            await bookie.read(L1, EntryId(0), EntryId(0), max_bytes=1)
        await adding
        assert ids(await bookie.read(L1, EntryId(0), EntryId(0), max_bytes=1)) == [0]

    tell(story)


def test_adds_that_wait_together_become_durable_together(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        before = bookie.stats().journal_writes
        await asyncio.gather(*(bookie.add(LedgerId(n), batch(n, 0, 1)) for n in range(50)))
        assert bookie.stats().journal_writes - before <= 2

    tell(story)


def test_beyond_the_queues_limit_adds_are_refused_as_busy(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        first = bookie.add(L1, batch(1, 0, 1, bytes(300 * 1024)))  # alone it may be as large as it likes
        second = bookie.add(L1, batch(1, 1, 1))
        refusal = second.exception()
        assert isinstance(refusal, BookieBusyError)
        assert (
            refusal.__traceback__ is None
        )  # its frames would keep the entries of both until a garbage collection
        await first
        await bookie.add(L1, batch(1, 1, 1))

    tell(story)


def test_a_batch_larger_than_a_journal_file_is_stored_and_replayed(tell: Tell) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        await bookie.add(L1, batch(1, 0, 3, bytes(70 * 1024)))
        await bookie.add(L1, batch(1, 3, 1))
        assert ids(await bookie.read(L1, EntryId(0), EntryId(9), max_bytes=1 << 20)) == [0, 1, 2, 3]

    tell(story)


def test_a_slice_of_a_reused_buffer_is_not_kept(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        buffer = bytearray(64 * 1024)
        data = entry(1, 0)
        buffer[: len(data)] = data
        await bookie.add(L1, [(EntryId(0), memoryview(buffer)[: len(data)])])
        buffer[: len(data)] = bytes(len(data))
        assert (await bookie.read(L1, EntryId(0), EntryId(0), max_bytes=1)).entries == [(0, data)]

    tell(story)


# --- last-add-confirmed and polling ----------------------------------------------------------------------------


def test_the_last_confirmed_is_the_highest_that_any_entry_or_hint_brought(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        await bookie.add(L1, [(EntryId(5), entry(1, 5, last_confirmed=4))])
        await bookie.add(L1, [(EntryId(3), entry(1, 3, last_confirmed=2))], recovery=True)
        assert await bookie.last_confirmed(L1) == 4
        bookie.confirm(L1, EntryId(5))
        bookie.confirm(L1, EntryId(1))
        assert await bookie.last_confirmed(L1) == 5

    tell(story)


def test_a_poll_waits_for_the_next_entry(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        polling = asyncio.ensure_future(bookie.poll(L1, NO_ENTRY, timeout_s=60))
        await bookie.add(L1, batch(1, 0, 1))
        assert not polling.done()
        await bookie.add(L1, batch(1, 1, 1))
        result = await polling
        assert result == ([(0, entry(1, 0))], 0)

    tell(story)


def test_a_poll_that_nothing_answers_ends_with_its_time(tell: Tell) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        await bookie.add(L1, batch(1, 0, 4))
        began = runtime.clock.monotonic()
        assert await bookie.poll(L1, EntryId(2), timeout_s=5) == ([], 2)
        assert runtime.clock.monotonic() - began == pytest.approx(5)
        assert bookie.stats().polls == 0

    tell(story)


@pytest.mark.parametrize("verb", ["fence", "delete"])
def test_a_poll_is_answered_when_the_ledger_is_fenced_or_deleted(tell: Tell, verb: str) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        began = runtime.clock.monotonic()
        polling = asyncio.ensure_future(bookie.poll(L1, EntryId(9), timeout_s=60))
        await runtime.clock.sleep(0)
        await getattr(bookie, verb)(L1)
        assert (await polling).entries == []
        assert runtime.clock.monotonic() - began < 1

    tell(story)


def test_a_hint_answers_a_poll_of_a_ledger_that_is_not_known_yet(tell: Tell) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        polling = asyncio.ensure_future(bookie.poll(L1, EntryId(3), timeout_s=60))
        await runtime.clock.sleep(0)
        bookie.confirm(L1, EntryId(4))
        assert await polling == ([], 4)

    tell(story)


def test_no_more_polls_wait_than_the_settings_allow(tell: Tell) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        polling = asyncio.ensure_future(bookie.poll(L1, NO_ENTRY, timeout_s=1))
        await runtime.clock.sleep(0)
        with pytest.raises(BookieBusyError):
            await bookie.poll(L2, NO_ENTRY, timeout_s=1)
        await polling

    tell(story, replace(tiny_settings(), max_polls=1))


# --- fencing and deleting --------------------------------------------------------------------------------------


def test_a_fenced_ledger_takes_only_recovery_adds(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        await bookie.add(L1, batch(1, 0, 3))
        assert await bookie.fence(L1) == 1
        refused = bookie.add(L1, batch(1, 3, 1))
        assert isinstance(refused.exception(), LedgerFencedError)
        await bookie.add(L1, batch(1, 3, 1), recovery=True)
        assert ids(await bookie.read(L1, EntryId(0), EntryId(9), max_bytes=1 << 20)) == [0, 1, 2, 3]

    tell(story)


def test_a_fence_is_in_force_at_once_and_answered_after_the_adds_before_it(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        before = bookie.add(L1, batch(1, 0, 2))
        fencing = asyncio.ensure_future(bookie.fence(L1))
        await asyncio.wait([fencing], timeout=0)
        assert isinstance(bookie.add(L1, batch(1, 2, 1)).exception(), LedgerFencedError)
        assert await fencing == 0
        assert before.done()

    tell(story)


def test_a_ledger_that_is_not_here_can_be_fenced(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        assert await bookie.fence(L1) == NO_ENTRY
        assert isinstance(bookie.add(L1, batch(1, 0, 1)).exception(), LedgerFencedError)
        assert await bookie.last_confirmed(L1) == NO_ENTRY
        assert bookie.ledgers() == [L1]

    tell(story)


@pytest.mark.parametrize("flushed", [False, True], ids=["from the cache", "from a log"])
def test_a_deleted_ledger_is_gone_and_others_stay(tell: Tell, flushed: bool) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        await asyncio.gather(bookie.add(L1, batch(1, 0, 5)), bookie.add(L2, batch(2, 0, 5)))
        if flushed:
            await bookie.flush()
        await bookie.delete(L1)
        await bookie.delete(L1)
        with pytest.raises(NoSuchLedgerError):
            await bookie.read(L1, EntryId(0), EntryId(9), max_bytes=1)
        assert ids(await bookie.read(L2, EntryId(0), EntryId(9), max_bytes=1 << 20)) == [0, 1, 2, 3, 4]
        assert bookie.ledgers() == [L2]

    tell(story)


@pytest.mark.parametrize("flushed", [False, True], ids=["by the journal", "by the checkpoint"])
async def test_a_deleted_ledger_takes_no_more_adds_even_after_a_restart(tmp_path: Path, flushed: bool) -> None:
    runtime, settings = real_runtime(), tiny_settings(str(tmp_path / "b"))
    bookie = await Bookie.open(runtime, settings)
    await bookie.add(L1, batch(1, 0, 2))
    await bookie.fence(L1)
    deleting = asyncio.ensure_future(bookie.delete(L1))
    await asyncio.sleep(0)
    for _ in range(2):  # while it is being deleted, and afterwards
        assert isinstance(bookie.add(L1, batch(1, 2, 3)).exception(), LedgerFencedError)
        await deleting
    if flushed:
        await bookie.flush()
    await bookie.close()
    again = await Bookie.open(runtime, settings)
    assert isinstance(again.add(L1, batch(1, 2, 3)).exception(), LedgerFencedError)
    await again.add(L2, batch(2, 0, 1))
    await again.close()


def test_collect_deletes_what_the_metadata_no_longer_has(tell: Tell) -> None:
    async def story(bookie: Bookie, _: Runtime) -> None:
        for n in (1, 2, 3):
            await bookie.add(LedgerId(n), batch(n, 0, 1))

        async def live() -> list[LedgerId]:
            await bookie.add(LedgerId(4), batch(4, 0, 1))  # created after the bookie looked at what it has
            return [L2]

        assert await bookie.collect(live) == 2
        assert bookie.ledgers() == [2, 4]

    tell(story)


# --- life ------------------------------------------------------------------------------------------------------


async def test_a_closed_bookie_comes_back_with_everything(tmp_path: Path) -> None:
    runtime, settings = real_runtime(), tiny_settings(str(tmp_path / "b"))
    bookie = await Bookie.open(runtime, settings)
    cookie = bookie.cookie
    for n in range(40):
        await bookie.add(LedgerId(n % 5), batch(n % 5, n // 5, 1, bytes(2000)))
    await bookie.fence(L2)
    await bookie.close()
    again = await Bookie.open(runtime, settings)
    assert again.cookie == cookie
    assert again.ledgers() == [0, 1, 2, 3, 4]
    assert again.stats().write_cache_entries == 0
    for ledger in range(5):
        result = await again.read(LedgerId(ledger), EntryId(0), EntryId(99), max_bytes=1 << 20)
        assert (ids(result), result.last_confirmed) == (list(range(8)), 6)
    assert isinstance(again.add(L2, batch(2, 8, 1)).exception(), LedgerFencedError)
    await again.close()


async def test_a_folder_belongs_to_one_bookie_and_one_process(tmp_path: Path) -> None:
    runtime, settings = real_runtime(), tiny_settings(str(tmp_path / "b"))
    bookie = await Bookie.open(runtime, settings)
    with pytest.raises(FileLockedError):
        await Bookie.open(runtime, settings)
    await bookie.close()
    with pytest.raises(BookieCookieError):
        await Bookie.open(runtime, tiny_settings(str(tmp_path / "b"), "b2"))


async def test_a_folder_that_lost_its_cookie_is_not_formatted_again(tmp_path: Path) -> None:
    runtime, settings = real_runtime(), tiny_settings(str(tmp_path / "b"))
    await (await Bookie.open(runtime, settings)).close()
    (tmp_path / "b" / "cookie").unlink()
    with pytest.raises(BookieCookieError, match="cookie is missing"):
        await Bookie.open(runtime, settings)


def test_a_closed_bookie_refuses_and_says_so(tell: Tell) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        polling = asyncio.ensure_future(bookie.poll(L1, NO_ENTRY, timeout_s=60))
        watching = asyncio.ensure_future(bookie.state_changed(BookieState.WRITABLE))
        pending = bookie.add(L1, batch(1, 0, 1))
        await runtime.clock.sleep(0)
        await bookie.close()
        await bookie.close()
        assert pending.exception() is None
        assert await watching is BookieState.CLOSED
        with pytest.raises(BookieUnavailableError):
            await polling
        assert isinstance(bookie.add(L1, batch(1, 1, 1)).exception(), BookieUnavailableError)
        with pytest.raises(BookieUnavailableError):
            await bookie.fence(L1)

    tell(story)


def test_with_periodic_sync_a_closed_bookie_comes_back_with_everything(tell: Tell) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        for n in range(200):
            await bookie.add(L1, batch(1, n, 1, bytes(1000)))
        await bookie.close()
        again = await Bookie.open(runtime, settings)
        assert len((await again.read(L1, EntryId(0), EntryId(999), max_bytes=1 << 30)).entries) == 200

    settings = periodic(tiny_settings(), 0.01)
    tell(story, settings)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(Exception, match="sync interval"):
        JournalSettings(sync_interval_s=0)


@pytest.mark.parametrize(
    ("leisurely", "hurries", "took_s"), [(True, False, 0.03), (True, True, 0.01), (False, False, 0.01)]
)
def test_a_flush_leaves_the_disk_alone_while_it_has_time(
    tell: Tell, leisurely: bool, hurries: bool, took_s: float
) -> None:
    async def story(bookie: Bookie, runtime: Runtime) -> None:
        class Writer:
            async def drain(self) -> None:
                await runtime.clock.sleep(0.01)

        flusher = bookie._flusher
        flusher._leisurely = leisurely
        with patch.object(WriteCache, "hurries", hurries):
            began = runtime.clock.monotonic()
            await flusher._drain(Writer())  # type: ignore[arg-type]
        assert runtime.clock.monotonic() - began == pytest.approx(took_s, abs=0.005)

    tell(story)
