"""Ledgers that the metadata no longer has are found from time to time."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

import pytest

from weir.bookie.registration import live_ledgers, watch_for_orphans
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.ids import LedgerId
from weir.runtime.interfaces import Runtime
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.testing.world.world import World, simulate


class Collector:
    """A bookie that only collects."""

    def __init__(self, *held: int) -> None:
        self.held = [LedgerId(n) for n in held]

    async def collect(self, live_ledgers: Callable[[], Awaitable[Collection[LedgerId]]]) -> int:
        live, before = await live_ledgers(), len(self.held)
        self.held = [ledger_id for ledger_id in self.held if ledger_id in live]
        return before - len(self.held)


def test_orphans_are_found_and_a_store_that_is_away_is_asked_again() -> None:
    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            meta = FaultyMeta(MemoryMeta(MemoryCore(runtime.clock), runtime), runtime)
            for known in (1, 3, 9):
                await meta.put(keys.ledger(LedgerId(known)), b"metadata")
            assert await live_ledgers(meta) == [1, 3, 9]
            bookie = Collector(1, 2, 3, 4)
            meta.faults = MetaFaults(lose_reply=1.0)
            watching = asyncio.ensure_future(watch_for_orphans(bookie, meta, runtime.clock, interval_s=60))
            await runtime.clock.sleep(100)
            assert bookie.held == [1, 2, 3, 4]
            meta.faults = MetaFaults()
            await runtime.clock.sleep(100)
            assert bookie.held == [1, 3]
            watching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watching

        await world.node("bookie").start(main)

    simulate(1, scenario)
