"""When an alarm rings: at its moment, also if somebody moves the clock past it."""

import asyncio

from weir.broker.upkeep.alarm import Alarm
from weir.pytest_plugin.host.idle_loop import IdleLoop
from weir.runtime.movable import MovableClock, liveness
from weir.runtime.real import RealClock


def test_an_alarm_rings_at_once_when_its_clock_is_moved_past_its_moment() -> None:
    """Nobody's requests wait to be read then: the process did not stand still."""

    async def scenario() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, IdleLoop)
        clock = MovableClock(MovableClock(RealClock()))
        living, rung = liveness(clock), []
        alarm = Alarm(living, lambda: rung.append(living.monotonic()))
        alarm.at(living.monotonic() + 60)
        await clock.silence(3600, loop.settled)
        alarm.stop()
        return len(rung)

    with asyncio.Runner(loop_factory=IdleLoop) as runner:
        assert runner.run(scenario()) == 1
