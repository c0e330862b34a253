"""Damage at sampled places of every file of a data folder: verify, doctor and `weir up` agree, and salvage rescues
whatever is intact."""

import asyncio
import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from weir.cli.data_folder import verify
from weir.cli.doctor import folder as doctor
from weir.datafolder.salvage import salvage
from weir.datafolder.survey import lost_messages, verify_folder
from weir.meta.embedded_log import write_store
from weir.meta.survey import survey_meta
from weir.model.diagnosis import State
from weir.model.errors import WeirError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Runtime
from weir.runtime.real import real_runtime
from weir.wire.metadata import Cookie, encode_cookie

from .folder_kit import COUNT, TOPICS, fill, left, node_on

pytestmark = pytest.mark.slow

#: Per file: flipped bytes, and lengths to which it is cut.
FLIPS, CUTS = 3, 2
KINDS = ("ended", "crashed", "snapshot")


@dataclass(frozen=True)
class Damage:
    """What happens to one file."""

    path: str
    what: str
    data: bytes
    #: Bytes that are wrong; 0 if the file is cut.
    flipped: int = 0


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    """One for all: each has threads of its own."""
    return real_runtime()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, runtime: Runtime) -> Path:
    base = tmp_path_factory.mktemp("folders")
    asyncio.run(fill(base / "ended", base / "crashed"))
    shutil.copytree(base / "ended", base / "snapshot")

    async def with_snapshot() -> None:
        meta = base / "snapshot" / "meta"
        found = await survey_meta(runtime.disk, str(meta))
        shutil.rmtree(meta)
        await write_store(runtime, str(meta), found.items.values(), found.revision)
        node = node_on(base / "snapshot", runtime)
        await node.start()
        await node.close()

    asyncio.run(with_snapshot())
    return base


def _damages(folder: Path) -> Iterator[Damage]:
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or not path.stat().st_size:
            continue
        data, name = path.read_bytes(), str(path.relative_to(folder))
        rng = random.Random(name)
        written = [at for at, byte in enumerate(data) if byte]
        for at in rng.sample(written, min(FLIPS, len(written))):
            yield Damage(name, f"byte {at} flipped", _flipped(data, [at], rng), 1)
        for size in [0, *(rng.randrange(written[-1]) for _ in range(CUTS - 1))] if written else []:
            yield Damage(name, f"cut to {size}", data[:size])
        if name.startswith("meta/") and name != "meta/end":
            for places in ([6, 7], [6, 10], [14, 17], [13, 20], list(range(36))):
                yield Damage(name, f"head damaged at {places}", _flipped(data, places, rng), len(places))


def _flipped(data: bytes, places: list[int], rng: random.Random) -> bytes:
    changed = bytearray(data)
    for at in places:
        changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_verify_doctor_and_up_agree_and_salvage_keeps_what_is_intact(
    kind: str, folders: Path, tmp_path: Path, runtime: Runtime
) -> None:
    for number, damage in enumerate(_damages(folders / kind)):
        work, saved = tmp_path / f"data{number}", tmp_path / f"saved{number}"
        shutil.copytree(folders / kind, work)
        (work / damage.path).write_bytes(damage.data)
        asyncio.run(_check(damage, work, saved, runtime))
        shutil.rmtree(work)
        shutil.rmtree(saved)


async def _check(damage: Damage, work: Path, saved: Path, runtime: Runtime) -> None:
    told = f"{damage.path}: {damage.what}"
    report = await verify_folder(runtime, str(work))
    quick = await verify_folder(runtime, str(work), entry_logs=False)
    assert "newer" not in str(report.damages), told
    assert report.is_whole <= quick.is_whole, f"{told}: doctor finds {quick.damages}, verify nothing"

    rescued = await salvage(runtime, str(work), str(saved))
    assert (await verify_folder(runtime, str(saved))).is_whole, told
    intact = damage.flipped and not damage.path.startswith("bookie/logs") and "journal/" not in damage.path
    if intact:
        assert not rescued.losses, f"{told}: no message lies there"
    elif damage.flipped:
        assert lost_messages(rescued) <= 1, told
    if damage.flipped or "journal/" not in damage.path:  # nothing tells what the end of a cut journal held
        lost = sum(loss.messages or 0 for loss in rescued.losses)
        adopted = [line.split(": ")[0] for line in rescued.adopted if "/salvaged/" in line]
        found = await left(saved, [*TOPICS, *adopted], runtime, positions=False)
        numbers = [n for each in found.values() for n in each]
        assert len(numbers) >= COUNT * len(TOPICS) - lost, f"{told}: {rescued.losses}"

    refused = await _refused(work, runtime)
    if refused:
        assert not quick.is_whole, f"{told}: doctor finds nothing, and up refuses: {refused}"
        assert not report.is_whole, f"{told}: verify finds nothing, and up refuses: {refused}"
        assert "newer" not in refused, told


async def _refused(work: Path, runtime: Runtime) -> str:
    """Why `weir up` refuses the folder."""
    node = node_on(work, runtime)
    try:
        await node.start()
    except WeirError as error:
        return str(error)
    finally:
        await node.close()
    return ""


def test_each_byte_of_the_cookie_is_checked(folders: Path, tmp_path: Path, runtime: Runtime) -> None:
    shutil.copytree(folders / "ended", tmp_path / "data")
    path = tmp_path / "data" / "bookie" / "cookie"
    data, rng = path.read_bytes(), random.Random(1)
    for at in range(len(data)):
        path.write_bytes(_flipped(data, [at], rng))
        report = asyncio.run(verify_folder(runtime, str(tmp_path / "data"), entry_logs=False))
        assert not report.is_whole or not asyncio.run(_refused(tmp_path / "data", runtime)), at


@pytest.mark.parametrize("checksum", [True, False])
def test_a_damaged_cookie_is_mended_by_the_command_of_verify(
    folders: Path, tmp_path: Path, runtime: Runtime, checksum: bool
) -> None:
    work = tmp_path / "da ta"
    shutil.copytree(folders / "ended", work)
    cookie = work / "bookie" / "cookie"
    whole = cookie.read_bytes()
    if not checksum:  # as earlier releases wrote it
        fields = json.loads(whole)
        del fields["crc"]
        whole = json.dumps(fields, separators=(",", ":")).encode()
    damaged = bytearray(whole)
    damaged[whole.index(b"instance") + 15] ^= 1
    cookie.write_bytes(damaged)
    (found,) = doctor(work)
    assert found.state is State.FAILED
    assert "verify" in asyncio.run(_refused(work, runtime))
    done = CliRunner().invoke(verify, [str(work)], standalone_mode=False)
    assert done.return_value == 1
    (command,) = [line for line in done.stdout.splitlines() if "printf" in line]
    subprocess.run(command.partition(": ")[2], shell=True, check=True)
    assert CliRunner().invoke(verify, [str(work)], standalone_mode=False).return_value == 0
    assert [check.state for check in doctor(work)] == [State.GOOD]
    assert asyncio.run(_refused(work, runtime)) == ""


def test_the_cookie_of_another_disk_is_reported_and_no_command_hides_it(
    folders: Path, tmp_path: Path, runtime: Runtime
) -> None:
    work = tmp_path / "data"
    shutil.copytree(folders / "ended", work)
    (work / "bookie" / "cookie").write_bytes(encode_cookie(Cookie(BookieId("local"), "0" * 32)))
    report = asyncio.run(verify_folder(runtime, str(work)))
    assert [damage.what for damage in report.damages] == [
        "it is not the cookie that the metadata has: it is of another disk"
    ]
    assert report.remedies == []
