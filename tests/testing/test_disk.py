"""The simulated disk: what power loss leaves, and the ways in which disks fail."""
# ruff: noqa: RUF006 - the simulated loop holds its tasks by itself

import asyncio
from dataclasses import replace

import pytest

from weir.model.errors import DiskError, DiskFullError, FileLockedError
from weir.testing.world.disk import DiskFaults
from weir.testing.world.world import simulate

SEEDS = range(60)
OLD, NEW = b"o" * 4096, b"n" * 4096


async def make_file(runtime, path="f", data=OLD):
    """A file whose content and name are durable."""
    file = await runtime.disk.open(path, create=True)
    await file.append([data], sync=True)
    await runtime.disk.sync_dir(path.rpartition("/")[0] or ".")
    return file


def after_crash(seed, work, *, path="f", power_loss=True):
    """The content of `path` (None if it is gone) after `work` and a crash."""

    async def scenario(world):
        node = world.node("a")
        await node.start(work)
        node.crash(power_loss=power_loss)
        return node.disk.read(path) if node.disk.names.exists(path) else None

    return simulate(seed, scenario)


def test_synced_data_under_a_synced_name_survives_every_crash():
    for seed in SEEDS:
        assert after_crash(seed, make_file) == OLD


def test_unsynced_data_is_lost_with_some_seeds_kept_with_others_and_torn_with_others():
    async def work(runtime):
        file = await make_file(runtime)
        await file.write_at(0, [NEW])

    results = [after_crash(seed, work) for seed in SEEDS]
    assert OLD in results
    assert NEW in results
    torn = [result for result in results if result not in (OLD, NEW)]
    assert torn
    for result in torn:
        sectors = {result[start : start + 512] for start in range(0, 4096, 512)}
        assert sectors == {OLD[:512], NEW[:512]}, "a sector is old or new, never a mix"
    firsts = {result[:512] for result in torn}
    assert firsts == {OLD[:512], NEW[:512]}, "any sector may be the one that is lost, in no order"


def test_an_unsynced_append_may_leave_any_size_in_between_and_zeros_for_lost_sectors():
    async def work(runtime):
        file = await make_file(runtime)
        await file.append([NEW])

    results = [after_crash(seed, work) for seed in range(200)]
    assert all(result[:4096] == OLD for result in results)
    sizes = {len(result) for result in results}
    assert {4096, 8192} <= sizes
    assert any(4096 < size < 8192 for size in sizes)
    assert any(b"\0" in result for result in results)


def test_a_process_that_is_killed_loses_nothing_that_was_written():
    async def work(runtime):
        file = await runtime.disk.open("f", create=True)
        await file.append([NEW])

    for seed in SEEDS:
        assert after_crash(seed, work, power_loss=False) == NEW


def test_of_several_unsynced_writes_an_earlier_one_may_survive():
    async def work(runtime):
        file = await make_file(runtime, data=b"0" * 512)
        for version in (b"1", b"2", b"3"):
            await file.write_at(0, [version * 512])

    assert {after_crash(seed, work)[:1] for seed in range(200)} == {b"0", b"1", b"2", b"3"}


def test_a_write_that_a_crash_interrupts_may_or_may_not_have_happened():
    async def scenario(world):
        node = world.node("a")

        async def work(runtime):
            file = await make_file(runtime)
            asyncio.create_task(file.write_at(0, [NEW], sync=True))

        await node.start(work)
        await world.sleep(0)
        node.crash()
        return node.disk.read("f")

    assert {simulate(seed, scenario) for seed in SEEDS} == {OLD, NEW}


def test_a_name_that_was_not_synced_is_lost_with_some_seeds_though_the_data_was():
    async def work(runtime):
        file = await runtime.disk.open("f", create=True)
        await file.append([OLD], sync=True)

    assert {after_crash(seed, work) for seed in SEEDS} == {OLD, None}


def test_a_removal_that_was_not_synced_may_come_back_and_a_synced_one_does_not():
    async def remove(runtime):
        await make_file(runtime)
        await runtime.disk.remove("f")

    async def remove_for_good(runtime):
        await remove(runtime)
        await runtime.disk.sync_dir(".")

    assert {after_crash(seed, remove) for seed in SEEDS} == {OLD, None}
    assert {after_crash(seed, remove_for_good) for seed in SEEDS} == {None}


def test_a_rename_is_atomic_whether_it_survives_or_not():
    async def work(runtime):
        await make_file(runtime, "f", OLD)
        await make_file(runtime, "f.tmp", NEW)
        await runtime.disk.rename("f.tmp", "f")

    async def scenario(world):
        node = world.node("a")
        await node.start(work)
        node.crash()
        return tuple((path, node.disk.read(path)[:1]) for path in node.disk.names.paths())

    assert {simulate(seed, scenario) for seed in SEEDS} == {
        (("f", b"o"), ("f.tmp", b"n")),
        (("f", b"n"),),
    }


