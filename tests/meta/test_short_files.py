"""A metadata log that is shorter than what was acknowledged is refused, and `accept_loss` goes on without it."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from weir.meta.embedded import open_embedded
from weir.meta.embedded_log import EmbeddedSettings
from weir.meta.embedded_recovery import contents, end_path, log_path
from weir.model.errors import MetaCorruptError, MetaUnavailableError
from weir.runtime.interfaces import Runtime
from weir.runtime.loss_records import load_end_record
from weir.testing.world.world import World, simulate
from weir.wire.end_record import SLOT_BYTES

pytestmark = pytest.mark.timeout(120)

COUNT = 5
#: Every few changes a new log and a snapshot.
TINY = EmbeddedSettings(log_bytes=600, snapshot_slice=3)


async def fill(runtime: Runtime, folder: Path, count: int = COUNT) -> list[int]:
    """Put keys one after the other; returns where each record begins, and the end."""
    store = await open_embedded(runtime, f"{folder}")
    log = Path(log_path(f"{folder}", 1))
    offsets = [log.stat().st_size]
    for n in range(count):
        await store.put(f"/k/{n}", b"value %d" % n)
        offsets.append(log.stat().st_size)
    await store.close()
    return offsets


def cuts(offsets: list[int]) -> list[int]:
    """Every record boundary before the end, and places inside every record and the header."""
    inside = [begin + step for begin in (0, *offsets[:-1]) for step in (1, 20, 45)]
    return sorted({0, *offsets[:-1], *(cut for cut in inside if cut < offsets[-1])})


async def keys(runtime: Runtime, folder: Path, *, accept_loss: bool = False) -> list[str]:
    store = await open_embedded(runtime, f"{folder}", accept_loss=accept_loss)
    try:
        return [item.key for item in (await store.list("/k/")).items]
    finally:
        await store.close()


def latest(folder: Path, what: str) -> Path:
    return sorted(folder.glob(f"{what}-*"))[-1]


@pytest.mark.slow
@pytest.mark.parametrize("zeros", [0, 1, 4096], ids=["cut", "zeros up to the old end", "zeros beyond it"])
async def test_a_log_cut_anywhere_or_with_a_tail_of_zeros_is_refused_and_accepted_loss_goes_on(
    runtime: Runtime, tmp_path: Path, zeros: int
) -> None:
    folder = tmp_path / "m"
    offsets = await fill(runtime, folder)
    for cut in cuts(offsets):
        short = tmp_path / f"cut-{cut}"
        shutil.copytree(folder, short)
        log = Path(log_path(f"{short}", 1))
        whole = log.read_bytes()
        tail = bytes(len(whole) - cut + zeros - 1) if zeros else b""
        log.write_bytes(whole[:cut] + tail)
        left = log.read_bytes()
        with pytest.raises(MetaCorruptError) as refused:
            await keys(runtime, short)
        assert str(log) in refused.value.what
        assert f"revision {COUNT}" in refused.value.what
        assert "--accept-loss" in refused.value.hint
        assert log.read_bytes() == left, "what is refused is left as it is"
        survivors = [f"/k/{n}" for n in range(COUNT) if offsets[n + 1] <= cut]
        assert await keys(runtime, short, accept_loss=True) == survivors
        # Once accepted it is an ordinary store again, and says for good what was given up.
        assert await keys(runtime, short) == survivors
        lines = [json.loads(line) for line in (short / "accepted-losses").read_text().splitlines()]
        assert [line["path"] for line in lines] == [str(log)]
        assert (short / f"given-up-{log.name}").read_bytes() == left


async def test_versions_that_were_given_out_before_an_accepted_loss_are_not_given_again(
    runtime: Runtime, tmp_path: Path
) -> None:
    offsets = await fill(runtime, tmp_path)
    with Path(log_path(f"{tmp_path}", 1)).open("r+b") as log:
        log.truncate(offsets[2])
    store = await open_embedded(runtime, f"{tmp_path}", accept_loss=True)
    assert store.lost_changes == COUNT - 2
    assert await store.put("/new", b"") == COUNT + 1
    await store.close()


async def test_a_log_that_is_cut_after_a_kill_is_refused_as_soon_as_its_end_record_was_written(
    runtime: Runtime, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    store = await open_embedded(runtime, f"{folder}")
    await asyncio.gather(*(store.put(f"/k/{n}", b"x" * 50) for n in range(10)))
    async with asyncio.timeout(30):
        while (end := await load_end_record(runtime.disk, end_path(f"{folder}"))) is None or end.revision < 10:
            await asyncio.sleep(0)
    killed = tmp_path / "killed"
    shutil.copytree(folder, killed)
    await store.close()
    assert len(await keys(runtime, killed)) == 10, "a kill alone is no loss"
    with Path(log_path(f"{killed}", 1)).open("r+b") as log:
        log.truncate(log.seek(0, 2) - 1)
    with pytest.raises(MetaCorruptError, match="1 acknowledged changes"):
        await keys(runtime, killed)


async def test_logs_that_are_gone_are_refused_even_all_of_them(runtime: Runtime, tmp_path: Path) -> None:
    await fill(runtime, tmp_path)
    Path(log_path(f"{tmp_path}", 1)).unlink()
    with pytest.raises(
        MetaCorruptError, match="the log that holds revision 1 is missing; changes up to revision 5"
    ):
        await keys(runtime, tmp_path)
    assert await keys(runtime, tmp_path, accept_loss=True) == []
    assert await keys(runtime, tmp_path) == []


@pytest.mark.parametrize("what", ["snapshot", "log"])
async def test_an_accepted_loss_keeps_what_a_cut_snapshot_still_has(
    runtime: Runtime, tmp_path: Path, what: str
) -> None:
    store = await open_embedded(runtime, f"{tmp_path}", TINY)
    count = 0
    while count < 100 or latest(tmp_path, "log").stat().st_size < 200:  # the last log has more than one record
        await store.put(f"/k/{count:03d}", b"value")
        count += 1
        while count >= 100 and store._log._snapshotting:
            await asyncio.sleep(0)
    await store.close()
    path = latest(tmp_path, what)
    path.write_bytes(path.read_bytes()[: -50 if what == "snapshot" else 100])  # of a snapshot, its last block
    with pytest.raises(MetaCorruptError, match=path.name):
        await keys(runtime, tmp_path)
    kept = await keys(runtime, tmp_path, accept_loss=True)
    assert 0 < len(kept) < count
    assert kept == [f"/k/{n:03d}" for n in range(len(kept))]
    assert await keys(runtime, tmp_path) == kept


async def test_accepting_a_loss_where_there_is_none_changes_nothing(runtime: Runtime, tmp_path: Path) -> None:
    await fill(runtime, tmp_path)
    assert len(await keys(runtime, tmp_path, accept_loss=True)) == COUNT
    assert not (tmp_path / "accepted-losses").exists()


async def test_without_an_end_record_nothing_can_tell_and_the_log_ends_where_it_ends(
    runtime: Runtime, tmp_path: Path
) -> None:
    """As docs/internals/meta.md says: folders of older versions, and those whose end record was removed too."""
    offsets = await fill(runtime, tmp_path)
    (tmp_path / "end").unlink()
    with Path(log_path(f"{tmp_path}", 1)).open("r+b") as log:
        log.truncate(offsets[3])
    assert len(await keys(runtime, tmp_path)) == 3


async def test_a_damaged_slot_leaves_the_other_and_a_damaged_end_record_is_no_alarm(
    runtime: Runtime, tmp_path: Path
) -> None:
    await fill(runtime, tmp_path)
    end = tmp_path / "end"
    whole = bytearray(end.read_bytes())
    slots = [bytes(whole[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    for slot, data in enumerate(slots):
        if any(data):
            whole[slot * SLOT_BYTES + 10] ^= 1
    end.write_bytes(whole)
    assert await load_end_record(runtime.disk, f"{end}") is None
    assert len(await keys(runtime, tmp_path)) == COUNT
    assert await load_end_record(runtime.disk, f"{end}") is not None, "it is kept up again"


# --- in simulation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_is_no_alarm_and_a_cut_below_the_end_record_is_one(seed: int) -> None:
    """Lives long enough for the end record to be synced and overtaken, with power loss; then a cut."""

    async def live(runtime: Runtime, acknowledged: list[str]) -> None:
        store = await open_embedded(runtime, "/m", TINY if seed % 2 else EmbeddedSettings())
        found = [item.key for item in (await store.list("/")).items]
        assert set(acknowledged) <= set(found)
        try:
            while True:
                key = f"/{len(acknowledged):06d}"
                await store.put(key, b"x" * runtime.rng.randrange(40))
                acknowledged.append(key)
                await runtime.clock.sleep(runtime.rng.choice((0, 0, 0.01, 0.3)))
        except MetaUnavailableError:
            return

    async def scenario(world: World) -> None:
        node, rng, acknowledged = world.node("meta"), world.rng("scenario"), list[str]()
        for _ in range(6):
            running = node.start(lambda runtime: live(runtime, acknowledged))
            await world.sleep(rng.uniform(0, 3))
            assert not running.done(), "it starts without a flag, whatever the crash left"
            node.crash(power_loss=rng.random() < 0.7)
            running.exception()

        async def cut(runtime: Runtime) -> None:
            end = await load_end_record(runtime.disk, "/m/end")
            assert end is not None
            assert end.revision > 0
            found = await contents(runtime.disk, "/m")
            covered = max(found.snapshots, default=0)
            if end.file < max(first for first in found.logs if first <= covered + 1):
                return  # a later log goes on, and a snapshot has all of this one
            file = await runtime.disk.open(log_path("/m", end.file))
            size = await file.size()
            await file.truncate(rng.randrange(end.end))
            if rng.random() < 0.5:
                await file.truncate(size)
            await file.sync()
            with pytest.raises(MetaCorruptError):
                await open_embedded(runtime, "/m")
            await (await open_embedded(runtime, "/m", accept_loss=True)).close()
            await (await open_embedded(runtime, "/m")).close()

        await node.start(cut)

    simulate(seed, scenario)
