"""The embedded store: what was acknowledged survives; what is damaged is refused."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from weir.meta.embedded import EmbeddedMeta, open_embedded
from weir.meta.embedded_log import EmbeddedSettings
from weir.meta.embedded_recovery import log_path, snapshot_path
from weir.meta.interfaces import Creation, Versioned
from weir.model.errors import FileLockedError, MetaCorruptError, MetaFullError, MetaUnavailableError
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.testing.world.disk import DiskFaults
from weir.testing.world.world import World, simulate
from weir.wire.metadata_log import LOG_MAGIC, SNAPSHOT_OF_KEYS_MAGIC, FileHeader, encode_header, encode_record

pytestmark = pytest.mark.timeout(60)

#: Every few changes a new log and a snapshot.
TINY = EmbeddedSettings(log_bytes=600, snapshot_slice=3, full_retry_s=0.02)


def log_of(folder: Path) -> Path:
    return sorted(folder.glob("log-*"))[-1]


async def fill(runtime: Runtime, folder: Path, count: int, settings: EmbeddedSettings | None = None) -> list[int]:
    """Put keys one after the other, so that each commit knows the one before to be durable; returns log sizes."""
    store = await open_embedded(runtime, f"{folder}", settings or EmbeddedSettings())
    sizes = [log_of(folder).stat().st_size]
    for n in range(count):
        await store.put(f"/k/{n}", b"value %d" % n)
        sizes.append(log_of(folder).stat().st_size)
    await store.close()
    return sizes


async def values(runtime: Runtime, folder: Path) -> dict[str, bytes]:
    store = await open_embedded(runtime, f"{folder}")
    found = {item.key: item.value for item in (await store.list("")).items}
    await store.close()
    return found


# --- on a real disk -------------------------------------------------------------------------------------------


async def test_everything_is_there_again_after_reopening_with_the_same_versions(
    runtime: Runtime, tmp_path: Path
) -> None:
    store = await open_embedded(runtime, f"{tmp_path}/m")
    for n in range(20):
        await store.put(f"/a/{n % 7}", b"%d" % n)
    await store.delete("/a/3")
    before = await store.list("")
    await store.close()
    store = await open_embedded(runtime, f"{tmp_path}/m")
    assert await store.list("") == before
    assert await store.put("/a/new", b"") == before.revision + 1
    await store.close()


async def test_a_second_process_is_kept_out_until_the_first_has_closed(runtime: Runtime, tmp_path: Path) -> None:
    store = await open_embedded(runtime, f"{tmp_path}/m")
    with pytest.raises(FileLockedError):
        await open_embedded(runtime, f"{tmp_path}/m")
    await store.close()
    await (await open_embedded(runtime, f"{tmp_path}/m")).close()


async def test_many_snapshots_later_everything_is_there_and_old_files_are_gone(
    runtime: Runtime, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    await fill(runtime, folder, 100, TINY)
    assert len(list(folder.glob("log-*"))) <= 3
    assert len(list(folder.glob("snapshot-*"))) <= 2
    assert await values(runtime, folder) == {f"/k/{n}": b"value %d" % n for n in range(100)}


async def test_concurrent_puts_share_a_commit(runtime: Runtime, tmp_path: Path) -> None:
    store = await open_embedded(runtime, f"{tmp_path}/m")
    commits = 0
    publish = store._core.published

    def count() -> None:
        nonlocal commits
        commits += 1
        publish()

    store._core.published = count  # type: ignore[method-assign]
    await asyncio.gather(*(store.put(f"/{n}", b"") for n in range(200)))
    await store.close()
    assert commits <= 2


async def test_leased_keys_of_the_process_before_are_gone_at_open_and_watches_since_then_know(
    runtime: Runtime, tmp_path: Path
) -> None:
    store = await open_embedded(runtime, f"{tmp_path}/m", TINY)
    lease = await store.lease(60)
    await store.put("/leased", b"x" * 1000, lease=lease)  # long enough to go into a snapshot
    await store.put("/kept", b"")
    revision = (await store.list("")).revision
    await store.close()
    assert not lease.alive, "the next process may delete its keys at once"
    store = await open_embedded(runtime, f"{tmp_path}/m", TINY)
    listing = await store.list("")
    assert [item.key for item in listing.items] == ["/kept"]
    assert listing.revision == revision + 1
    await store.close()


def test_a_lease_is_not_lost_because_the_event_loop_or_the_whole_process_stood_still() -> None:
    """As on a busy or suspended machine: its holder is in the store's own process."""

    async def scenario(world: World) -> None:
        node = world.node("meta")

        async def main(runtime: Runtime) -> None:
            store = await open_embedded(runtime, "/m")
            lease = await store.lease(10)
            version = await store.put("/broker", b"", lease=lease)
            before = runtime.clock.monotonic()
            node.clock.rate = 1000.0  # for the process, an hour passes between two turns of its loop
            await asyncio.sleep(3.6)
            node.clock.rate = 1.0
            assert runtime.clock.monotonic() - before > 3_000
            assert lease.alive
            found = await store.get("/broker")
            assert found is not None
            assert found.version == version
            assert await store.put("/broker", b"again", lease=lease) > version
            await lease.revoke()
            assert await store.get("/broker") is None
            await store.close()

        await node.start(main)

    simulate(1, scenario)


