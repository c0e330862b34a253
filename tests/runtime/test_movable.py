"""A clock that is moved: what is due is done, in its order, each thing at its moment; liveness does not move."""

import asyncio
from contextlib import suppress

import pytest

from weir.pytest_plugin.host.process import IdleLoop
from weir.runtime.adjustable_clock import MovableClock, clients_behind_ms, liveness, unmoved
from weir.runtime.real import RealClock

DAY_S = 86_400.0


def on_idle_loop(scenario):
    with asyncio.Runner(loop_factory=IdleLoop) as runner:
        return runner.run(scenario)


async def advance(clock: MovableClock, seconds: float) -> None:
    await clock.advance(seconds, asyncio.get_running_loop().settled)


def test_calls_are_made_in_their_order_and_each_sees_its_own_moment() -> None:
    async def scenario():
        clock, seen = MovableClock(RealClock()), []
        began = clock.wall_ms()

        def note(name: str, again_s: float = 0.0) -> None:
            seen.append((name, round((clock.wall_ms() - began) / 60_000)))
            if again_s:
                clock.call_later(again_s, lambda: note(name + "'"))

        clock.call_later(3 * 3600.0, lambda: note("c"))
        clock.call_later(3600.0, lambda: note("a", again_s=3600.0))
        clock.call_later(5 * 3600.0, lambda: note("never"))
        clock.call_later(4000.0, lambda: note("cancelled")).cancel()
        await advance(clock, 4 * 3600.0)
        return seen, round((clock.wall_ms() - began) / 60_000)

    assert on_idle_loop(scenario()) == ([("a", 60), ("a'", 120), ("c", 180)], 240)


def test_whoever_looks_from_time_to_time_has_few_looks_on_the_way_and_one_at_the_end() -> None:
    async def scenario():
        clock, looks = MovableClock(RealClock()), []

        async def look() -> None:
            while True:
                await clock.sleep(5.0)
                looks.append(clock.monotonic())

        began = clock.monotonic()
        looking = asyncio.create_task(look())
        await advance(clock, 3 * DAY_S)
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        return len(looks), looks[-1] - began >= 3 * DAY_S

    count, at_the_end = on_idle_loop(scenario())
    assert 60 <= count <= 70
    assert at_the_end


def test_an_advance_waits_until_all_that_it_began_is_done() -> None:
    async def scenario():
        clock, done = MovableClock(RealClock()), []

        async def work() -> None:
            for _ in range(50):
                await asyncio.sleep(0)
            done.append(True)

        tasks = []
        clock.call_later(60.0, lambda: tasks.append(asyncio.create_task(work())))
        await advance(clock, 61.0)
        return done

    assert on_idle_loop(scenario()) == [True]


def test_liveness_does_not_move_unless_silence_is_wanted() -> None:
    async def scenario():
        real = RealClock()
        silence = MovableClock(real)
        clock = MovableClock(silence)
        dead = []
        liveness(clock).call_later(30.0, lambda: dead.append(True))
        before = silence.monotonic()
        await advance(clock, DAY_S)
        alive = not dead and silence.monotonic() - before < 60
        moved = clock.monotonic()
        await clock.silence(DAY_S, asyncio.get_running_loop().settled)
        same = 0 <= clock.monotonic() - moved < 60
        return alive, same, dead, unmoved(clock) is real, clients_behind_ms(clock)

    assert on_idle_loop(scenario()) == (True, True, [True], True, int(DAY_S) * 1000)


def test_a_clock_goes_forward_only() -> None:
    async def scenario():
        with pytest.raises(ValueError, match="forward only"):
            await advance(MovableClock(RealClock()), -1.0)

    on_idle_loop(scenario())


def test_other_clocks_are_their_own_liveness() -> None:
    clock = RealClock()
    assert liveness(clock) is clock
    assert unmoved(clock) is clock
    assert clients_behind_ms(clock) == 0
