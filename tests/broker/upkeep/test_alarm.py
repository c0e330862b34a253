"""When an alarm rings: at its moment, also if somebody moves the clock past it."""

import asyncio

from weir.broker.groups.members import NEVER, Alarm, Deadlines
from weir.pytest_plugin.host.process import IdleLoop
from weir.runtime.adjustable_clock import MovableClock, liveness
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


def test_deadlines_are_due_in_their_order_once_each_and_later_when_extended() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.first() == NEVER
    for key, deadline in (("b", 2.0), ("a", 1.0), ("c", 3.0), ("d", 1.0)):
        deadlines.set(key, deadline)
    deadlines.set("a", 5.0)
    deadlines.set("c", 0.5)
    assert deadlines.remove("d")
    assert not deadlines.remove("d")
    assert deadlines.pop_due(2.0) == ["c", "b"]
    assert (deadlines.first(), len(deadlines)) == (5.0, 1)
    assert deadlines.pop_due(5.0) == ["a"]
    assert deadlines.pop_due(9.0) == []


def test_deadlines_of_removed_keys_take_no_memory() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(1_000):
        deadlines.set(number, 1e9)
        deadlines.remove(number)
    assert len(deadlines._heap) < 200
