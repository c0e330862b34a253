"""`weir bookie inspect|verify|rebuild-index` on the folder of a stopped bookie."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from weir.bookie.bookie import Bookie
from weir.bookie.settings import BookieSettings
from weir.cli.main import cli
from weir.model.errors import FileLockedError, FileMissingError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run
from weir.wire.entry import encode_entry

Weir = Callable[..., Result]


@pytest.fixture
def weir() -> Weir:
    return lambda *arguments: CliRunner().invoke(cli, [*map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bookie with two ledgers, one of them fenced, closed in order."""

    async def fill(runtime: Runtime) -> None:
        bookie = await Bookie.open(runtime, BookieSettings(BookieId("b1"), str(tmp_path / "b1")))
        for ledger in (7, 8):
            for entry in range(50):
                data = encode_entry(ledger, entry, entry - 1, 100 * (entry + 1), b"x" * 100)
                await bookie.add(LedgerId(ledger), [(EntryId(entry), data)])
        await bookie.fence(LedgerId(8))
        await bookie.close()

    run(fill)
    return tmp_path / "b1"


def test_inspect_shows_ledgers_and_files(weir: Weir, folder: Path) -> None:
    shown = weir("bookie", "inspect", folder)
    assert shown.exit_code == 0
    assert "bookie b1" in shown.output
    told = json.loads(weir("bookie", "inspect", folder, "--json").stdout)
    assert [(x["ledger_id"], x["logged_entries"], x["fenced"]) for x in told["ledgers"]] == [
        (7, 50, False),
        (8, 50, True),
    ]
    assert told["problems"] == []


def test_verify_finds_nothing_in_a_whole_folder(weir: Weir, folder: Path) -> None:
    shown = weir("bookie", "verify", folder)
    assert (shown.exit_code, "no damage found" in shown.output) == (0, True)


def test_verify_names_the_damaged_file_and_ends_with_one(weir: Weir, folder: Path) -> None:
    log = max(folder.rglob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    shown = weir("bookie", "verify", folder, "--json")
    damages = json.loads(shown.stdout)["damages"]
    assert shown.exit_code == 1
    assert [Path(damage["path"]) for damage in damages] == [log]
    assert "Damage" in weir("bookie", "verify", folder).output


def test_an_index_that_is_gone_is_made_anew(weir: Weir, folder: Path) -> None:
    for index in folder.rglob("*.idx"):
        index.unlink()
    assert weir("bookie", "verify", folder).exit_code == 1
    rebuilt = weir("bookie", "rebuild-index", folder)
    assert (rebuilt.exit_code, "100 entries" in rebuilt.output) == (0, True)
    assert weir("bookie", "verify", folder).exit_code == 0


def test_a_folder_that_is_no_bookies_is_an_error_that_says_so(weir: Weir, tmp_path: Path) -> None:
    result = weir("bookie", "inspect", tmp_path)
    assert isinstance(result.exception, FileMissingError)
    assert "not the folder of a bookie" in str(result.exception)


def test_a_running_bookies_folder_is_left_alone(weir: Weir, folder: Path) -> None:
    async def look(runtime: Runtime) -> None:
        lock = await runtime.disk.lock(str(next(folder.glob("*lock*"))))
        try:
            result = await asyncio.to_thread(weir, "bookie", "verify", folder)
            assert isinstance(result.exception, FileLockedError)
        finally:
            await lock.release()

    run(look)
