"""Nodes: what a crash ends, what a restart brings back, and what clocks show."""
# ruff: noqa: RUF006 - the simulated loop holds its tasks by itself

import asyncio
import gc

import pytest

from weir.model.errors import ConfigError
from weir.testing.world.errors import DeadlockError, NodeCrashedError
from weir.testing.world.loop import SimLoop
from weir.testing.world.world import World, simulate


def test_a_node_runs_its_program_and_hands_back_what_it_returned():
    async def scenario(world):
        async def main(runtime):
            await runtime.clock.sleep(5.0)
            return "done"

        return await world.node("a").start(main), world.now

    assert simulate(1, scenario) == ("done", 5.0)


def test_a_failing_program_fails_its_future_and_ends_the_node():
    async def scenario(world):
        async def main(runtime):
            raise ConfigError("no")

        node = world.node("a")
        with pytest.raises(ConfigError):
            await node.start(main)
        assert isinstance(node.failure, ConfigError)
        return node.up

    assert simulate(1, scenario) is False


def test_a_failure_that_nobody_looked_at_fails_the_run():
    async def scenario(world):
        async def background():
            raise ConfigError("unseen")

        async def main(runtime):
            asyncio.create_task(background())

        await world.node("a").start(main)
        await world.sleep(1.0)

    with pytest.raises(BaseExceptionGroup) as caught:
        simulate(1, scenario)
    assert isinstance(caught.value.exceptions[0], ConfigError)
    simulate(1, scenario, strict=False)


def test_background_tasks_live_on_after_the_program_returned():
    async def scenario(world):
        ticks = []

        async def tick(runtime):
            while True:
                await runtime.clock.sleep(1.0)
                ticks.append(world.now)

        async def main(runtime):
            asyncio.create_task(tick(runtime))

        await world.node("a").start(main)
        await world.sleep(3.5)
        return ticks

    assert simulate(1, scenario) == [1.0, 2.0, 3.0]


def test_a_crash_stops_tasks_callbacks_and_timers_of_its_node_and_no_others():
    async def scenario(world):
        seen = []

        async def tick(runtime, name):
            while True:
                await runtime.clock.sleep(1.0)
                seen.append(name)

        async def main_of(runtime, name):
            asyncio.create_task(tick(runtime, f"{name}-task"))
            async with asyncio.TaskGroup() as group:
                group.create_task(tick(runtime, f"{name}-group"))
                asyncio.get_running_loop().call_later(2.5, seen.append, f"{name}-timer")
                runtime.clock.call_later(2.5, lambda: seen.append(f"{name}-clock"))

        world.node("a").start(lambda runtime: main_of(runtime, "a"))
        world.node("b").start(lambda runtime: main_of(runtime, "b"))
        await world.sleep(1.5)
        world.node("a").crash()
        before = sorted(seen)
        await world.sleep(1.4)
        return before, sorted(seen[len(before) :])

    assert simulate(1, scenario) == (
        ["a-group", "a-task", "b-group", "b-task"],
        ["b-clock", "b-group", "b-task", "b-timer"],
    )


def test_finally_blocks_of_a_crashed_node_do_not_run_while_the_world_does():
    seen = []

    async def scenario(world):
        async def main(runtime):
            try:
                await runtime.clock.sleep(100.0)
            finally:
                seen.append("finally")

        world.node("a").start(main)
        await world.sleep(1.0)
        world.node("a").crash()
        await world.sleep(200.0)
        return list(seen)

    assert simulate(1, scenario) == []


def test_whoever_awaits_a_program_of_a_crashed_node_is_told():
    async def scenario(world):
        async def main(runtime):
            await runtime.clock.sleep(100.0)

        running = world.node("a").start(main)
        await world.sleep(1.0)
        world.node("a").crash()
        with pytest.raises(NodeCrashedError):
            await running
        return world.now

    assert simulate(1, scenario) == 1.0


def test_a_node_may_crash_itself_and_does_nothing_afterwards():
    async def scenario(world):
        seen = []
        node = world.node("a")

        async def main(runtime):
            file = await runtime.disk.open("f", create=True)
            connection_to_nobody = runtime.net.connect("b", 1)
            node.crash()
            asyncio.create_task(connection_to_nobody)
            try:
                await file.append([b"ghost"])
            except BaseException as error:
                seen.append(error)
            seen.append("went on")

        node.start(main)
        await world.sleep(1.0)
        return list(seen), node.up, node.disk.used_bytes

    assert simulate(1, scenario) == ([], False, 0)


