"""Room for requests, over all connections: who gets it, who waits, and who is late."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from weir.model.errors import TooManyError
from weir.runtime.budgets import FREE_BYTES, MIB, RequestBudget, RequestShare
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate


def simulated(scenario: Callable[[Runtime], Awaitable[None]]) -> None:
    async def run(world: World) -> None:
        await world.node("broker").start(scenario)

    simulate(1, run)


def waiting(share: RequestShare, size: int) -> "asyncio.Task[None]":
    return asyncio.ensure_future(share.wait_capacity(size))


def test_what_there_is_no_room_for_waits_until_there_is() -> None:
    async def scenario(runtime: Runtime) -> None:
        budget = RequestBudget(20 * MIB)
        first, second = RequestShare(budget, runtime.clock), RequestShare(budget, runtime.clock)
        await first.wait_capacity(6 * MIB)
        turn = waiting(second, 5 * MIB)
        await runtime.clock.sleep(1)
        assert (turn.done(), budget.waiting, budget.used_bytes) == (False, 1, 6 * MIB)
        first.acquire(6 * MIB)  # it came whole, and is served
        await runtime.clock.sleep(1)
        assert not turn.done()
        first.release(6 * MIB)
        await turn
        assert (budget.waiting, budget.used_bytes) == (0, 5 * MIB)
        second.arrived()
        assert budget.used_bytes == 0

    simulated(scenario)


def test_a_lone_request_has_room_whatever_its_size() -> None:
    async def scenario(runtime: Runtime) -> None:
        budget = RequestBudget(20 * MIB)
        await RequestShare(budget, runtime.clock).wait_capacity(100 * MIB)
        assert budget.exhausted

    simulated(scenario)


def test_large_requests_do_not_keep_small_ones_out_and_the_smallest_is_first() -> None:
    async def scenario(runtime: Runtime) -> None:
        budget = RequestBudget(20 * MIB)
        large = [RequestShare(budget, runtime.clock) for _ in range(4)]
        await large[0].wait_capacity(10 * MIB)
        turns = [waiting(share, size * MIB) for share, size in zip(large[1:], (9, 4, 2), strict=True)]
        await RequestShare(budget, runtime.clock).wait_capacity(MIB)
        await RequestShare(budget, runtime.clock).wait_capacity(FREE_BYTES)
        await runtime.clock.sleep(1)
        assert [turn.done() for turn in turns] == [False, False, False]
        large[0].close()
        await runtime.clock.sleep(1)
        assert [turn.done() for turn in turns] == [False, True, True]
        large[2].close()
        large[3].close()
        await turns[0]

    simulated(scenario)


def test_who_stops_waiting_gives_its_place_to_others() -> None:
    async def scenario(runtime: Runtime) -> None:
        budget = RequestBudget(20 * MIB)
        first = RequestShare(budget, runtime.clock)
        await first.wait_capacity(10 * MIB)
        gone = waiting(RequestShare(budget, runtime.clock), 8 * MIB)
        stays = waiting(RequestShare(budget, runtime.clock), 9 * MIB)
        await runtime.clock.sleep(1)
        gone.cancel()
        first.close()  # in the same turn
        await stays
        assert (gone.cancelled(), budget.used_bytes, budget.waiting) == (True, 9 * MIB, 0)

    simulated(scenario)


def test_if_too_many_wait_the_largest_is_sent_away() -> None:
    async def scenario(runtime: Runtime) -> None:
        budget = RequestBudget(20 * MIB, max_waiting=2)
        first = RequestShare(budget, runtime.clock)
        await first.wait_capacity(10 * MIB)
        turns = [waiting(RequestShare(budget, runtime.clock), size * MIB) for size in (8, 9, 7)]
        with pytest.raises(TooManyError):
            await turns[1]
        with pytest.raises(TooManyError):
            await RequestShare(budget, runtime.clock).wait_capacity(20 * MIB)
        assert budget.waiting == 2
        first.close()
        await turns[2]
        turns[0].cancel()

    simulated(scenario)


def test_a_connection_that_is_gone_holds_nothing_and_takes_nothing_more() -> None:
    async def scenario(runtime: Runtime) -> None:
        budget = RequestBudget(20 * MIB)
        share = RequestShare(budget, runtime.clock)
        share.acquire(100)
        share.acquire(2 * MIB)
        await share.wait_capacity(3 * MIB)
        assert budget.used_bytes == 100 + 5 * MIB
        share.close()
        share.release(100)  # an answer that comes too late
        share.acquire(7)
        assert budget.used_bytes == 0

    simulated(scenario)


def test_who_is_silent_is_late_while_others_wait_and_only_then() -> None:
    async def scenario(runtime: Runtime) -> None:
        clock = runtime.clock
        budget = RequestBudget(20 * MIB, patience_s=5)
        slow = RequestShare(budget, clock)
        await slow.wait_capacity(10 * MIB)
        heard_at = clock.monotonic()
        assert not slow.late(clock.monotonic() + 1000, heard_at)
        turn = waiting(RequestShare(budget, clock), 2 * MIB)
        await clock.sleep(4)
        assert not slow.late(clock.monotonic(), heard_at)
        await clock.sleep(2)
        assert slow.late(clock.monotonic(), heard_at)
        assert not slow.late(clock.monotonic(), clock.monotonic())  # it has just sent something
        await clock.sleep(10)
        assert slow.late(clock.monotonic(), clock.monotonic())  # but in all it took too long for its size
        turn.cancel()

    simulated(scenario)