def test_the_usual_way_to_replace_a_file_leaves_the_old_or_the_new_one_whole():
    async def work(runtime):
        await make_file(runtime, "f", OLD)
        temporary = await runtime.disk.open("f.tmp", create=True)
        await temporary.append([NEW], sync=True)
        await runtime.disk.rename("f.tmp", "f")

    assert {after_crash(seed, work) for seed in SEEDS} == {OLD, NEW}


def test_a_rename_before_the_data_was_synced_may_leave_a_damaged_file():
    async def work(runtime):
        await make_file(runtime, "f", OLD)
        temporary = await runtime.disk.open("f.tmp", create=True)
        await temporary.append([NEW])
        await runtime.disk.rename("f.tmp", "f")
        await runtime.disk.sync_dir(".")

    assert {after_crash(seed, work) for seed in SEEDS} - {OLD, NEW}


def test_a_file_moved_between_directories_has_one_name_once_the_target_is_synced():
    async def scenario(world):
        node = world.node("a")

        async def work(runtime):
            await runtime.disk.make_dirs("x")
            await runtime.disk.make_dirs("y")
            file = await runtime.disk.open("x/f", create=True)
            await file.append([OLD], sync=True)
            await runtime.disk.rename("x/f", "y/f")
            await runtime.disk.sync_dir("y")

        await node.start(work)
        node.crash()
        return node.disk.names.paths()

    for seed in SEEDS:
        assert simulate(seed, scenario) == ["y/f"]


def test_changes_of_names_do_not_survive_in_their_order():
    async def scenario(world):
        node = world.node("a")

        async def work(runtime):
            await make_file(runtime, "first")
            await runtime.disk.remove("first")
            await runtime.disk.open("second", create=True)

        await node.start(work)
        node.crash()
        return tuple(node.disk.names.paths())

    assert {simulate(seed, scenario) for seed in SEEDS} == {("first",), ("second",), ("first", "second"), ()}


def test_a_truncation_that_was_not_synced_may_be_undone():
    async def work(runtime):
        file = await make_file(runtime)
        await file.truncate(1024)

    results = {after_crash(seed, work) for seed in SEEDS}
    assert OLD[:1024] in results
    assert OLD in results
    assert all(result.startswith(OLD[:1024]) for result in results)


def test_a_failed_sync_may_lose_data_that_a_later_sync_does_not_save():
    async def work(world):
        node = world.node("a")

        async def main(runtime):
            file = await make_file(runtime)
            await file.write_at(0, [NEW])
            node.disk.faults = DiskFaults(sync_error_chance=1.0)
            with pytest.raises(DiskError):
                await file.sync()
            node.disk.faults = DiskFaults()
            await file.sync()
            return await file.read_at(0, 4096)

        seen = await node.start(main)
        node.crash()
        return seen, node.disk.read("f")

    results = [simulate(seed, work) for seed in SEEDS]
    assert any(seen != NEW for seen, _ in results), "some of it is gone at once"
    assert any(seen != left for seen, left in results), "some of it only seems to be there"


def test_what_is_written_again_after_a_failed_sync_is_saved_by_the_next():
    async def work(world):
        node = world.node("a")

        async def main(runtime):
            file = await make_file(runtime)
            await file.write_at(0, [NEW])
            node.disk.faults = DiskFaults(sync_error_chance=1.0)
            with pytest.raises(DiskError):
                await file.sync()
            node.disk.faults = DiskFaults()
            await file.write_at(0, [NEW], sync=True)

        await node.start(main)
        node.crash()
        return node.disk.read("f")

    assert {simulate(seed, work) for seed in SEEDS} == {NEW}


def test_a_full_disk_refuses_may_keep_a_part_and_takes_more_when_space_returns():
    async def scenario(world):
        node = world.node("a")
        node.disk.capacity_bytes = 6000

        async def main(runtime):
            file = await make_file(runtime)
            with pytest.raises(DiskFullError):
                await file.append([NEW])
            part = await file.size()
            await file.truncate(4096)
            with pytest.raises(DiskFullError):
                await file.preallocate(8192)
            await file.write_at(0, [NEW])  # overwriting needs no space
            assert await runtime.disk.free_bytes(".") == 6000 - 4096
            node.disk.capacity_bytes = 10_000
            await file.append([NEW])
            return part

        part = await node.start(main)
        assert 4096 <= part <= 6000
        return part

    assert len({simulate(seed, scenario) for seed in range(5)}) > 1


def test_removing_a_file_gives_its_space_back():
    async def scenario(world):
        node = world.node("a")
        node.disk.capacity_bytes = 6000

        async def main(runtime):
            await make_file(runtime, "f")
            await runtime.disk.remove("f")
            await make_file(runtime, "g")

        await node.start(main)

    simulate(1, scenario)


