"""A journal that is shorter than what was acknowledged is refused, and `accept_loss` goes on without it."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from weir.bookie import inspection
from weir.bookie.bookie import Bookie
from weir.bookie.folder import Layout
from weir.bookie.registration import check_ledger_ids, pass_lost_ids
from weir.bookie.settings import BookieSettings
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import JournalCorruptError, LedgersUnknownError, NoSuchEntryError, NoSuchLedgerError
from weir.model.ids import EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.runtime.loss_records import load_end_record
from weir.runtime.real import real_runtime
from weir.testing.storage.bookies import batch, entry, tiny_settings
from weir.testing.world.world import World, simulate
from weir.wire.bookie_files import BLOCK_BYTES, RecordKind, decode_header
from weir.wire.end_record import EndRecord

RUNTIME = real_runtime()
LEDGER = LedgerId(1)
ENTRIES = 6


def quiet(directory: str) -> BookieSettings:
    """Nothing is flushed by itself: the journal alone holds what was added."""
    tiny = tiny_settings(directory)
    return replace(tiny, flush=replace(tiny.flush, interval_s=1e6), gc=replace(tiny.gc, interval_s=1e6))


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """The folder of a bookie that was killed after entries 0 to 5, one record each, and a fence."""
    folder, copy = tmp_path / "bookie", tmp_path / "killed"
    bookie = await Bookie.open(RUNTIME, quiet(f"{folder}"))
    for n in range(ENTRIES):
        await bookie.add(LEDGER, [(EntryId(n), entry(LEDGER, n, bytes(5000 * (n % 2))))])
    await bookie.fence(LedgerId(2))
    position = bookie._journal.position
    async with asyncio.timeout(30):
        while (await end_of(folder)).end < position.offset:
            await asyncio.sleep(0)
    shutil.copytree(folder, copy)
    await bookie.close()
    return copy


async def end_of(folder: Path) -> EndRecord:
    end = await load_end_record(RUNTIME.disk, Layout(f"{folder}").journal_end)
    return end or EndRecord(0, 0, 0, 0)


@asynccontextmanager
async def opened(folder: Path, *, accept_loss: bool = False) -> AsyncIterator[Bookie]:
    bookie = await Bookie.open(RUNTIME, quiet(f"{folder}"), accept_loss=accept_loss)
    try:
        yield bookie
    finally:
        await bookie.close()


async def held(bookie: Bookie) -> list[int]:
    found = []
    for n in range(ENTRIES):
        try:
            await bookie.read(LEDGER, EntryId(n), EntryId(n), max_bytes=1)
        except (NoSuchEntryError, NoSuchLedgerError):
            continue
        found.append(n)
    return found


def record_ends(path: Path, end: int) -> list[int]:
    """Where each record of a journal file ends; those of entries by their order."""
    data, at, ends = path.read_bytes(), 0, []
    while at < end:
        header = decode_header(data, at)
        at = header.end
        ends += [at] if header.kind is RecordKind.ENTRIES else []
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("zeros", [False, True], ids=["cut", "zeros"])
async def test_a_journal_cut_anywhere_or_with_a_tail_of_zeros_is_refused_and_accepted_loss_goes_on(
    killed: Path, tmp_path: Path, zeros: bool
) -> None:
    end = await end_of(killed)
    journal = Path(Layout(f"{killed}").journal_file(end.file))
    ends = record_ends(journal, end.end)
    assert len(ends) == ENTRIES
    whole = journal.read_bytes()
    for cut in sorted({block + step for block in range(0, end.end, BLOCK_BYTES) for step in (0, 1, 63, 70)}):
        folder = tmp_path / f"cut-{cut}"
        shutil.copytree(killed, folder)
        short = Path(Layout(f"{folder}").journal_file(end.file))
        if not any(whole[cut : end.end]):
            continue  # only the zeros that fill up the last block would go
        short.write_bytes(whole[:cut] + (bytes(len(whole) - cut) if zeros else b""))
        with pytest.raises(JournalCorruptError) as refused:
            await Bookie.open(RUNTIME, quiet(f"{folder}"))
        assert str(short) in refused.value.what
        assert "synced" in refused.value.what
        assert "--accept-loss" in refused.value.hint
        assert (await inspection.verify(RUNTIME, f"{folder}")).damages, "verify names it, too"
        survivors = [n for n in range(ENTRIES) if ends[n] <= cut]
        async with opened(folder, accept_loss=True) as bookie:
            assert set(survivors) <= set(await held(bookie)) < set(range(ENTRIES)) | {-1}
            assert len(bookie.losses) == 1
            await bookie.add(LedgerId(9), batch(9, 0, 1))
        async with opened(folder) as bookie:
            assert set(survivors) <= set(await held(bookie))
            assert 9 in bookie.ledgers()
        lines = [json.loads(line) for line in (folder / "accepted-losses").read_text().splitlines()]
        assert len(lines) == 1
        assert lines[0]["path"].startswith(str(short))
        shutil.rmtree(folder)


async def test_a_kill_alone_is_no_loss(killed: Path) -> None:
    async with opened(killed) as bookie:
        assert await held(bookie) == list(range(ENTRIES))
        assert bookie.losses == ()


async def test_a_cut_is_told_by_the_size_that_the_file_was_made_with_when_there_is_no_end_record(
    killed: Path,
) -> None:
    layout = Layout(f"{killed}")
    end = await end_of(killed)
    Path(layout.journal_end).unlink()
    journal = Path(layout.journal_file(end.file))
    whole = journal.read_bytes()
    for cut in range(BLOCK_BYTES, end.end, BLOCK_BYTES):
        journal.write_bytes(whole[:cut])
        with pytest.raises(JournalCorruptError, match=f"created with {len(whole)} bytes and has {cut}"):
            await Bookie.open(RUNTIME, quiet(f"{killed}"))
    journal.write_bytes(whole[: end.end + BLOCK_BYTES])  # nothing but reserved space is gone
    async with opened(killed) as bookie:
        assert await held(bookie) == list(range(ENTRIES))


async def test_without_an_end_record_a_tail_of_zeros_cannot_be_told_from_a_clean_end(killed: Path) -> None:
    """As docs/internals/bookie.md says."""
    layout = Layout(f"{killed}")
    end = await end_of(killed)
    Path(layout.journal_end).unlink()
    journal = Path(layout.journal_file(end.file))
    whole = journal.read_bytes()
    cut = record_ends(journal, end.end)[2]
    journal.write_bytes(whole[:cut] + bytes(len(whole) - cut))
    async with opened(killed) as bookie:
        assert await held(bookie) == [0, 1, 2]


async def test_a_journal_file_that_is_gone_is_refused(killed: Path) -> None:
    end = await end_of(killed)
    Path(Layout(f"{killed}").journal_file(end.file)).unlink()
    with pytest.raises(JournalCorruptError, match="missing file"):
        await Bookie.open(RUNTIME, quiet(f"{killed}"))
    async with opened(killed, accept_loss=True) as bookie:
        assert await held(bookie) == []
    async with opened(killed) as bookie:
        assert bookie.losses == ()


async def test_after_an_accepted_loss_in_the_middle_what_follows_it_is_kept(killed: Path) -> None:
    end = await end_of(killed)
    journal = Path(Layout(f"{killed}").journal_file(end.file))
    data = bytearray(journal.read_bytes())
    data[record_ends(journal, end.end)[1] + 100] ^= 1  # inside entry 2
    journal.write_bytes(data)
    with pytest.raises(JournalCorruptError):
        await Bookie.open(RUNTIME, quiet(f"{killed}"))
    async with opened(killed, accept_loss=True) as bookie:
        assert await held(bookie) == [0, 1, 3, 4, 5]


async def test_a_bookie_that_was_closed_in_order_needs_nothing_of_its_journal(tmp_path: Path) -> None:
    bookie = await Bookie.open(RUNTIME, quiet(f"{tmp_path}"))
    await bookie.add(LEDGER, batch(1, 0, ENTRIES))
    await bookie.close()
    for journal in (tmp_path / "journal").iterdir():
        journal.write_bytes(journal.read_bytes()[:BLOCK_BYTES])
    async with opened(tmp_path) as bookie:
        assert await held(bookie) == list(range(ENTRIES))


# --- metadata that is older than the disk ---------------------------------------------------------------------


async def test_a_disk_with_ledgers_that_the_metadata_has_not_made_yet_is_refused_and_ids_are_not_given_twice() -> (
    None
):
    meta = MemoryMeta(MemoryCore(RUNTIME.clock), RUNTIME)
    await meta.put(keys.LEDGER_COUNTER, b"16")
    await check_ledger_ids(meta, LedgerId(16))
    assert await pass_lost_ids(meta, LedgerId(16), lost_changes=None) == []
    with pytest.raises(LedgersUnknownError, match="holds ledger 17, but the metadata has given out ids up to 16"):
        await check_ledger_ids(meta, LedgerId(17))
    losses = await pass_lost_ids(meta, LedgerId(17), lost_changes=None)
    assert ["ledgers 17 to 17" in loss.what for loss in losses] == [True]
    await check_ledger_ids(meta, LedgerId(17))
    found = await meta.get(keys.LEDGER_COUNTER)
    assert found is not None
    assert int(found.value) > 17
    await meta.close()


# --- in simulation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_is_no_alarm_and_a_cut_below_the_end_record_is_one(seed: int) -> None:
    """Lives long enough for the end record to be synced and overtaken, with power loss; then a cut."""
    settings = quiet("/bookie") if seed % 2 else tiny_settings()

    async def live(runtime: Runtime, acknowledged: list[int]) -> None:
        bookie = await Bookie.open(runtime, settings)
        for n in acknowledged[-3:]:
            await bookie.read(LEDGER, EntryId(n), EntryId(n), max_bytes=1)
        while True:
            n = len(acknowledged)
            await bookie.add(LEDGER, [(EntryId(n), entry(LEDGER, n, bytes(runtime.rng.randrange(3000))))])
            acknowledged.append(n)
            await runtime.clock.sleep(runtime.rng.choice((0, 0.01, 0.05, 0.4)))

    async def scenario(world: World) -> None:
        node, rng, acknowledged = world.node("bookie"), world.rng("scenario"), list[int]()
        for _ in range(5):
            running = node.start(lambda runtime: live(runtime, acknowledged))
            await world.sleep(rng.uniform(0, 3))
            assert not running.done(), "it starts without a flag, whatever the crash left"
            node.crash(power_loss=rng.random() < 0.7)
            running.exception()
        await node.start(lambda runtime: cut_and_start(runtime, rng, settings))

    simulate(seed, scenario)


async def cut_and_start(runtime: Runtime, rng: Random, settings: BookieSettings) -> None:
    layout = Layout(settings.directory)
    # A last life whose entries the journal alone holds.
    bookie = await Bookie.open(runtime, settings)
    begun = bookie._journal.position
    await bookie.add(LedgerId(3), batch(3, 0, 9))
    await runtime.clock.sleep(0.03)  # for the end record
    flushed = bookie._store.flushed.sequence == begun.sequence and bookie._store.flushed.offset > begun.offset
    end = await load_end_record(runtime.disk, layout.journal_end)
    for scope in (bookie._tasks, bookie._journal._tasks):
        await scope.close()
    await bookie._end_file.close(final=False)
    await bookie._lock.release()
    if end is None or end.file != begun.sequence or end.end <= begun.offset or flushed:
        return
    file = await runtime.disk.open(layout.journal_file(end.file))
    size = await file.size()
    await file.truncate(rng.randrange(begun.offset))
    if rng.random() < 0.5:
        await file.truncate(size)
    await file.sync()
    with pytest.raises(JournalCorruptError):
        await Bookie.open(runtime, settings)
    await (await Bookie.open(runtime, settings, accept_loss=True)).close()
    await (await Bookie.open(runtime, settings)).close()