# --- damage ---------------------------------------------------------------------------------------------------


async def test_a_torn_last_record_is_cut_off(runtime: Runtime, tmp_path: Path) -> None:
    sizes = await fill(runtime, tmp_path, 5)
    log = log_of(tmp_path)
    whole = log.read_bytes()
    for cut in range(sizes[4] + 1, sizes[5]):
        log.write_bytes(whole[:cut])
        (tmp_path / "end").unlink()  # which follows a commit, and does not know of one that was never finished
        assert list(await values(runtime, tmp_path)) == [f"/k/{n}" for n in range(4)]
        assert log.stat().st_size == sizes[4]


async def test_garbage_after_the_last_record_is_cut_off(runtime: Runtime, tmp_path: Path) -> None:
    sizes = await fill(runtime, tmp_path, 5)
    log = log_of(tmp_path)
    log.write_bytes(log.read_bytes() + Random(1).randbytes(500))
    assert len(await values(runtime, tmp_path)) == 5
    assert log.stat().st_size == sizes[5]


async def test_a_damaged_byte_that_a_later_record_proves_durable_is_refused(
    runtime: Runtime, tmp_path: Path
) -> None:
    sizes = await fill(runtime, tmp_path, 4)
    log = log_of(tmp_path)
    whole = log.read_bytes()
    for at in range(sizes[3]):  # the header, and every record but the last
        log.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(MetaCorruptError):
            await open_embedded(runtime, f"{tmp_path}")
    log.write_bytes(whole)
    assert len(await values(runtime, tmp_path)) == 4


async def test_a_bad_record_in_the_last_batch_is_a_torn_tail_though_a_later_one_is_whole(
    runtime: Runtime, tmp_path: Path
) -> None:
    sizes = await fill(runtime, tmp_path, 2)
    store = await open_embedded(runtime, f"{tmp_path}")
    await asyncio.gather(*(store.put(f"/batch/{n}", b"x" * 20) for n in range(3)))
    await store.close()
    log = log_of(tmp_path)
    damaged = bytearray(log.read_bytes())
    damaged[sizes[2] + 45] ^= 1  # in the first record of the batch of three
    log.write_bytes(damaged)
    (tmp_path / "end").unlink()  # which follows a commit, and does not know of one that was never finished
    assert list(await values(runtime, tmp_path)) == ["/k/0", "/k/1"]


def log_file(folder: Path, first: int, records: list[tuple[int, int]], *, damage: int | None = None) -> None:
    """A log with these (revision, durable) records; `damage` is the revision of one to spoil."""
    data = bytearray(encode_header(LOG_MAGIC, FileHeader(7, first, 0)))
    for revision, durable in records:
        record = bytearray(
            encode_record(7, len(data), f"/{revision}", b"value", revision=revision, durable=durable)
        )
        if revision == damage:
            record[-1] ^= 1
        data += record
    Path(log_path(f"{folder}", first)).write_bytes(data)


def snapshot_file(folder: Path, revision: int) -> Path:
    """As earlier releases wrote them, a record for each key: they are still read."""
    data = bytearray(encode_header(SNAPSHOT_OF_KEYS_MAGIC, FileHeader(9, revision, revision)))
    for n in range(1, revision + 1):
        data += encode_record(9, len(data), f"/{n}", b"value", revision=n, durable=revision)
    path = Path(snapshot_path(f"{folder}", revision))
    path.write_bytes(data)
    return path


ONE_BY_ONE = [(n, n - 1) for n in range(1, 6)]
ONE_BATCH = [(n, 0) for n in range(1, 6)]