def test_io_through_the_runtime_of_a_dead_incarnation_has_no_effect():
    async def scenario(world):
        node = world.node("a")

        async def main(runtime):
            file = await runtime.disk.open("f", create=True)
            await file.append([b"kept"], sync=True)
            await runtime.disk.sync_dir(".")
            return runtime, file

        old, file = await node.start(main)
        node.crash()
        for use in (
            lambda: file.append([b"lost"], sync=True),
            lambda: old.disk.remove("f"),
            lambda: old.net.listen("a", 1),
            lambda: old.clock.sleep(1.0),
        ):
            with pytest.raises(NodeCrashedError):
                await use()
        await world.sleep(1.0)
        return node.disk.read("f")

    assert simulate(1, scenario) == b"kept"


def test_a_timer_asked_for_from_outside_belongs_to_the_node():
    async def scenario(world):
        seen = []
        world.node("a").runtime.clock.call_later(1.0, lambda: seen.append("a"))
        world.node("b").runtime.clock.call_later(1.0, lambda: seen.append("b"))
        world.node("a").crash()
        await world.sleep(2.0)
        return seen

    assert simulate(1, scenario) == ["b"]


def test_a_restart_runs_the_program_again_with_a_fresh_runtime():
    async def scenario(world):
        runtimes = []

        async def main(runtime):
            runtimes.append(runtime)
            await runtime.clock.sleep(100.0)

        node = world.node("a")
        node.start(main)
        await world.sleep(1.0)
        node.restart()
        await world.sleep(1.0)
        assert runtimes[1] is node.runtime
        return len(runtimes), runtimes[0] is runtimes[1], runtimes[0].rng.random() == runtimes[1].rng.random()

    assert simulate(1, scenario) == (2, False, False)


def test_a_node_that_is_down_has_no_runtime():
    async def scenario(world):
        world.node("a").crash()
        world.node("a").crash()
        with pytest.raises(NodeCrashedError):
            _ = world.node("a").runtime

    simulate(1, scenario)


def test_a_paused_node_does_nothing_until_resumed_and_then_catches_up():
    async def scenario(world):
        seen = []

        async def tick(runtime):
            while True:
                await runtime.clock.sleep(1.0)
                seen.append(world.now)

        node = world.node("a")
        node.start(tick)
        await world.sleep(1.5)
        node.pause()
        await world.sleep(10.0)
        assert seen == [1.0]
        node.resume()
        await world.sleep(1.5)
        return seen

    assert simulate(1, scenario) == [1.0, 11.5, 12.5]


def test_wall_clocks_may_be_skewed_and_jump_while_monotonic_time_does_not():
    async def scenario(world):
        right, wrong = world.node("right"), world.node("wrong")
        before = wrong.runtime.clock.monotonic()
        wrong.clock_skew = -3600.0
        difference = right.runtime.clock.wall_ms() - wrong.runtime.clock.wall_ms()
        return difference, wrong.runtime.clock.monotonic() - before

    assert simulate(1, scenario) == (3_600_000, 0.0)


def test_a_fast_clock_sleeps_less_and_counts_more():
    async def scenario(world):
        node = world.node("fast")
        node.clock.rate = 1.25
        clock = node.runtime.clock
        wall, monotonic = clock.wall_ms(), clock.monotonic()

        async def main(runtime):
            await runtime.clock.sleep(10.0)

        await node.start(main)
        return world.now, clock.wall_ms() - wall, round(clock.monotonic() - monotonic, 6)

    assert simulate(1, scenario) == (8.0, 10_000, 10.0)


def test_streams_of_randomness_do_not_shift_each_other():
    with World(7) as one, World(7) as two:
        one.rng("other").random()
        assert one.rng("mine").random() == two.rng("mine").random()
        assert one.rng("mine").random() != one.rng("other").random()
    with World(8) as three, World(7) as four:
        assert three.rng("mine").random() != four.rng("mine").random()


def test_a_crashed_node_leaves_no_warnings_behind(caplog, recwarn):
    async def scenario(world):
        async def generate(runtime):
            try:
                while True:
                    await runtime.clock.sleep(1.0)
                    yield 1
            finally:
                await runtime.clock.sleep(1.0)

        async def read(runtime):
            async for _ in generate(runtime):
                pass

        async def main(runtime):
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(read(runtime))
                group.create_task(runtime.disk.make_dirs("/x"))
                listener = await runtime.net.listen("a", 1)
                group.create_task(listener.accept())

        for _ in range(3):
            world.node("a").start(main)
            await world.sleep(1.5)
            world.node("a").crash()

    simulate(1, scenario)
    gc.collect()
    assert not caplog.records
    assert not recwarn.list


def test_a_deadlock_names_the_node_that_waits():
    async def scenario(world):
        async def main(runtime):
            await asyncio.Event().wait()

        await world.node("sleepy").start(main)

    with pytest.raises(DeadlockError, match="sleepy#1"):
        simulate(1, scenario)


def test_a_world_may_run_several_scenarios_in_turn():
    with World(1) as world:
        assert isinstance(world.loop, SimLoop)
        world.run(world.sleep(1.0))
        world.run(world.sleep(1.0))
        assert world.now == 2.0
