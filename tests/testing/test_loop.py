"""The simulated event loop: virtual time, one order, errors instead of hanging."""
# ruff: noqa: RUF006 - the simulated loop holds its tasks by itself

import asyncio
import contextvars
import gc
import sys
from contextlib import AsyncExitStack

import pytest

from weir.testing.world.errors import DeadlockError, LivelockError
from weir.testing.world.loop import SimLoop


@pytest.fixture
def loop():
    loop = SimLoop()
    yield loop
    loop.close()


def test_time_jumps_to_the_next_timer_and_nothing_waits_for_real(loop):
    async def main():
        await asyncio.sleep(3600.0)
        return loop.time()

    assert loop.run_until_complete(main()) == 3600.0


def test_timers_run_in_the_order_of_their_time_and_then_of_their_creation(loop):
    seen = []

    async def main():
        for name, delay in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
            loop.call_later(delay, seen.append, name)
        await asyncio.sleep(3.0)

    loop.run_until_complete(main())
    assert seen == ["a", "b", "c"]


def test_calls_run_in_the_order_in_which_they_became_ready(loop):
    seen = []

    async def main():
        for i in range(5):
            loop.call_soon(seen.append, i)
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    assert seen == [0, 1, 2, 3, 4]


def test_a_cancelled_timer_never_runs_and_does_not_hold_back_a_deadlock(loop):
    async def main():
        loop.call_later(1.0, pytest.fail, "ran").cancel()
        await loop.create_future()

    with pytest.raises(DeadlockError):
        loop.run_until_complete(main())
    assert loop.time() == 0.0


def test_many_cancelled_timers_do_not_pile_up(loop):
    async def main():
        for _ in range(10_000):
            async with asyncio.timeout(60.0):
                await asyncio.sleep(0)
        return len(loop._timers)

    assert loop.run_until_complete(main()) < 1000


def test_a_deadlock_names_the_tasks_that_wait(loop):
    async def stuck_forever():
        await loop.create_future()

    async def main():
        await asyncio.create_task(stuck_forever(), name="the-stuck-one")

    with pytest.raises(DeadlockError, match=r"the-stuck-one at test_loop.py:\d+ stuck_forever"):
        loop.run_until_complete(main())


def test_a_loop_that_never_lets_time_pass_is_an_error():
    loop = SimLoop(max_instant_steps=1000)

    async def main():
        while True:
            await asyncio.sleep(0)

    with pytest.raises(LivelockError, match="time stood still"):
        loop.run_until_complete(main())
    loop.close()


@pytest.mark.parametrize("limit", [{"max_steps": 1000}, {"max_seconds": 100.0}])
def test_a_scenario_that_never_ends_is_an_error(limit):
    loop = SimLoop(**limit)

    async def main():
        while True:
            await asyncio.sleep(1.0)

    with pytest.raises(LivelockError):
        loop.run_until_complete(main())
    loop.close()


def test_timeouts_gather_task_groups_events_and_queues_work(loop):
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await asyncio.Event().wait()
        assert loop.time() == 5.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 5.0)
        assert loop.time() == 10.0

        async def after(seconds):
            await asyncio.sleep(seconds)
            return seconds

        assert await asyncio.gather(after(2.0), after(1.0)) == [2.0, 1.0]
        async with asyncio.TaskGroup() as group:
            first, second = group.create_task(after(1.0)), group.create_task(after(3.0))
        assert (first.result(), second.result(), loop.time()) == (1.0, 3.0, 15.0)

        queue = asyncio.Queue(maxsize=1)
        event = asyncio.Event()

        async def produce():
            for i in range(3):
                await queue.put(i)
            event.set()

        producer = asyncio.create_task(produce())
        assert [await queue.get() for _ in range(3)] == [0, 1, 2]
        await event.wait()
        await producer

    loop.run_until_complete(main())


def test_async_generators_work_and_an_abandoned_one_is_closed(loop):
    closed = []

    async def numbers():
        try:
            for i in range(10):
                await asyncio.sleep(1.0)
                yield i
        finally:
            closed.append(loop.time())

    async def main():
        async for number in numbers():
            if number == 2:
                break
        await asyncio.sleep(1.0)

    loop.run_until_complete(main())
    assert closed == [3.0]


def test_there_are_no_threads(loop):
    async def main():
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match="no threads"):
        loop.run_until_complete(main())


def test_a_callback_runs_in_the_context_it_was_scheduled_in(loop):
    word = contextvars.ContextVar("word", default="unset")
    seen = []

    async def main():
        word.set("set")
        loop.call_later(1.0, lambda: seen.append(word.get()))
        await asyncio.sleep(2.0)

    loop.run_until_complete(main())
    assert seen == ["set"]
    assert word.get() == "unset"


def test_the_garbage_collector_is_off_only_while_the_loop_runs(loop):
    async def main():
        return gc.isenabled()

    assert not loop.run_until_complete(main())
    assert gc.isenabled()


def test_an_exit_stack_of_several_steps_is_buried_to_its_end_without_noise(monkeypatch):
    gc.collect()
    noise, reached = [], []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    loop = SimLoop()

    async def step(name):
        reached.append(name)
        await loop.create_future()

    async def close():
        async with AsyncExitStack() as last:
            for name in ("c", "b", "a"):
                last.push_async_callback(step, name)

    async def main():
        asyncio.create_task(close())
        await asyncio.sleep(1.0)

    loop.run_until_complete(main())
    loop.close()
    gc.collect()
    assert reached == ["a", "b", "c"]
    assert noise == []


def test_closing_buries_what_is_left_without_noise(caplog, recwarn):
    gc.collect()  # what other tests left behind is not this loop's noise
    recwarn.clear()
    loop = SimLoop()
    reached = []

    async def stubborn():
        try:
            await loop.create_future()
        finally:
            reached.append("finally")
            await asyncio.gather(asyncio.sleep(1.0), asyncio.sleep(2.0))
            reached.append("after")

    async def never_started():
        reached.append("started")

    async def main():
        loop.set_exception_handler(lambda _, context: reached.append(context))
        asyncio.create_task(stubborn())
        await asyncio.sleep(1.0)
        # The loop stops in the turn in which this callback runs, so the task gets no turn of its own.
        asyncio.current_task().add_done_callback(lambda _: loop.create_task(never_started()))

    loop.run_until_complete(main())
    loop.close()
    gc.collect()
    assert reached == ["finally"]
    assert not caplog.records
    assert not recwarn.list


@pytest.mark.slow
def test_the_loop_is_fast_enough_to_live_in(loop):
    # Not a timing assertion: a hundred thousand steps and a virtual week are simply no burden.
    async def main():
        for _ in range(50_000):
            await asyncio.sleep(1.0)

    loop.run_until_complete(main())
    assert loop.steps >= 100_000
