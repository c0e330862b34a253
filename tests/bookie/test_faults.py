"""A bookie on a disk that is full, stuck, rotten or failing."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from weir.bookie.bookie import Bookie
from weir.bookie.folder import Layout
from weir.bookie.settings import BookieSettings, SpaceSettings
from weir.bookie.space import BookieState
from weir.model.errors import (
    BookieReadOnlyError,
    BookieUnavailableError,
    EntryCorruptError,
    EntryLogMissingError,
    JournalCorruptError,
)
from weir.model.ids import EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.testing.storage.bookies import KIB, batch, entry, tiny_settings
from weir.testing.world.disk import DiskFaults, SimDisk
from weir.testing.world.world import World, simulate

L1, L2 = LedgerId(1), LedgerId(2)
LAYOUT = Layout("/bookie")

Story = Callable[[Bookie, Runtime, SimDisk], Awaitable[None]]


def play(
    *stories: Story, settings: BookieSettings | None = None, between: Callable[[SimDisk], None] | None = None
) -> None:
    """Each story with a bookie on the same disk, one process after the other, killed in between."""

    async def scenario(world: World) -> None:
        node = world.node("bookie")
        for number, story in enumerate(stories):
            if number and between is not None:
                between(node.disk)

            async def main(runtime: Runtime, story: Story = story) -> None:
                await story(await Bookie.open(runtime, settings or tiny_settings()), runtime, node.disk)

            await node.start(main)
            node.crash()

    simulate(1, scenario)


async def readable(bookie: Bookie, ledger_id: LedgerId, count: int) -> bool:
    result = await bookie.read(ledger_id, EntryId(0), EntryId(count), max_bytes=1 << 30)
    return [entry_id for entry_id, _ in result.entries] == list(range(count))


# --- full -------------------------------------------------------------------------------------------------------


def test_below_the_low_water_mark_it_is_read_only_and_above_the_high_one_writable_again() -> None:
    space = SpaceSettings(low_water_bytes=300 * KIB, high_water_bytes=400 * KIB, interval_s=0.02)

    async def story(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        await bookie.add(L1, batch(1, 0, 3))
        disk.capacity_bytes = disk.used_bytes + 200 * KIB
        assert await bookie.state_changed(BookieState.WRITABLE) is BookieState.READ_ONLY
        assert isinstance(bookie.add(L1, batch(1, 3, 1)).exception(), BookieReadOnlyError)
        assert await readable(bookie, L1, 3)
        assert await bookie.fence(L1) == 1
        await bookie.add(L1, batch(1, 3, 1), recovery=True)
        disk.capacity_bytes = disk.used_bytes + 350 * KIB
        await runtime.clock.sleep(1)
        assert bookie.state is BookieState.READ_ONLY
        disk.capacity_bytes = disk.used_bytes + 450 * KIB
        assert await bookie.state_changed(BookieState.READ_ONLY) is BookieState.WRITABLE
        await bookie.add(L2, batch(2, 0, 1))

    play(story, settings=replace(tiny_settings(), space=space))


def test_a_disk_that_fills_up_at_once_loses_nothing_and_recovers() -> None:
    acknowledged = 0

    async def fill(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        nonlocal acknowledged
        disk.capacity_bytes = disk.used_bytes + 100 * KIB
        while bookie.state is BookieState.WRITABLE:
            try:
                await bookie.add(L1, batch(1, acknowledged, 1, bytes(2000)))
                acknowledged += 1
            except BookieReadOnlyError:
                break
        assert bookie.state is BookieState.READ_ONLY
        assert await readable(bookie, L1, acknowledged)
        disk.capacity_bytes = disk.used_bytes + 10_000 * KIB
        assert await bookie.state_changed(BookieState.READ_ONLY) is BookieState.WRITABLE
        await bookie.add(L1, batch(1, acknowledged, 1))
        acknowledged += 1

    async def check(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        assert await readable(bookie, L1, acknowledged)

    play(fill, check)
    assert acknowledged > 10


@pytest.mark.parametrize("sync_interval_s", [None, 0.05], ids=["always", "interval"])
@pytest.mark.parametrize("seed", range(20))
def test_writes_into_reserved_space_that_find_none_are_refused_and_later_ones_stored(
    seed: int, sync_interval_s: float | None
) -> None:
    """Copy on write: the space was reserved, and yet the write fails, with part of it on the disk."""
    settings = tiny_settings()
    settings = replace(
        settings,
        journal=replace(settings.journal, sync_interval_s=sync_interval_s),
        space=replace(settings.space, interval_s=0.02),
    )
    known: dict[int, bool] = {}

    async def scenario(world: World) -> None:
        rng, node = world.rng("scenario"), world.node("bookie")

        async def check(bookie: Bookie) -> None:
            for entry_id in (entry_id for entry_id, stored in known.items() if stored):
                found = await bookie.read(L1, EntryId(entry_id), EntryId(entry_id), max_bytes=1 << 20)
                assert found.entries == batch(1, entry_id, 1, bytes(300))

        async def main(runtime: Runtime) -> None:
            bookie = await Bookie.open(runtime, settings)
            await check(bookie)
            for _ in range(3):
                node.disk.faults = DiskFaults(full=True)
                for turn in range(40):
                    entry_id = len(known)
                    known[entry_id] = False
                    try:
                        await bookie.add(L1, batch(1, entry_id, 1, bytes(300)))
                        known[entry_id] = True
                    except BookieReadOnlyError:
                        await runtime.clock.sleep(0.01)
                    if turn == rng.randrange(40):
                        node.disk.faults = DiskFaults()
                node.disk.faults = DiskFaults()
                while bookie.state is BookieState.READ_ONLY:
                    await runtime.clock.sleep(0.1)
                assert bookie.state is BookieState.WRITABLE
                for _ in range(rng.randrange(5)):
                    entry_id = len(known)
                    known[entry_id] = False
                    await bookie.add(L1, batch(1, entry_id, 1, bytes(300)))
                    known[entry_id] = True
            await check(bookie)
            await runtime.clock.sleep(1)

        for _ in range(4):
            await node.start(main)
            node.crash(power_loss=rng.random() < 0.7)

    simulate(seed, scenario)
    assert set(known.values()) == {True, False}


def test_a_bookie_starts_read_only_on_a_full_disk() -> None:
    async def write(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        await bookie.add(L1, batch(1, 0, 10, bytes(500)))
        disk.capacity_bytes = disk.used_bytes

    async def read(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        assert bookie.state is BookieState.READ_ONLY
        assert await readable(bookie, L1, 10)
        assert await bookie.fence(L1) == 8

    slow_flush = replace(tiny_settings(), flush=replace(tiny_settings().flush, interval_s=1000))
    play(write, read, settings=slow_flush)


# --- stuck and failing ------------------------------------------------------------------------------------------


def test_a_stuck_disk_delays_adds_and_nothing_else() -> None:
    async def story(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        await bookie.add(L1, batch(1, 0, 2))
        disk.faults = DiskFaults(stuck=True)
        adding = bookie.add(L1, batch(1, 2, 1))
        await runtime.clock.sleep(5)
        assert not adding.done()
        assert await readable(bookie, L1, 2)
        disk.faults = DiskFaults()
        await adding
        assert await readable(bookie, L1, 3)

    play(story)


def test_a_failed_journal_write_ends_the_bookie() -> None:
    async def story(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        await bookie.add(L1, batch(1, 0, 2))
        disk.faults = DiskFaults(sync_error_chance=1.0)
        pending = [bookie.add(L1, batch(1, n, 1)) for n in (2, 3)]
        fencing = asyncio.ensure_future(bookie.fence(L2))
        assert await bookie.state_changed(BookieState.WRITABLE) is BookieState.FAILED
        for failed in pending:
            assert isinstance(failed.exception(), BookieUnavailableError)
        with pytest.raises(BookieUnavailableError):
            await fencing
        disk.faults = DiskFaults()
        assert isinstance(bookie.add(L1, batch(1, 4, 1)).exception(), BookieUnavailableError)
        with pytest.raises(BookieUnavailableError):
            await bookie.read(L1, EntryId(0), EntryId(0), max_bytes=1)
        await bookie.close()

    async def after(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        assert (await bookie.read(L1, EntryId(0), EntryId(1), max_bytes=1 << 20)).entries == batch(1, 0, 2)

    play(story, after)


def test_a_flush_that_fails_is_tried_again() -> None:
    async def story(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        await bookie.add(L1, batch(1, 0, 20, bytes(500)))
        disk.faults = DiskFaults(write_error_chance=1.0)
        assert await bookie.state_changed(BookieState.WRITABLE) is BookieState.READ_ONLY
        assert await readable(bookie, L1, 20)
        disk.faults = DiskFaults()
        assert await bookie.state_changed(BookieState.READ_ONLY) is BookieState.WRITABLE
        await runtime.clock.sleep(1)
        assert bookie.stats().write_cache_entries == 0
        assert await readable(bookie, L1, 20)

    play(story)


# --- rot --------------------------------------------------------------------------------------------------------


async def _three_flushed(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
    await bookie.add(L1, batch(1, 0, 3, bytes(500)))
    await bookie.close()


def test_a_rotten_entry_is_reported_and_its_neighbours_are_served() -> None:
    def rot(disk: SimDisk) -> None:
        disk.rot(LAYOUT.log_file(1), len(entry(1, 0, bytes(500))) + 100)

    async def story(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        with pytest.raises(EntryCorruptError, match="entry 1 of ledger 1"):
            await bookie.read(L1, EntryId(1), EntryId(2), max_bytes=1 << 20)
        for first, expected in ((0, [0]), (2, [2])):
            result = await bookie.read(L1, EntryId(first), EntryId(9), max_bytes=1 << 20)
            assert [entry_id for entry_id, _ in result.entries] == expected
        assert (await bookie.poll(L1, EntryId(0), timeout_s=1)).entries == []
        await bookie.add(L1, batch(1, 1, 1, bytes(500)), recovery=True)
        assert await readable(bookie, L1, 3)

    play(_three_flushed, story, between=rot)


def test_a_log_with_a_rotten_entry_is_left_alone_by_garbage_collection() -> None:
    async def write(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        await asyncio.gather(
            bookie.add(L1, batch(1, 0, 3, bytes(500))), bookie.add(L2, batch(2, 0, 30, bytes(500)))
        )
        await bookie.close()

    async def story(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        await bookie.delete(L2)
        await runtime.clock.sleep(1)
        assert bookie.stats().damaged_logs == 1
        with pytest.raises(EntryCorruptError):
            await bookie.read(L1, EntryId(1), EntryId(1), max_bytes=1)
        await bookie.read(L1, EntryId(2), EntryId(2), max_bytes=1)

    play(
        write,
        story,
        between=lambda disk: disk.rot(LAYOUT.log_file(1), len(entry(1, 0, bytes(500))) + 100) and None,
    )


@pytest.mark.parametrize("offset", [10, 70, 4200], ids=["header", "runs", "page"])
def test_a_rotten_index_is_made_anew_and_costs_no_entry(offset: int) -> None:
    async def story(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        assert await readable(bookie, L1, 3)
        assert bookie.stats().mended_indexes == (offset >= 4096)  # the others were mended when it opened

    play(_three_flushed, story, between=lambda disk: disk.rot(LAYOUT.index_file(1), offset) and None)


def test_a_missing_index_is_made_anew() -> None:
    async def story(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        assert await readable(bookie, L1, 3)
        assert await bookie.last_confirmed(L1) == 1

    play(_three_flushed, story, between=lambda disk: disk.names.remove(LAYOUT.index_file(1)))


def test_a_missing_log_keeps_the_bookie_from_starting() -> None:
    async def story(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        raise AssertionError("it started")

    with pytest.raises(EntryLogMissingError):
        play(_three_flushed, story, between=lambda disk: disk.names.remove(LAYOUT.log_file(1)))


@pytest.mark.parametrize("copies", [1, 2])
def test_one_rotten_checkpoint_is_survived_and_two_are_not(copies: int) -> None:
    def rot(disk: SimDisk) -> None:
        for path in LAYOUT.checkpoints[:copies]:
            disk.rot(path, 20)

    async def story(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        assert await readable(bookie, L1, 3)

    if copies == 1:
        play(_three_flushed, story, between=rot)
    else:
        with pytest.raises(JournalCorruptError, match="checkpoint"):
            play(_three_flushed, story, between=rot)


def test_a_rotten_record_in_the_middle_of_the_journal_keeps_the_bookie_from_starting() -> None:
    async def write(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        for n in range(5):
            await bookie.add(L1, batch(1, n, 1))

    async def story(bookie: Bookie, runtime: Runtime, disk: SimDisk) -> None:
        raise AssertionError("it started")

    slow_flush = replace(tiny_settings(), flush=replace(tiny_settings().flush, interval_s=1000))
    with pytest.raises(JournalCorruptError, match=r"0000000000000001\.journal at offset 8192"):
        play(
            write,
            story,
            settings=slow_flush,
            between=lambda disk: disk.rot(LAYOUT.journal_file(1), 8192 + 80) and None,
        )
