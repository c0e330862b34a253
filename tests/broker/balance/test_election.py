"""One leader at a time, known to everyone, in simulated time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from weir.broker.balance.leader_election import Election
from weir.meta.local import MemoryCore, MemoryMeta
from weir.runtime.interfaces import Runtime
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.testing.world.world import World, simulate

TTL_S = 5.0


@dataclass
class Stage:
    runtime: Runtime
    core: MemoryCore
    #: Who leads now, by what each is told.
    leading: list[str] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)

    async def broker(self, name: str) -> tuple[Election, FaultyMeta]:
        meta = FaultyMeta(MemoryMeta(self.core, self.runtime), self.runtime)

        async def lead() -> None:
            self.leading.append(name)
            self.terms.append(name)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.leading.remove(name)

        election = Election(meta, self.runtime, name, lead, ttl_s=TTL_S, retry_s=0.2)
        await election.start()
        return election, meta

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await self.runtime.clock.sleep(0.05)


def run(scenario: Callable[[Stage], Awaitable[None]], seed: int = 1) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            await scenario(Stage(runtime, MemoryCore(runtime.clock)))

        await world.node("cluster").start(on_node)

    simulate(seed, main)


def test_one_of_several_brokers_leads_and_all_know_it() -> None:
    async def scenario(stage: Stage) -> None:
        (a, _), (b, _), (c, _) = [await stage.broker(name) for name in "abc"]
        await stage.until(lambda: {x.leader() for x in (a, b, c)} == {"a"})
        assert stage.leading == ["a"]
        assert [x.leading for x in (a, b, c)] == [True, False, False]

    run(scenario)


def test_a_leader_that_goes_is_followed_at_once() -> None:
    async def scenario(stage: Stage) -> None:
        (a, _), (b, _) = [await stage.broker(name) for name in "ab"]
        await stage.until(lambda: stage.leading == ["a"])
        before = stage.runtime.clock.monotonic()
        await a.close()
        assert stage.leading == []
        await stage.until(lambda: stage.leading == ["b"])
        assert stage.runtime.clock.monotonic() - before < TTL_S / 2
        assert b.leader() == "b"

    run(scenario)


def test_a_leader_that_loses_its_lease_stops_before_the_next_begins() -> None:
    async def scenario(stage: Stage) -> None:
        (a, meta), (b, _) = [await stage.broker(name) for name in "ab"]
        await stage.until(lambda: stage.leading == ["a"])
        meta.faults = MetaFaults(outage=True)
        await stage.until(lambda: "b" in stage.leading)
        assert stage.leading == ["b"]
        assert not a.leading
        meta.faults = MetaFaults()
        await stage.until(lambda: a.leader() == "b")
        await b.close()
        await stage.until(lambda: stage.leading == ["a"])

    run(scenario)


def test_an_election_whose_answer_is_lost_leaves_no_leader_that_does_not_lead() -> None:
    async def scenario(stage: Stage) -> None:
        (_, meta), (_, other) = [await stage.broker(name) for name in "ab"]
        for faulty in (meta, other):
            faulty.faults = MetaFaults(lose_reply=0.4, delay_s=0.1, watch_delay_s=0.5)
        for _ in range(20):
            await stage.runtime.clock.sleep(2)
            assert len(stage.leading) <= 1
        for faulty in (meta, other):
            faulty.faults = MetaFaults()
        await stage.until(lambda: len(stage.leading) == 1)

    for seed in range(10):
        run(scenario, seed)


def test_leading_that_fails_hands_the_lead_on() -> None:
    async def scenario(stage: Stage) -> None:
        meta = MemoryMeta(stage.core, stage.runtime)

        async def fail() -> None:
            raise LookupError("a mistake")

        failing = Election(meta, stage.runtime, "a", fail, ttl_s=TTL_S, retry_s=1.0)
        await failing.start()
        await stage.until(lambda: failing.leader() == "")
        await stage.broker("b")
        await stage.until(lambda: stage.leading == ["b"])
        await failing.close()

    run(scenario)
