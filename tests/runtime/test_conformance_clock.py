"""What `weir.runtime.interfaces.Clock` says, over every runtime."""

import asyncio

from weir.testing.world.drivers import ConformanceSite, on_every_runtime

YEAR_2020_MS = 1_577_836_800_000
YEAR_2100_MS = 4_102_444_800_000


@on_every_runtime
async def test_wall_time_counts_milliseconds_since_1970(place: ConformanceSite) -> None:
    now = place.runtime.clock.wall_ms()
    assert isinstance(now, int)
    assert YEAR_2020_MS < now < YEAR_2100_MS


@on_every_runtime
async def test_monotonic_time_never_goes_back(place: ConformanceSite) -> None:
    clock = place.runtime.clock
    times = []
    for _ in range(100):
        times.append(clock.monotonic())
        await clock.sleep(0)
    assert times == sorted(times)


@on_every_runtime
async def test_a_sleep_lasts_at_least_as_long_as_asked_for(place: ConformanceSite) -> None:
    clock = place.runtime.clock
    before, wall_before = clock.monotonic(), clock.wall_ms()
    await clock.sleep(0.02)
    # Event loops round to their clock's resolution, by a millisecond at most.
    assert clock.monotonic() - before >= 0.019
    assert clock.wall_ms() - wall_before >= 18


@on_every_runtime
async def test_sleeping_for_nothing_gives_every_other_ready_task_one_turn(place: ConformanceSite) -> None:
    turns: list[str] = []

    async def other(name: str) -> None:
        turns.append(name)
        await place.runtime.clock.sleep(0)
        turns.append(name)

    others = [asyncio.create_task(other(name)) for name in "abc"]
    await place.runtime.clock.sleep(0)
    assert turns == ["a", "b", "c"]
    await place.runtime.clock.sleep(0)
    assert turns == ["a", "b", "c", "a", "b", "c"]
    await asyncio.gather(*others)


@on_every_runtime
async def test_a_call_is_made_later_from_the_loop(place: ConformanceSite) -> None:
    called = asyncio.Event()
    loops = []

    def callback() -> None:
        loops.append(asyncio.get_running_loop())
        called.set()

    place.runtime.clock.call_later(0.001, callback)
    assert not called.is_set()
    await called.wait()
    assert loops == [asyncio.get_running_loop()]


@on_every_runtime
async def test_later_calls_come_in_the_order_of_their_time(place: ConformanceSite) -> None:
    order: list[int] = []
    done = asyncio.Event()
    for delay in (30, 10, 20):
        place.runtime.clock.call_later(delay / 1000, lambda delay=delay: order.append(delay))
    place.runtime.clock.call_later(0.05, done.set)
    await done.wait()
    assert order == [10, 20, 30]


@on_every_runtime
async def test_a_cancelled_call_is_not_made(place: ConformanceSite) -> None:
    called: list[str] = []
    done = asyncio.Event()
    timer = place.runtime.clock.call_later(0.001, lambda: called.append("cancelled"))
    place.runtime.clock.call_later(0.005, done.set)
    timer.cancel()
    timer.cancel()
    await done.wait()
    assert called == []


@on_every_runtime
async def test_a_sleep_can_be_cancelled(place: ConformanceSite) -> None:
    sleeping = asyncio.create_task(place.runtime.clock.sleep(3600.0))
    await place.runtime.clock.sleep(0)
    sleeping.cancel()
    await asyncio.wait([sleeping])
    assert sleeping.cancelled()


@on_every_runtime
async def test_time_outs_of_asyncio_work(place: ConformanceSite) -> None:
    timed_out = False
    try:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()
    except TimeoutError:
        timed_out = True
    assert timed_out


@on_every_runtime
async def test_dice_give_numbers(place: ConformanceSite) -> None:
    numbers = [place.runtime.rng.random() for _ in range(20)]
    assert len(dict.fromkeys(numbers)) == 20
    assert all(0.0 <= number < 1.0 for number in numbers)
