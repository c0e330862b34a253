"""The offline tools tell what a stopped bookie's folder holds, and what is wrong with it."""

from dataclasses import replace
from pathlib import Path

import pytest

from weir.bookie import inspection
from weir.bookie.bookie import Bookie
from weir.bookie.folder import Layout
from weir.model.errors import FileLockedError, FileMissingError
from weir.model.ids import EntryId, LedgerId
from weir.runtime.real import real_runtime
from weir.testing.storage.bookies import batch, entry, tiny_settings

RUNTIME = real_runtime()
SIZE = len(entry(1, 0, bytes(500)))


@pytest.fixture
async def folder(tmp_path: Path) -> str:
    """Ledgers 1 and 2 in logs, ledger 3 in the journal only, ledger 2 fenced, ledger 4 deleted."""
    directory = str(tmp_path / "bookie")
    tiny = tiny_settings(directory)
    quiet = replace(tiny, flush=replace(tiny.flush, interval_s=1e6), gc=replace(tiny.gc, interval_s=1e6))
    bookie = await Bookie.open(RUNTIME, quiet)
    for ledger in (1, 2, 4):
        await bookie.add(LedgerId(ledger), batch(ledger, 0, 5, bytes(500)))
    await bookie.fence(LedgerId(2))
    await bookie.delete(LedgerId(4))
    await bookie.flush()
    await bookie.add(LedgerId(3), batch(3, 7, 2))
    # As a crash leaves it: nothing is flushed, and the lock is free.
    await bookie._tasks.close()
    await bookie._journal._tasks.close()
    await bookie._end_file.close(final=False)
    await bookie._lock.release()
    return directory


def damage(path: str, offset: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[offset] ^= 1
    Path(path).write_bytes(data)


async def test_inspect_shows_ledgers_and_files(folder: str) -> None:
    seen = await inspection.inspect(RUNTIME, folder)
    assert seen.bookie_id == "b1"
    assert [(s.ledger_id, s.logged_entries, s.journaled_entries, s.fenced) for s in seen.ledgers] == [
        (1, 5, 0, False),
        (2, 5, 0, True),
        (3, 0, 2, False),
    ]
    assert [(s.last_entry, s.last_confirmed, s.logged_bytes) for s in seen.ledgers] == [
        (4, 3, 5 * SIZE),
        (4, 3, 5 * SIZE),
        (8, 7, 0),
    ]
    assert [f.note for f in seen.files if f.path.endswith(".log")] == ["10 entries of 2 ledgers"]
    assert seen.problems == []


async def test_verify_reads_everything_and_finds_nothing_wrong(folder: str) -> None:
    told: list[tuple[int, int]] = []
    result = await inspection.verify(RUNTIME, folder, lambda done, total: told.append((done, total)))
    assert result.damages == []
    assert (result.logs, result.entries, result.bytes_read) == (1, 10, 10 * SIZE)
    assert result.journal_records >= 1
    assert told[-1] == (10 * SIZE, 10 * SIZE)


@pytest.mark.parametrize(
    ("name", "at", "offset"),
    [
        pytest.param("log_file", SIZE + 100, SIZE, id="an entry"),
        pytest.param("index_file", 10, 0, id="an index header"),
        pytest.param("index_file", 100, 0, id="a run"),
        pytest.param("index_file", 4096 + 50, 4096, id="an index page"),
    ],
)
async def test_verify_names_the_file_and_the_place_of_damage(folder: str, name: str, at: int, offset: int) -> None:
    path = getattr(Layout(folder), name)(1)
    damage(path, at)
    result = await inspection.verify(RUNTIME, folder)
    assert [(d.path, d.offset) for d in result.damages] == [(path, offset)]


async def test_verify_finds_damage_in_the_journal_and_in_the_checkpoint(folder: str) -> None:
    layout = Layout(folder)
    damage(layout.checkpoints[1], 30)
    damage(layout.cookie, 0)
    damages = {d.path for d in (await inspection.verify(RUNTIME, folder)).damages}
    assert damages == {layout.checkpoints[1], layout.cookie}


async def test_rebuild_index_makes_a_damaged_index_whole(folder: str) -> None:
    path = Layout(folder).index_file(1)
    before = Path(path).read_bytes()
    damage(path, 4096 + 50)
    told: list[int] = []
    assert await inspection.rebuild_index(RUNTIME, folder, lambda done, _: told.append(done)) == {1: 10}
    assert Path(path).read_bytes() == before
    assert told[-1] == 10 * SIZE
    assert (await inspection.verify(RUNTIME, folder)).damages == []


async def test_looking_changes_nothing_and_the_bookie_starts_after_it(folder: str) -> None:
    def contents() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}

    before = contents()
    await inspection.inspect(RUNTIME, folder)
    await inspection.verify(RUNTIME, folder)
    assert contents() == before
    bookie = await Bookie.open(RUNTIME, tiny_settings(folder))
    assert (await bookie.read(LedgerId(3), EntryId(7), EntryId(9), max_bytes=999)).entries == batch(3, 7, 2)
    with pytest.raises(FileLockedError):
        await inspection.inspect(RUNTIME, folder)
    await bookie.close()


async def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError, match="not the folder of a bookie"):
        await inspection.verify(RUNTIME, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
