"""`weir verify` and `weir salvage` on real damage: what is not listed as lost is read again, message by
message."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from weir.datafolder.salvage import salvage
from weir.datafolder.survey import FolderSurvey, verify_folder
from weir.model.errors import ConfigError, FileLockedError
from weir.runtime.real import real_runtime

from .folder_kit import ACKED, COUNT, TOPICS, fill, left, node_on

pytestmark = pytest.mark.slow

NAME = "persistent://public/default/"


@dataclass(frozen=True)
class Folders:
    """The same messages: in entry logs, and in the journal only."""

    ended: Path
    crashed: Path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    base = tmp_path_factory.mktemp("filled")
    asyncio.run(fill(base / "ended", base / "crashed"))
    return Folders(base / "ended", base / "crashed")


def _saved(source: Path, into: Path, *, verified: bool = True) -> FolderSurvey:
    """Salvage; what `verify` says of it before is what salvage says, and the new folder is whole."""
    before = {path: path.stat().st_size for path in source.rglob("*") if path.is_file()}
    runtime = real_runtime()
    told = asyncio.run(verify_folder(runtime, str(source)))
    report = asyncio.run(salvage(runtime, str(source), str(into)))
    assert {path: path.stat().st_size for path in source.rglob("*") if path.is_file()} == before
    if verified:
        assert told.losses == report.losses
    after = asyncio.run(verify_folder(real_runtime(), str(into)))
    assert after.is_whole, (after.damages, after.losses)
    assert after.known == [] or report.losses
    return report


def _lost(report: FolderSurvey, topic: str) -> list[int]:
    """The offsets of a topic that the report lists."""
    return [
        offset
        for lost in report.losses
        if lost.topic == NAME + topic and lost.messages is not None
        for offset in range(lost.first_offset, lost.end_offset)
    ]


def _all_but_the_lost(report: FolderSurvey, folder: Path) -> None:
    found = asyncio.run(left(folder))
    for topic in TOPICS:
        lost = set(_lost(report, topic))
        assert found[topic] == [n for n in range(COUNT) if n not in lost], topic
        assert found[f"{topic}/s"] == [n for n in range(ACKED, COUNT) if n not in lost], "its position is kept"


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def _place(folder: Path, text: bytes, kind: str) -> tuple[Path, int]:
    """Where a file of this kind has the text."""
    for path in sorted(folder.rglob(f"*.{kind}")):
        at = path.read_bytes().find(text)
        if at >= 0:
            return path, at
    raise AssertionError(f"{text!r} is in no {kind}")


def _log(folder: Path) -> Path:
    """The entry log with the messages."""
    return _place(folder, b"a 11", "log")[0]


def _index(folder: Path) -> Path:
    return _log(folder).with_suffix(".idx")


def flipped_in_the_log(folder: Path) -> None:
    _flip(*_place(folder, b"b 17", "log"))
    _flip(*_place(folder, b"b 18", "log"))
    _flip(*_place(folder, b"c 0", "log"))


def flipped_in_log_and_index(folder: Path) -> None:
    flipped_in_the_log(folder)
    _flip(_index(folder), 4096 + 60)


def flipped_header_of_the_index(folder: Path) -> None:
    _flip(_index(folder), 10)


def a_hole_of_zeros(folder: Path) -> None:
    path, at = _place(folder, b"b 17", "log")
    data = bytearray(path.read_bytes())
    data[at : at + 1000] = bytes(1000)
    path.write_bytes(data)


def a_cut_log(folder: Path) -> None:
    path, at = _place(folder, b"b 17", "log")
    path.write_bytes(path.read_bytes()[:at])


def a_cut_log_without_its_index(folder: Path) -> None:
    a_cut_log(folder)
    _index(folder).unlink()


def a_missing_log(folder: Path) -> None:
    _log(folder).unlink()


def one_checkpoint_damaged(folder: Path) -> None:
    _flip(folder / "bookie/checkpoint-a", 20)


def no_checkpoint_and_no_cookie(folder: Path) -> None:
    _flip(folder / "bookie/checkpoint-a", 20)
    (folder / "bookie/checkpoint-b").unlink()
    (folder / "bookie/cookie").unlink()


def garbage_behind_the_metadata(folder: Path) -> None:
    (path,) = (folder / "meta").glob("log-*")
    path.write_bytes(path.read_bytes() + b"garbage" * 50)


def a_flipped_change_of_the_metadata(folder: Path) -> None:
    (path,) = (folder / "meta").glob("log-*")
    _flip(path, path.read_bytes().find(b"/weir/tenants/") + 20)


DAMAGES: list[tuple[Callable[[Path], None], dict[str, list[int]] | None]] = [
    (flipped_in_the_log, {"b": [17, 18], "c": [0]}),
    (flipped_in_log_and_index, {"b": [17, 18], "c": [0]}),
    (flipped_header_of_the_index, {}),
    (a_hole_of_zeros, None),
    (a_cut_log, None),
    (a_cut_log_without_its_index, None),
    (one_checkpoint_damaged, {}),
    (no_checkpoint_and_no_cookie, {}),
    (a_flipped_change_of_the_metadata, {}),
]


@pytest.mark.parametrize(("damage", "lost"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_everything_is_saved_but_what_is_listed(
    filled: Folders, tmp_path: Path, damage: Callable[[Path], None], lost: dict[str, list[int]] | None
) -> None:
    source, into = tmp_path / "data", tmp_path / "new"
    shutil.copytree(filled.ended, source)
    damage(source)
    report = _saved(source, into)
    assert not report.is_whole
    if lost is not None:
        assert {topic: _lost(report, topic) for topic in TOPICS if _lost(report, topic)} == lost
    else:
        assert _lost(report, "b")
    _all_but_the_lost(report, into)
    assert json.loads((into / "salvage.json").read_text())["lost"] == [] or report.losses


def test_a_missing_entry_log_costs_what_was_in_it_and_new_messages_come_behind(
    filled: Folders, tmp_path: Path
) -> None:
    source, into = tmp_path / "data", tmp_path / "new"
    shutil.copytree(filled.ended, source)
    a_missing_log(source)
    report = _saved(source, into)
    assert [_lost(report, topic) for topic in TOPICS] == [list(range(COUNT))] * 3
    assert {lost.what for lost in report.losses} == {"messages", "subscriptions and their positions"}
    assert all("the file is missing" in lost.cause for lost in report.losses)
    assert asyncio.run(left(into, ["a"]))["a"] == []


def _journal(folder: Path, text: bytes) -> tuple[Path, int]:
    return _place(folder, text, "journal")


def flipped_in_the_journal(folder: Path) -> None:
    _flip(*_journal(folder, b"b 17"))


def flipped_header_in_the_journal(folder: Path) -> None:
    path, at = _journal(folder, b"b 17")
    _flip(path, at // 4096 * 4096 + 10)


@pytest.mark.parametrize("damage", [flipped_in_the_journal, flipped_header_in_the_journal])
def test_a_damaged_record_of_the_journal_costs_only_the_entries_that_are_hit(
    filled: Folders, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    source, into = tmp_path / "data", tmp_path / "new"
    shutil.copytree(filled.crashed, source)
    damage(source)
    report = _saved(source, into)
    assert report.damages
    hit = damage is flipped_in_the_journal
    assert _lost(report, "b") == ([17] if hit else []), "an entry is whole though its record's head is not"
    _all_but_the_lost(report, into)


def test_a_position_beyond_the_end_of_what_is_left_moves_to_the_end(filled: Folders, tmp_path: Path) -> None:
    """The end of the log is lost without a trace, and the positions behind it are not: the subscription has to get
    what is sent next, and so has a consumer group."""
    source, into = tmp_path / "data", tmp_path / "new"
    shutil.copytree(filled.crashed, source)
    path, first = _journal(source, b"b 10")
    data = bytearray(path.read_bytes())
    begin, end = first // 4096 * 4096, (data.find(b"b 39") // 4096 + 1) * 4096
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)
    report = _saved(source, into)
    (moved,) = [one for one in report.positions if one.topic == f"{NAME}b"]
    assert (moved.subscription, moved.offset) == ("s", ACKED)
    assert moved.end_offset <= 10
    (told,) = json.loads((into / "salvage.json").read_text())["positionsBeyondEnd"]
    assert (told["subscription"], told["offset"], told["endOffset"]) == ("s", ACKED, moved.end_offset)
    found = asyncio.run(left(into))
    assert found["b"] == list(range(moved.end_offset))
    assert found["b/s"] == [], "nothing but what is sent now"


def test_what_a_crash_leaves_is_whole(filled: Folders, tmp_path: Path) -> None:
    source = tmp_path / "data"
    shutil.copytree(filled.crashed, source)
    garbage_behind_the_metadata(source)  # a torn write, which nobody was told of
    report = _saved(source, tmp_path / "new")
    assert report.is_whole
    _all_but_the_lost(report, tmp_path / "new")


def test_without_any_metadata_messages_become_topics_of_their_own(filled: Folders, tmp_path: Path) -> None:
    source, into = tmp_path / "data", tmp_path / "new"
    shutil.copytree(filled.ended, source)
    shutil.rmtree(source / "meta")
    report = _saved(source, into)
    names = [line.split(": ")[0] for line in report.adopted]
    assert len(names) == len(TOPICS)
    found = asyncio.run(left(into, names))
    assert [found[name] for name in names] == [list(range(COUNT))] * 3


def test_without_salvage_a_cut_entry_log_costs_what_was_cut_and_readers_go_on(
    filled: Folders, tmp_path: Path
) -> None:
    source = tmp_path / "data"
    shutil.copytree(filled.ended, source)
    a_cut_log(source)
    told = asyncio.run(verify_folder(real_runtime(), str(source)))
    found = asyncio.run(left(source))
    for topic in TOPICS:
        lost = set(_lost(told, topic))
        assert found[topic] == [n for n in range(COUNT) if n not in lost], "not a word is waited for that is gone"
    assert set(_lost(told, "b")) >= set(range(17, COUNT))


def test_a_folder_that_is_in_use_is_left_alone(filled: Folders, tmp_path: Path) -> None:
    source = tmp_path / "data"
    shutil.copytree(filled.ended, source)

    async def check() -> None:
        node = node_on(source)
        await node.start()
        try:
            with pytest.raises(FileLockedError, match="is running on"):
                await verify_folder(real_runtime(), str(source))
            with pytest.raises(FileLockedError, match="is running on"):
                await salvage(real_runtime(), str(source), str(tmp_path / "new"))
        finally:
            await node.close()

    asyncio.run(check())
    assert not (tmp_path / "new").exists()


def test_wrong_folders_are_named(filled: Folders, tmp_path: Path) -> None:
    runtime = real_runtime()
    for wrong in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match=str(wrong)):
            asyncio.run(verify_folder(runtime, str(wrong)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        asyncio.run(salvage(real_runtime(), str(filled.ended), str(tmp_path / "full")))
