"""The watch over event loops: it fails a run that holds one, and no other."""

import asyncio
import logging
import time

import pytest

from weir.runtime.interfaces import LoopHolds, Runtime
from weir.runtime.real import LoopWatch
from weir.testing.loop_thread import LoopThread, check_loops
from weir.testing.world.errors import LoopHeldError
from weir.testing.world.loop import SimLoop
from weir.testing.world.world import World, simulate


def compute(seconds: float) -> None:
    """Without a pause, so much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_simulation_fails_in_which_one_call_computes_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        async def main(_runtime: Runtime) -> None:
            compute(0.3)

        await world.node("one").start(main)

    monkeypatch.setattr("weir.testing.world.loop._LOOK_EVERY_S", 0.0)
    simulate(1, scenario)  # well within the limit that holds for all
    made = SimLoop.__init__
    monkeypatch.setattr(SimLoop, "__init__", lambda loop, **more: made(loop, **{**more, "held_limit_s": 0.1}))
    with pytest.raises(LoopHeldError, match="held the loop for"):
        simulate(1, scenario)


def test_a_simulation_that_waits_for_long_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimLoop.__init__
    monkeypatch.setattr(SimLoop, "__init__", lambda loop, **more: made(loop, **{**more, "held_limit_s": 0.5}))
    monkeypatch.setattr("weir.testing.world.loop._LOOK_EVERY_S", 0.0)

    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            time.sleep(0.7)  # the machine had other things to do
            await runtime.clock.sleep(3600)

        await world.node("one").start(main)

    simulate(1, scenario)


@pytest.mark.slow
def test_a_node_fails_whose_loop_computes_for_too_long_and_it_is_named() -> None:
    loop = LoopThread(held_limit_s=0.2)

    async def hold() -> None:
        compute(1.0)

    loop.call(hold)
    loop.begin(_nothing).result()
    with pytest.raises(LoopHeldError, match="held for"):
        loop.stop()


def test_every_test_is_told_of_a_loop_that_was_held_meanwhile() -> None:
    loop = LoopThread(held_limit_s=0.2)
    loop.holds.longest_s = 5.0
    with pytest.raises(LoopHeldError, match="was held"):
        check_loops()
    check_loops()  # once
    loop.stop()


def test_a_loop_whose_thread_only_waits_is_not_held() -> None:
    loop = LoopThread(held_limit_s=0.2)

    async def wait() -> None:
        time.sleep(0.6)  # a busy machine: time goes by, and nothing is computed

    loop.call(wait)
    loop.stop()


@pytest.mark.slow
async def test_the_product_names_each_place_that_holds_its_loop_once(caplog: pytest.LogCaptureFixture) -> None:
    holds = LoopHolds()
    with caplog.at_level(logging.WARNING), LoopWatch(holds, interval_s=0.001, long_s=0.05):
        for _ in range(3):
            await asyncio.sleep(0.01)
            compute(0.2)
            await asyncio.sleep(0.01)
    assert holds.count >= 3
    assert holds.longest_s >= 0.05
    told = [record.getMessage() for record in caplog.records if "event loop was held" in record.getMessage()]
    assert len(set(told)) == len(told) <= 2


async def _nothing() -> None:
    pass
