"""How much one connection does before all others have their turn."""

import asyncio

from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import LONGEST_S, Turns, Work
from weir.testing.world.world import World, simulate


class Steps:
    """Runs a scenario in simulated time, and says in which step of the loop something happened."""

    @staticmethod
    def now() -> int:
        return asyncio.get_running_loop().steps  # type: ignore[attr-defined, no-any-return]


def _simulated(scenario) -> None:  # type: ignore[no-untyped-def]
    async def world(world: World) -> None:
        await world.node("one").start(scenario)

    simulate(1, world)


def _work(units: list[int], done: list[tuple[str, int]], name: str) -> Work:
    for spent in units:
        done.append((name, Steps.now()))
        yield spent


def test_work_of_one_connection_pauses_wherever_its_turn_is_over() -> None:
    async def scenario(runtime: Runtime) -> None:
        done: list[tuple[str, int]] = []
        turns = Turns(runtime.clock, units=4)
        await turns.through(_work([1] * 10, done, "a"))
        at = [step for _, step in done]
        assert [at.count(step) for step in dict.fromkeys(at)] == [4, 4, 2]

    _simulated(scenario)


def test_tasks_of_one_connection_share_its_turns_in_the_order_in_which_they_wait() -> None:
    async def scenario(runtime: Runtime) -> None:
        done: list[tuple[str, int]] = []
        turns = Turns(runtime.clock, units=1)
        await asyncio.gather(*(turns.through(_work([1] * 3, done, name)) for name in "abc"))
        assert "".join(name for name, _ in done) == "abcabcabc"
        other = Turns(runtime.clock, units=1)
        done.clear()
        await asyncio.gather(
            *(turns.through(_work([1] * 100, done, "busy")) for _ in range(20)),
            other.through(_work([1] * 100, done, "other")),
        )
        last = max(place for place, (name, _) in enumerate(done) if name == "other")
        assert last < 400  # twenty tasks of one connection get about as much of the loop as one of another

    _simulated(scenario)


def test_a_task_that_is_cancelled_while_it_waits_holds_nobody_up() -> None:
    async def scenario(runtime: Runtime) -> None:
        done: list[tuple[str, int]] = []
        turns = Turns(runtime.clock, units=1)
        tasks = [asyncio.create_task(turns.through(_work([1] * 5, done, name))) for name in "abc"]
        await runtime.clock.sleep(0)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert [name for name, _ in done].count("c") == [name for name, _ in done].count("a") == 5

    _simulated(scenario)


def test_work_that_takes_longer_than_its_units_say_ends_the_turn() -> None:
    class Slow:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = Slow()
    turns = Turns(clock, units=100)  # type: ignore[arg-type]
    assert not turns.spend()
    clock.now += 2 * LONGEST_S
    assert turns.spend()
    turns.begin()
    assert not turns.spend()