@pytest.mark.parametrize(
    ("snapshot", "logs", "damage", "recovered"),
    [
        pytest.param(0, {1: ONE_BY_ONE}, None, 5, id="complete"),
        pytest.param(0, {1: ONE_BY_ONE}, 5, 4, id="last record torn"),
        pytest.param(0, {1: ONE_BY_ONE}, 4, None, id="damaged, and a later record knows that it was durable"),
        pytest.param(0, {1: ONE_BATCH}, 1, 0, id="first of one batch torn, later ones whole"),
        pytest.param(0, {1: ONE_BY_ONE, 6: []}, None, 5, id="a next log was begun"),
        pytest.param(0, {1: ONE_BY_ONE, 6: []}, 5, None, id="damaged, and the next log was begun"),
        pytest.param(0, {1: ONE_BY_ONE, 7: []}, None, None, id="a log ends before the next begins"),
        pytest.param(0, {1: ONE_BY_ONE[:3], 4: ONE_BY_ONE[3:]}, None, 5, id="two logs"),
        pytest.param(0, {2: ONE_BY_ONE[1:]}, None, None, id="the first log is missing"),
        pytest.param(3, {1: ONE_BY_ONE}, None, 5, id="snapshot within the log"),
        pytest.param(3, {1: ONE_BY_ONE}, 2, None, id="damaged, though a snapshot covers it"),
        pytest.param(5, {1: ONE_BY_ONE[:4]}, None, None, id="the log ends before the snapshot"),
        pytest.param(5, {1: ONE_BY_ONE}, 5, None, id="last record damaged, and the snapshot has it"),
        pytest.param(3, {4: ONE_BY_ONE[3:]}, None, 5, id="snapshot, then the log"),
        pytest.param(
            3, {1: [], 4: ONE_BY_ONE[3:]}, None, 5, id="an old log is no longer needed, whatever it holds"
        ),
        pytest.param(3, {5: ONE_BY_ONE[4:]}, None, None, id="the log after the snapshot is missing"),
        pytest.param(3, {}, None, None, id="every log is missing"),
        pytest.param(0, {1: [(1, 0), (3, 0)]}, None, 1, id="a gap that nothing proves durable"),
        pytest.param(0, {1: [(1, 0), (3, 2)]}, None, None, id="a gap that was durable"),
    ],
)
async def test_recovery_decides(
    runtime: Runtime,
    tmp_path: Path,
    snapshot: int,
    logs: dict[int, list[tuple[int, int]]],
    damage: int | None,
    recovered: int | None,
) -> None:
    for first, records in logs.items():
        log_file(tmp_path, first, records, damage=damage)
    if snapshot:
        snapshot_file(tmp_path, snapshot)
    if recovered is None:
        with pytest.raises(MetaCorruptError):
            await open_embedded(runtime, f"{tmp_path}")
        return
    for _ in range(2):  # the second time after what the first has mended
        store = await open_embedded(runtime, f"{tmp_path}")
        listing = await store.list("")
        await store.close()
        assert listing.revision == recovered
        assert sorted(item.version for item in listing.items) == list(range(1, recovered + 1))


@pytest.mark.slow
async def test_a_damaged_snapshot_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    log_file(tmp_path, 1, ONE_BY_ONE)
    snapshot = snapshot_file(tmp_path, 5)
    whole = snapshot.read_bytes()
    for at in range(len(whole)):
        snapshot.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(MetaCorruptError):
            await open_embedded(runtime, f"{tmp_path}")
    for other in (whole[:-1], whole + b"x", b""):
        snapshot.write_bytes(other)
        with pytest.raises(MetaCorruptError):
            await open_embedded(runtime, f"{tmp_path}")


# --- in simulation --------------------------------------------------------------------------------------------


class Witness:
    """Everything that anyone was told over all lives of the store, and what may be on its disk."""

    def __init__(self) -> None:
        self.told: dict[int, tuple[str, bytes | None]] = {}
        #: A key's last acknowledged value, and what was asked for since then.
        self.acknowledged: dict[str, bytes | None] = {}
        self.asked: dict[str, list[bytes | None]] = {}
        self.lives = 0
        self.refused = 0

    def hear(self, key: str, value: bytes | None, version: int) -> None:
        """A version stands for one change, for good."""
        assert self.told.setdefault(version, (key, value)) == (key, value), f"version {version} was reused"

    async def check(self, store: EmbeddedMeta) -> None:
        """What is there after a restart is the last acknowledged value, or one asked for after it."""
        listing = await store.list("/")
        assert listing.revision >= max(self.told, default=0), "an observed change is gone"
        present = {item.key: item.value for item in listing.items}
        for item in listing.items:
            self.hear(item.key, item.value, item.version)
        for key in sorted({*self.acknowledged, *self.asked}):
            allowed = [self.acknowledged.get(key), *self.asked.get(key, [])]
            assert present.get(key) in allowed, f"{key} is {present.get(key)!r}, not one of {allowed}"
            self.acknowledged[key] = present.get(key)
            self.asked[key] = []


