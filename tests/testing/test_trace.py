"""One seed, one run: the same trace to the byte, in this process and in any other."""

import asyncio
import os
import subprocess
import sys

import pytest

from weir.testing.world.disk import DiskFaults
from weir.testing.world.net import NetFaults
from weir.testing.world.trace import Trace
from weir.testing.world.world import World

ROUNDS = 30


async def busy_scenario(world):
    """Nodes that talk and write while they crash, partitions come and go."""
    names = [f"n{i}" for i in range(4)]
    chaos = world.rng("chaos")
    world.net.set_faults(NetFaults(reset_chance=0.001, split_chance=0.3))

    async def serve(runtime):
        file = await runtime.disk.open("log", create=True)
        listener = await runtime.net.listen("0.0.0.0", 7000)

        async def answer(connection):
            try:
                while data := await connection.receive():
                    await file.append([data], sync=runtime.rng.random() < 0.5)
                    connection.write([data])
                    await connection.drain()
            except Exception as error:
                world.note("session", type(error).__name__)

        async def ask():
            while True:
                try:
                    connection = await runtime.net.connect(runtime.rng.choice(names), 7000, timeout_s=1.0)
                    for _ in range(5):
                        connection.write([runtime.rng.randbytes(runtime.rng.randrange(1, 2000))])
                        async with asyncio.timeout(0.5):
                            await connection.receive()
                    connection.close()
                except Exception as error:
                    world.note("client", type(error).__name__)
                    await runtime.clock.sleep(0.1)

        async with asyncio.TaskGroup() as group:
            group.create_task(ask())
            while True:
                group.create_task(answer(await listener.accept()))

    for name in names:
        world.node(name).start(serve)
        world.node(name).disk.faults = DiskFaults(flip_chance=0.01)
    for _ in range(ROUNDS):
        await world.sleep(chaos.random() * 0.5)
        victim = world.node(chaos.choice(names))
        match chaos.randrange(4):
            case 0:
                victim.crash()
            case 1:
                victim.restart()
            case 2:
                world.net.block(victim.name, chaos.choice(names))
            case _:
                world.net.heal()


def run_once(seed, keep=0):
    with World(seed, keep_trace=keep) as world:
        world.run(busy_scenario(world))
        return world.trace.digest(), world.trace.count, world.trace.lines()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trace():
    first, second = run_once(11, keep=None), run_once(11, keep=None)
    assert first == second
    assert first[1] > 1000


@pytest.mark.slow
def test_another_seed_gives_another_trace():
    assert run_once(11)[0] != run_once(12)[0]


@pytest.mark.process
def test_the_trace_is_the_same_across_processes_whatever_their_hash_seed():
    program = f"import runpy; print(runpy.run_path({__file__!r})['run_once'](13)[0])"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    digests = [process.communicate(timeout=100)[0].strip() for process in running]
    assert digests[0] == digests[1] == run_once(13)[0]


@pytest.mark.slow
def test_keeping_lines_does_not_change_the_digest():
    assert run_once(11, keep=0)[0] == run_once(11, keep=5)[0]


def test_lines_are_kept_as_asked():
    for keep, kept in ((0, 0), (2, 2), (None, 3)):
        trace = Trace(keep=keep)
        for i in range(3):
            trace.add(float(i), "node", "kind", f"detail {i}")
        assert trace.lines() == [f"{i}.000000000 node kind detail {i}" for i in range(3 - kept, 3)]
        assert trace.count == 3


def test_the_digest_depends_on_every_line_and_may_be_asked_for_at_any_time():
    one, two = Trace(), Trace()
    for i in range(1000):
        one.add(float(i), "node", "kind", "detail")
        two.add(float(i), "node", "kind", "detail" if i != 500 else "other")
        if i % 300 == 0:
            one.digest()
    assert one.digest() != two.digest()
    three = Trace()
    for i in range(1000):
        three.add(float(i), "node", "kind", "detail")
    assert one.digest() == three.digest()
