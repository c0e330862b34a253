"""A bookie that is crashed at any moment keeps what it promised: in simulation, over many seeds."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from weir.bookie.bookie import Bookie
from weir.bookie.settings import BookieSettings
from weir.bookie.space import BookieState
from weir.model.errors import BookieError, BookieReadOnlyError, DiskError
from weir.runtime.interfaces import Runtime
from weir.testing.storage.bookies import Promises, Workload, periodic, tiny_settings
from weir.testing.world.disk import DiskFaults
from weir.testing.world.errors import NodeCrashedError
from weir.testing.world.node import SimNode
from weir.testing.world.world import World, simulate

WRITERS = 4


async def lives(world: World, settings: BookieSettings, faults: DiskFaults, *, rounds: int = 6) -> int:
    """Start, work, crash somewhere, start again, check. The number of promises that were checked."""
    dice = Random(f"lives {world.seed}")
    promises = Promises()
    node = world.node("bookie")
    node.disk.faults = faults

    async def work(runtime: Runtime) -> None:
        bookie = await Bookie.open(runtime, settings)
        broken = await promises.broken_by(bookie)
        assert broken == []

        async def write(number: int) -> None:
            workload = Workload(Random(f"{world.seed} {number} {dice.random()}"), promises, ledgers=6)
            workload._next = counters
            workload._first = 1 + number * 100
            while bookie.state is not BookieState.FAILED:
                try:
                    await workload.step(bookie)
                except BookieReadOnlyError:
                    await runtime.clock.sleep(0.001)

        try:
            await asyncio.gather(*(write(number) for number in range(WRITERS)))
        except BookieError:
            if bookie.state is not BookieState.FAILED:
                raise

    counters: dict[int, int] = {}
    for seconds in [0.2, *(dice.choice((0.001, 0.005, 0.02, 0.1, 0.3)) for _ in range(rounds))]:
        running = node.start(work)
        await wait_or_end(world, running, seconds * (0.2 + dice.random()))
        node.crash(power_loss=dice.random() < 0.7)
    node.disk.faults = DiskFaults()
    await check_at_the_end(node, settings, promises)
    return len(promises.acknowledged)


async def wait_or_end(world: World, running: "asyncio.Future[None]", seconds: float) -> None:
    """Until the time is over or the bookie has failed; what it failed with must be the disk's fault."""
    await asyncio.wait([running], timeout=seconds)
    if running.done():
        with suppress(DiskError, NodeCrashedError):
            running.result()
    else:
        running.add_done_callback(lambda done: done.cancelled() or done.exception())


async def check_at_the_end(node: SimNode, settings: BookieSettings, promises: Promises) -> None:
    async def check(runtime: Runtime) -> list[str]:
        bookie = await Bookie.open(runtime, settings)
        broken = await promises.broken_by(bookie)
        await bookie.close()
        return broken

    assert await node.start(check) == []
    node.crash()
    assert await node.start(check) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_no_acknowledged_entry_or_fence_is_lost_at_a_crash(seed: int) -> None:
    checked = simulate(seed, lambda world: lives(world, tiny_settings(), DiskFaults()))
    assert checked > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_bits_that_flip_on_the_way_from_the_disk_do_no_harm(seed: int) -> None:
    simulate(seed, lambda world: lives(world, tiny_settings(), DiskFaults(flip_chance=0.003)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_failed_writes_and_syncs_end_the_bookie_but_lose_nothing(seed: int) -> None:
    faults = DiskFaults(write_error_chance=0.002, sync_error_chance=0.004)
    simulate(seed, lambda world: lives(world, tiny_settings(), faults, rounds=10))


@pytest.mark.parametrize("seed", range(10))
def test_with_periodic_sync_a_killed_process_loses_nothing(seed: int) -> None:
    async def scenario(world: World) -> None:
        settings = periodic(tiny_settings(), 0.01)
        dice, promises, node = Random(f"periodic {seed}"), Promises(), world.node("bookie")
        counters: dict[int, int] = {}

        async def work(runtime: Runtime) -> None:
            bookie = await Bookie.open(runtime, settings)
            assert await promises.broken_by(bookie) == []
            workload = Workload(Random(f"{seed} {dice.random()}"), promises)
            workload._next = counters
            while True:
                await workload.step(bookie)

        for _ in range(5):
            await wait_or_end(world, node.start(work), 0.05 * (0.2 + dice.random()))
            node.kill()
        await check_after_kill(node, settings, promises)

    simulate(seed, scenario)


async def check_after_kill(node: SimNode, settings: BookieSettings, promises: Promises) -> None:
    async def check(runtime: Runtime) -> list[str]:
        bookie = await Bookie.open(runtime, replace(settings))
        return await promises.broken_by(bookie)

    assert await node.start(check) == []