async def live(runtime: Runtime, witness: Witness) -> None:
    """One life: open, check, then change keys until the end."""
    store = await open_embedded(runtime, "/data/meta", TINY)
    witness.lives += 1
    await witness.check(store)
    tasks = TaskScope("writers")
    tasks.spawn(watch(store, witness), "watch")
    for name in ("a", "b", "c"):
        tasks.spawn(write(store, witness, f"/{name}", runtime.rng), name)


async def watch(store: EmbeddedMeta, witness: Witness) -> None:
    async for change in store.watch("/", since=(await store.list("/")).revision):
        witness.hear(*change)


async def write(store: EmbeddedMeta, witness: Witness, key: str, rng: Random) -> None:
    """The only writer of its key, so that the order of its changes is certain."""
    count = 0
    clock = store._clock
    with suppress(MetaUnavailableError):
        while True:
            count += 1
            value = (
                None if rng.random() < 0.2 else f"{key} {witness.lives} {count} ".encode() * rng.randrange(1, 8)
            )
            witness.asked.setdefault(key, []).append(value)
            try:
                if value is None:
                    await store.delete(key)
                else:
                    witness.hear(key, value, await store.put(key, value))
                witness.acknowledged[key] = value
                witness.asked[key] = []
                if rng.random() < 0.3:
                    found = await store.get(key)
                    assert (None if found is None else found.value) == value
                    if found is not None:
                        witness.hear(*found)
            except MetaFullError:
                witness.refused += 1
                await clock.sleep(0.005)


def crashes(faults: DiskFaults) -> Callable[[World], Coroutine[Any, Any, Witness]]:
    async def scenario(world: World) -> Witness:
        node, rng, witness = world.node("meta"), world.rng("scenario"), Witness()
        for life in range(8):
            node.disk.faults = DiskFaults()
            await node.start(lambda runtime: live(runtime, witness))
            assert witness.lives == life + 1
            node.disk.faults = faults
            await world.sleep(rng.uniform(0, 0.08))
            node.crash(power_loss=rng.random() < 0.8)
        node.disk.faults = DiskFaults()
        await node.start(lambda runtime: live(runtime, witness))
        return witness

    return scenario


@pytest.mark.parametrize("seed", range(60))
def test_acknowledged_changes_survive_a_crash_at_any_moment(seed: int) -> None:
    witness = simulate(seed, crashes(DiskFaults()))
    assert len(witness.told) > 20


@pytest.mark.parametrize("seed", range(20))
def test_acknowledged_changes_survive_a_disk_that_fails_to_write_or_sync(seed: int) -> None:
    simulate(seed, crashes(DiskFaults(write_error_chance=0.02, sync_error_chance=0.02)))


@pytest.mark.parametrize("seed", range(60))
def test_a_full_disk_is_waited_for_and_takes_nothing_acknowledged_whenever_it_crashes(seed: int) -> None:
    """Full to the last byte, or for every write (copy on write), with torn writes at that point."""

    async def scenario(world: World) -> Witness:
        node, rng, witness = world.node("meta"), world.rng("scenario"), Witness()
        for life in range(5):
            await node.start(lambda runtime: live(runtime, witness))
            assert witness.lives == life + 1
            for _ in range(rng.randrange(1, 4)):
                await world.sleep(rng.uniform(0, 0.03))
                if rng.random() < 0.5:
                    node.disk.faults = DiskFaults(full=True)
                else:
                    node.disk.capacity_bytes = node.disk.used_bytes + rng.choice((0, 100, 900))
                await world.sleep(rng.uniform(0, 0.05))
                if rng.random() < 0.3:
                    break  # the crash finds it full
                node.disk.faults, node.disk.capacity_bytes = DiskFaults(), None
                told = len(witness.told)
                await world.sleep(0.2)
                assert len(witness.told) > told, "changes are stored again, without a restart"
            node.crash(power_loss=rng.random() < 0.8)
            node.disk.faults, node.disk.capacity_bytes = DiskFaults(), None
        await node.start(lambda runtime: live(runtime, witness))
        return witness

    assert simulate(seed, scenario).refused


