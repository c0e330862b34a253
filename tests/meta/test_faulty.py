"""The faulty client does what its faults say, and nothing without them."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import MetaConflictError, MetaUnavailableError
from weir.runtime.interfaces import Runtime
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.testing.world.world import World, simulate

Scenario = Callable[[World, FaultyMeta, MemoryMeta], Coroutine[Any, Any, None]]


def with_faults(scenario: Scenario) -> None:
    """Run with a faulty client, and one that works, of the same store."""

    async def run(world: World) -> None:
        core = MemoryCore(world.node("meta").runtime.clock)

        async def main(runtime: Runtime) -> None:
            await scenario(world, FaultyMeta(MemoryMeta(core, runtime), runtime), MemoryMeta(core, runtime))

        await world.node("client").start(main)

    simulate(5, run)


def test_a_lost_request_changes_nothing() -> None:
    async def scenario(world: World, faulty: FaultyMeta, good: MemoryMeta) -> None:
        faulty.faults = MetaFaults(lose_request=1.0)
        with pytest.raises(MetaUnavailableError):
            await faulty.put("/k", b"1")
        assert await good.get("/k") is None

    with_faults(scenario)


def test_a_lost_reply_leaves_the_change_made() -> None:
    async def scenario(world: World, faulty: FaultyMeta, good: MemoryMeta) -> None:
        faulty.faults = MetaFaults(lose_reply=1.0)
        with pytest.raises(MetaUnavailableError):
            await faulty.put("/k", b"1")
        assert await good.get("/k") is not None
        with pytest.raises(MetaUnavailableError):  # a refusal's reply is lost as well
            await faulty.put("/k", b"2", expect=0)
        faulty.faults = MetaFaults()
        with pytest.raises(MetaConflictError):
            await faulty.put("/k", b"2", expect=0)

    with_faults(scenario)


def test_an_outage_ends_by_itself_or_when_told() -> None:
    async def scenario(world: World, faulty: FaultyMeta, good: MemoryMeta) -> None:
        faulty.outage_for(3)
        with pytest.raises(MetaUnavailableError):
            await faulty.get("/k")
        await world.sleep(3.1)
        await faulty.get("/k")
        faulty.faults = MetaFaults(outage=True)
        with pytest.raises(MetaUnavailableError):
            await faulty.list("/")
        faulty.faults = MetaFaults()
        await faulty.list("/")

    with_faults(scenario)


def test_a_watch_stands_still_in_an_outage_and_then_catches_up() -> None:
    async def scenario(world: World, faulty: FaultyMeta, good: MemoryMeta) -> None:
        watch = faulty.watch("/", since=0)
        faulty.faults = MetaFaults(watch_delay_s=0.5)
        faulty.outage_for(10)
        for n in range(5):
            await good.put(f"/{n}", b"")
        began = world.now
        assert [(await anext(watch)).key for _ in range(5)] == [f"/{n}" for n in range(5)]
        assert world.now - began >= 10

    with_faults(scenario)


def test_calls_take_as_long_as_the_delay_says() -> None:
    async def scenario(world: World, faulty: FaultyMeta, good: MemoryMeta) -> None:
        faulty.faults = MetaFaults(delay_s=2.0)
        began = world.now
        for _ in range(50):
            await faulty.get("/k")
        assert 50 < world.now - began < 150

    with_faults(scenario)