def test_a_stuck_disk_hangs_until_it_is_unstuck_and_keeps_the_order():
    async def scenario(world):
        node = world.node("a")

        async def main(runtime):
            file = await make_file(runtime)
            node.disk.faults = DiskFaults(stuck=True)
            writes = asyncio.gather(file.write_at(0, [b"1"]), file.write_at(0, [b"2"]), file.read_at(0, 1))
            await runtime.clock.sleep(1000.0)
            assert not writes.done()
            assert node.disk.read("f") == OLD
            node.disk.faults = replace(node.disk.faults, stuck=False)
            return (await writes)[2]

        return await node.start(main)

    assert simulate(1, scenario) == b"2"


def test_a_crash_while_the_disk_is_stuck_leaves_what_was_synced():
    async def scenario(world):
        node = world.node("a")

        async def main(runtime):
            file = await make_file(runtime)
            node.disk.faults = DiskFaults(stuck=True)
            asyncio.create_task(file.write_at(0, [NEW], sync=True))

        await node.start(main)
        await world.sleep(10.0)
        node.crash()
        node.disk.faults = DiskFaults()
        await world.sleep(10.0)
        return node.disk.read("f")

    assert {simulate(seed, scenario) for seed in range(10)} == {OLD}


def test_a_slow_disk_takes_its_time():
    async def scenario(world):
        node = world.node("a")
        node.disk.faults = DiskFaults(latency_s=1.0, jitter_s=0.0, sync_s=5.0, sync_jitter_s=0.0, bandwidth=1024.0)

        async def main(runtime):
            file = await runtime.disk.open("f", create=True)
            before = world.now
            await file.append([OLD], sync=True)
            return world.now - before

        return await node.start(main)

    assert simulate(1, scenario) == 1.0 + 5.0 + 4.0


def test_bits_flip_on_some_reads_and_the_next_read_is_right():
    async def scenario(world):
        node = world.node("a")
        node.disk.faults = DiskFaults(flip_chance=0.5)

        async def main(runtime):
            file = await make_file(runtime)
            return [await file.read_at(0, 4096) for _ in range(20)]

        return await node.start(main)

    reads = simulate(1, scenario)
    wrong = [data for data in reads if data != OLD]
    assert 0 < len(wrong) < 20
    for data in wrong:
        differing = [(a ^ b) for a, b in zip(data, OLD, strict=True) if a != b]
        assert len(differing) == 1
        assert differing[0].bit_count() == 1


def test_rot_stays():
    async def scenario(world):
        node = world.node("a")
        await node.start(make_file)
        assert node.disk.size_of("f") == 4096
        offset = node.disk.rot("f")
        node.crash()
        return node.disk.read("f"), offset

    data, offset = simulate(1, scenario)
    assert [i for i in range(4096) if data[i] != OLD[i]] == [offset]


@pytest.mark.parametrize("fault", ["read_error_chance", "write_error_chance"])
def test_reads_and_writes_may_fail(fault):
    async def scenario(world):
        node = world.node("a")

        async def main(runtime):
            file = await make_file(runtime)
            node.disk.faults = DiskFaults(**{fault: 1.0})
            with pytest.raises(DiskError):
                await (file.read_at(0, 1) if fault == "read_error_chance" else file.write_at(0, [NEW]))

        await node.start(main)

    simulate(1, scenario)


def test_buffers_are_read_when_the_disk_writes_not_when_it_is_asked():
    async def scenario(world):
        async def main(runtime):
            file = await make_file(runtime)
            buffer = bytearray(b"before")
            write = asyncio.create_task(file.write_at(0, [buffer]))
            await runtime.clock.sleep(0)
            buffer[:] = b"later!"
            await write
            return await file.read_at(0, 6)

        return await world.node("a").start(main)

    assert simulate(1, scenario) == b"later!"


def test_a_write_whose_task_is_cancelled_still_happens():
    async def scenario(world):
        node = world.node("a")

        async def main(runtime):
            file = await make_file(runtime)
            write = asyncio.create_task(file.write_at(0, [NEW]))
            await runtime.clock.sleep(0)
            write.cancel()
            await file.size()

        await node.start(main)
        return node.disk.read("f")

    assert simulate(1, scenario) == NEW


def test_locks_die_with_their_incarnation():
    async def scenario(world):
        node = world.node("a")

        async def main(runtime):
            await runtime.disk.lock("lock")
            with pytest.raises(FileLockedError):
                await runtime.disk.lock("./lock")

        await node.start(main)
        node.kill()
        await node.start(main)
        node.crash()
        await node.start(main)

    simulate(1, scenario)


def test_a_wiped_disk_is_empty():
    async def scenario(world):
        node = world.node("a")
        await node.start(make_file)
        node.crash()
        node.disk.wipe()
        return node.disk.names.paths(), node.disk.used_bytes

    assert simulate(1, scenario) == ([], 0)


def test_a_large_preallocated_file_costs_no_memory():
    async def scenario(world):
        async def main(runtime):
            file = await runtime.disk.open("f", create=True)
            await file.preallocate(1 << 40)
            await file.write_at(100, [b"x"])
            return await file.read_at(99, 3), await file.size()

        return await world.node("a").start(main)

    assert simulate(1, scenario) == (b"\0x\0", 1 << 40)