def test_a_full_disk_refuses_changes_at_once_and_is_left_by_itself() -> None:
    async def scenario(world: World) -> None:
        node = world.node("meta")

        async def main(runtime: Runtime) -> None:
            store = await open_embedded(runtime, "/m")
            await store.put("/a", b"1")
            node.disk.faults = DiskFaults(full=True)
            with pytest.raises(MetaFullError, match="no space left on the disk of the metadata folder /m"):
                await store.put("/b", b"found out")
            before = runtime.clock.monotonic()
            for refused in (store.put("/b", b"refused"), store.delete("/a")):
                with pytest.raises(MetaFullError):
                    await refused
            with pytest.raises(MetaFullError):
                store.check_writable()
            assert runtime.clock.monotonic() == before, "nobody waits for space"
            node.disk.faults = DiskFaults()
            await runtime.clock.sleep(2)
            store.check_writable()
            assert await store.put("/c", b"") > 2
            found = {item.key: item.value for item in (await store.list("/")).items}
            assert found == {"/a": b"1", "/b": b"found out", "/c": b""}, (
                "what was decided is made, what was not is not"
            )
            await store.close()

        await node.start(main)

    simulate(1, scenario)


def test_a_store_is_not_opened_on_a_full_disk_if_it_must_write() -> None:
    async def scenario(world: World) -> None:
        node = world.node("meta")

        async def main(runtime: Runtime) -> None:
            store = await open_embedded(runtime, "/m")
            await store.put("/leased", b"", lease=await store.lease(60))
            await store.close()
            node.disk.capacity_bytes = node.disk.used_bytes
            with pytest.raises(MetaFullError, match="free some space on that disk, then start again"):
                await open_embedded(runtime, "/m")
            node.disk.capacity_bytes = None
            store = await open_embedded(runtime, "/m")
            assert not (await store.list("/")).items
            await store.close()

        await node.start(main)

    simulate(1, scenario)


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_during_recovery_loses_nothing_either(seed: int) -> None:
    async def scenario(world: World) -> None:
        node, rng, witness = world.node("meta"), world.rng("scenario"), Witness()
        await node.start(lambda runtime: live(runtime, witness))
        for _ in range(20):
            await world.sleep(rng.uniform(0, 0.02))
            node.crash(power_loss=rng.random() < 0.8)
            node.start(lambda runtime: live(runtime, witness)).add_done_callback(lambda f: f.exception())
        await world.sleep(rng.uniform(0, 0.02))
        node.crash()
        await node.start(lambda runtime: live(runtime, witness))

    simulate(seed, scenario)


def test_puts_wait_while_too_much_is_queued_for_the_disk_and_all_come_through() -> None:
    async def scenario(world: World) -> None:
        node = world.node("meta")

        async def main(runtime: Runtime) -> None:
            store = await open_embedded(runtime, "/m", EmbeddedSettings(queue_bytes=1000))
            node.disk.faults = DiskFaults(stuck=True)
            puts = [asyncio.ensure_future(store.put(f"/{n:02d}", b"x" * 97)) for n in range(50)]
            await runtime.clock.sleep(1)
            # One batch is with the disk, one more is queued; the others were not even decided.
            assert store._core.state.revision <= 21
            node.disk.faults = DiskFaults()
            assert sorted(await asyncio.gather(*puts)) == list(range(1, 51))

        await node.start(main)

    simulate(1, scenario)


def test_nothing_works_after_the_disk_failed_until_it_is_opened_again() -> None:
    async def scenario(world: World) -> None:
        node = world.node("meta")

        async def main(runtime: Runtime) -> None:
            store = await open_embedded(runtime, "/m")
            version = await store.put("/a", b"1")
            node.disk.faults = DiskFaults(sync_error_chance=1.0)
            with pytest.raises(MetaUnavailableError):
                await store.put("/a", b"2")
            node.disk.faults = DiskFaults()
            with pytest.raises(MetaUnavailableError):
                await store.get("/a")
            with pytest.raises(MetaUnavailableError):
                await store.put("/a", b"3")
            await store.close()
            store = await open_embedded(runtime, "/m")
            found = await store.get("/a")
            assert found in (Versioned("/a", b"1", version), Versioned("/a", b"2", version + 1))

        await node.start(main)

    simulate(1, scenario)


async def test_keys_of_many_blocks_are_there_again_after_reopening_and_leased_ones_are_not(
    runtime: Runtime, tmp_path: Path
) -> None:
    store = await open_embedded(runtime, f"{tmp_path}/m", EmbeddedSettings(log_bytes=20_000, snapshot_slice=3))
    lease = await store.lease(60)
    for n in range(30):
        await store.put(f"/n/{n * 37 % 1000:04d}-leased", b"", lease=lease)
    await store.create_many([Creation(f"/n/{n:04d}", b"value %d" % n) for n in range(1000)])
    await store.put("/n/0500", b"changed")
    await store.close()
    assert list(tmp_path.glob("m/snapshot-*"))
    found = await values(runtime, tmp_path / "m")
    assert found == {f"/n/{n:04d}": b"changed" if n == 500 else b"value %d" % n for n in range(1000)}
