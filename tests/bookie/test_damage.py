"""One flipped byte in a bookie's files costs the entry that it lies in, at the most, and is named."""

import logging
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from weir.bookie.bookie import Bookie
from weir.bookie.entry_log_scan import Stretch, fit_rows
from weir.bookie.folder import Layout
from weir.bookie.inspection import Verification, verify
from weir.bookie.settings import CacheSettings, FlushSettings, GcSettings
from weir.model.errors import EntryCorruptError, NoSuchEntryError, WireError
from weir.model.ids import NO_ENTRY, EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.testing.storage.bookies import batch, tiny_settings
from weir.testing.world.disk import SimDisk
from weir.testing.world.world import World, simulate
from weir.wire.entry import HEADER_BYTES

LAYOUT = Layout("/bookie")
#: Ledger to how many entries of how many bytes: pages of the index are shared, and one ledger fills several.
HELD = {1: (3, 500), 2: (230, 20), 3: (1, 9000), 4: (20, 88)}
LOG, INDEX = LAYOUT.log_file(1), LAYOUT.index_file(1)

#: Everything in one log, which nobody rewrites.
SETTINGS = replace(
    tiny_settings(), cache=CacheSettings(), flush=FlushSettings(interval_s=1e6), gc=GcSettings(interval_s=1e6)
)

#: What reading every entry brought: those that are damaged.
Damaged = list[tuple[int, int]]


async def _write(runtime: Runtime) -> None:
    bookie = await Bookie.open(runtime, SETTINGS)
    for ledger, (count, size) in HELD.items():
        await bookie.add(LedgerId(ledger), batch(ledger, 0, count, bytes(size)))
    await bookie.close()


async def _read_all(bookie: Bookie) -> Damaged:
    """Every entry by itself and in ranges: whole, or said to be damaged; nothing else."""
    damaged: Damaged = []
    for ledger, (count, size) in HELD.items():
        expected = dict(batch(ledger, 0, count, bytes(size)))
        for entry in range(count):
            try:
                found = await bookie.read(LedgerId(ledger), EntryId(entry), EntryId(count), max_bytes=100)
            except EntryCorruptError:
                damaged.append((ledger, entry))
                continue
            assert found.entries[0][0] == entry
            assert all(bytes(data) == expected[entry_id] for entry_id, data in found.entries)
    return damaged


def _after(flips: Callable[[SimDisk], None]) -> tuple[Damaged, Verification, int]:
    """Write, flip, verify, open and read."""
    seen: list[tuple[Damaged, Verification, int]] = []

    async def look(runtime: Runtime) -> None:
        verified = await verify(runtime, SETTINGS.directory)
        bookie = await Bookie.open(runtime, SETTINGS)
        damaged = await _read_all(bookie)
        assert await _read_all(bookie) == damaged
        assert [(d.ledger_id, d.entry_id) for d in bookie.damages.entries()] == damaged
        seen.append((damaged, verified, bookie.stats().mended_indexes))
        await bookie.close()

    async def scenario(world: World) -> None:
        node = world.node("bookie")
        await node.start(_write)
        flips(node.disk)
        await node.start(look)

    simulate(1, scenario)
    return seen[0]


def _size_of(path: str) -> int:
    sizes: list[int] = []

    async def measure(runtime: Runtime) -> None:
        await _write(runtime)
        file = await runtime.disk.open(path)
        sizes.append(await file.size())
        await file.close()

    async def scenario(world: World) -> None:
        await world.node("bookie").start(measure)

    simulate(1, scenario)
    return sizes[0]


def _flip(path: str, offset: int) -> Callable[[SimDisk], None]:
    def flip(disk: SimDisk) -> None:
        disk.rot(path, offset)

    return flip


@pytest.mark.slow
def test_a_flipped_bit_anywhere_in_an_entry_log_costs_one_entry_which_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    size = _size_of(LOG)
    for offset in Random(7).sample(range(size), 16):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            damaged, verified, _ = _after(_flip(LOG, offset))
        assert len(damaged) == 1
        assert [(d.path, d.ledger_id, d.entry_id) for d in verified.damages] == [(LOG, *damaged[0])]
        said = [record.getMessage() for record in caplog.records]
        ledger, entry = damaged[0]
        assert [
            text for text in said if f"entry {entry} of ledger {ledger} cannot be read" in text and LOG in text
        ]
        assert len(said) == 1


@pytest.mark.slow
def test_a_flipped_bit_anywhere_in_an_index_costs_no_entry() -> None:
    size = _size_of(INDEX)
    for offset in [0, 10, 70, 100, *Random(8).sample(range(size), 10)]:
        damaged, verified, _ = _after(_flip(INDEX, offset))
        assert damaged == []
        assert {d.path for d in verified.damages} <= {INDEX}


