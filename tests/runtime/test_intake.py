"""Room for requests, over all connections: who gets it, who waits, and who is late."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from weir.model.errors import TooManyError
from weir.runtime import Runtime
from weir.runtime import intake as module
from weir.runtime.intake import FREE_BYTES, MIB, Intake, Portion
from weir.testing.world.world import World, simulate


def simulated(scenario: Callable[[Runtime], Awaitable[None]]) -> None:
    async def run(world: World) -> None:
        await world.node("broker").start(scenario)

    simulate(1, run)


def waiting(portion: Portion, size: int) -> "asyncio.Task[None]":
    return asyncio.ensure_future(portion.room(size))


def test_what_there_is_no_room_for_waits_until_there_is() -> None:
    async def scenario(runtime: Runtime) -> None:
        intake = Intake(20 * MIB)
        first, second = Portion(intake, runtime.clock), Portion(intake, runtime.clock)
        await first.room(6 * MIB)
        turn = waiting(second, 5 * MIB)
        await runtime.clock.sleep(1)
        assert (turn.done(), intake.waiting, intake.taken) == (False, 1, 6 * MIB)
        first.take(6 * MIB)  # it came whole, and is served
        await runtime.clock.sleep(1)
        assert not turn.done()
        first.give(6 * MIB)
        await turn
        assert (intake.waiting, intake.taken) == (0, 5 * MIB)
        second.passed()
        assert intake.taken == 0

    simulated(scenario)


def test_a_lone_request_has_room_whatever_its_size() -> None:
    async def scenario(runtime: Runtime) -> None:
        intake = Intake(20 * MIB)
        await Portion(intake, runtime.clock).room(100 * MIB)
        assert intake.over

    simulated(scenario)


def test_large_requests_do_not_keep_small_ones_out_and_the_smallest_is_first() -> None:
    async def scenario(runtime: Runtime) -> None:
        intake = Intake(20 * MIB)
        large = [Portion(intake, runtime.clock) for _ in range(4)]
        await large[0].room(10 * MIB)
        turns = [waiting(portion, size * MIB) for portion, size in zip(large[1:], (9, 4, 2), strict=True)]
        await Portion(intake, runtime.clock).room(MIB)
        await Portion(intake, runtime.clock).room(FREE_BYTES)
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
        intake = Intake(20 * MIB)
        first = Portion(intake, runtime.clock)
        await first.room(10 * MIB)
        gone = waiting(Portion(intake, runtime.clock), 8 * MIB)
        stays = waiting(Portion(intake, runtime.clock), 9 * MIB)
        await runtime.clock.sleep(1)
        gone.cancel()
        first.close()  # in the same turn
        await stays
        assert (gone.cancelled(), intake.taken, intake.waiting) == (True, 9 * MIB, 0)

    simulated(scenario)


def test_if_too_many_wait_the_largest_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)

    async def scenario(runtime: Runtime) -> None:
        intake = Intake(20 * MIB)
        first = Portion(intake, runtime.clock)
        await first.room(10 * MIB)
        turns = [waiting(Portion(intake, runtime.clock), size * MIB) for size in (8, 9, 7)]
        with pytest.raises(TooManyError):
            await turns[1]
        with pytest.raises(TooManyError):
            await Portion(intake, runtime.clock).room(20 * MIB)
        assert intake.waiting == 2
        first.close()
        await turns[2]
        turns[0].cancel()

    simulated(scenario)


def test_a_connection_that_is_gone_holds_nothing_and_takes_nothing_more() -> None:
    async def scenario(runtime: Runtime) -> None:
        intake = Intake(20 * MIB)
        portion = Portion(intake, runtime.clock)
        portion.take(100)
        portion.take(2 * MIB)
        await portion.room(3 * MIB)
        assert intake.taken == 100 + 5 * MIB
        portion.close()
        portion.give(100)  # an answer that comes too late
        portion.take(7)
        assert intake.taken == 0

    simulated(scenario)


def test_who_is_silent_is_late_while_others_wait_and_only_then() -> None:
    async def scenario(runtime: Runtime) -> None:
        clock = runtime.clock
        intake = Intake(20 * MIB, patience_s=5)
        slow = Portion(intake, clock)
        await slow.room(10 * MIB)
        heard_at = clock.monotonic()
        assert not slow.late(clock.monotonic() + 1000, heard_at)
        turn = waiting(Portion(intake, clock), 2 * MIB)
        await clock.sleep(4)
        assert not slow.late(clock.monotonic(), heard_at)
        await clock.sleep(2)
        assert slow.late(clock.monotonic(), heard_at)
        assert not slow.late(clock.monotonic(), clock.monotonic())  # it has just sent something
        await clock.sleep(10)
        assert slow.late(clock.monotonic(), clock.monotonic())  # but in all it took too long for its size
        turn.cancel()

    simulated(scenario)