@pytest.mark.slow
@pytest.mark.parametrize("index_at", [10, 100, 4200], ids=["header", "runs", "page"])
def test_an_index_is_made_anew_around_a_damaged_entry_which_is_not_denied(index_at: int) -> None:
    # Not the header of a ledger's first entry: then nothing is left that says whose it was.
    first = 0
    offsets: list[int] = []
    for count, size in HELD.values():
        offsets += range(first + HEADER_BYTES, first + count * (HEADER_BYTES + size))
        first += count * (HEADER_BYTES + size)
    for offset in Random(index_at).sample(offsets, 6):

        def rot(disk: SimDisk, at: int = offset) -> None:
            disk.rot(LOG, at)
            disk.rot(INDEX, index_at)

        damaged, _, _ = _after(rot)
        assert len(damaged) == 1


def test_many_damaged_entries_are_each_named_and_all_others_are_read() -> None:
    def rot(disk: SimDisk) -> None:
        for at in range(700, 14_000, 350):
            disk.rot(LOG, at)
        disk.rot(INDEX, 4200)

    damaged, verified, mended = _after(rot)
    assert 20 <= len(damaged) <= 40
    assert mended == 1
    assert {(d.ledger_id, d.entry_id) for d in verified.damages if d.path == LOG} == set(damaged)


def _whole(entry: int, offset: int) -> Stretch:
    return Stretch(offset, 10, LedgerId(1), EntryId(entry), EntryId(entry - 1), None)


def _bad(offset: int, size: int, entry: int = 1 << 40) -> Stretch:
    return Stretch(offset, size, LedgerId(1), EntryId(entry), NO_ENTRY, "damaged")


def test_damage_that_hides_several_entries_stands_for_each_of_them() -> None:
    rows = fit_rows([_whole(4, 0), _bad(10, 30), _whole(8, 40)], LedgerId(1), 4, 8, 5)
    assert [(row.entry_id, row.offset) for row in rows] == [(4, 0), (5, 10), (6, 10), (7, 10), (8, 40)]


def test_a_damaged_entry_of_a_striped_ledger_keeps_the_id_that_it_says() -> None:
    rows = fit_rows([_whole(4, 0), _bad(10, 10, 6), _whole(8, 20)], LedgerId(1), 4, 8, 3)
    assert [row.entry_id for row in rows] == [4, 6, 8]


def test_rows_that_cannot_be_are_not_made_up() -> None:
    with pytest.raises(WireError):
        fit_rows([_whole(4, 0), _whole(5, 10)], LedgerId(1), 4, 8, 5)


@pytest.mark.parametrize("collect", [True, False], ids=["by garbage collection", "by a reader"])
def test_an_index_that_is_made_anew_beneath_a_bookie_that_runs_keeps_its_rows(collect: bool) -> None:
    """Its runs in memory name rows of the file. Made of the log alone, the file would have more: damage between
    entries 0 and 5 of a ledger may hide four of them, and what lies behind would be denied."""
    striped, behind = (
        batch(1, 0, 1, bytes(40)) + batch(1, 2, 1, bytes(40)) + batch(1, 5, 1, bytes(40)),
        batch(2, 0, 3),
    )

    async def all_live() -> list[LedgerId]:
        return [LedgerId(1), LedgerId(2)]

    async def story(runtime: Runtime, disk: SimDisk) -> None:
        settings = replace(SETTINGS, gc=GcSettings(interval_s=1e6, small_bytes=1 << 30, merge_logs=1))
        bookie = await Bookie.open(runtime, settings)
        for entry in striped:
            await bookie.add(LedgerId(1), [entry])
        await bookie.add(LedgerId(2), behind)
        await bookie.flush()
        hit = len(striped[0][1]) + HEADER_BYTES + 1
        disk.rot(LOG, hit)  # entry 2 of ledger 1
        disk.rot(INDEX, 100)  # a run
        if collect:
            await bookie.collect(all_live)
        else:
            disk.rot(INDEX, 4096 + 50)  # a page, too
        for entry_id, data in (striped[0], striped[2]):
            found = await bookie.read(LedgerId(1), entry_id, entry_id, max_bytes=1)
            assert bytes(found.entries[0][1]) == data
        for entry_id, data in behind:
            found = await bookie.read(LedgerId(2), entry_id, entry_id, max_bytes=1)
            assert bytes(found.entries[0][1]) == data
        with pytest.raises(EntryCorruptError):
            await bookie.read(LedgerId(1), EntryId(2), EntryId(2), max_bytes=1)
        with pytest.raises(NoSuchEntryError):
            await bookie.read(LedgerId(1), EntryId(3), EntryId(3), max_bytes=1)
        await bookie.close()

    async def scenario(world: World) -> None:
        node = world.node("bookie")
        await node.start(lambda runtime: story(runtime, node.disk))

    simulate(1, scenario)
