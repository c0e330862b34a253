"""Ledgers that the metadata no longer has are deleted, and no others."""

import asyncio
from collections.abc import Sequence

import pytest

from weir.bookie.orphans import delete_orphans, watch_for_orphans
from weir.meta import keys
from weir.meta.memory import MemoryCore, MemoryMeta
from weir.model.ids import LedgerId
from weir.runtime.interfaces import Runtime
from weir.testing.fakes import FakeBookie, FakeLedger
from weir.testing.meta import FaultyMeta, MetaFaults
from weir.testing.world import World, simulate


class View:
    """What the sweep sees of it."""

    def __init__(self, *ledger_ids: int) -> None:
        self.fake = FakeBookie()
        for ledger_id in ledger_ids:
            self.fake.ledgers[LedgerId(ledger_id)] = FakeLedger()

    def ledgers(self) -> Sequence[LedgerId]:
        return list(self.fake.ledgers)

    async def delete(self, ledger_id: LedgerId) -> None:
        await self.fake.delete(ledger_id)


def test_a_ledger_without_metadata_is_deleted_and_others_stay() -> None:
    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            meta = MemoryMeta(MemoryCore(runtime.clock), runtime)
            for known in (1, 3, 9):
                await meta.put(keys.ledger(LedgerId(known)), b"metadata")
            bookie = View(1, 2, 3, 4)
            assert await delete_orphans(bookie, meta) == [2, 4]
            assert bookie.ledgers() == [1, 3]

        await world.node("bookie").start(main)

    simulate(1, scenario)


def test_a_ledger_that_appears_while_the_metadata_is_read_is_not_touched() -> None:
    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            meta = MemoryMeta(MemoryCore(runtime.clock), runtime)
            bookie = View(1)
            listing = await meta.list(keys.LEDGERS)

            class Late(FaultyMeta):
                async def list(self, prefix: str) -> object:  # type: ignore[override]
                    bookie.fake.ledgers[LedgerId(2)] = FakeLedger()  # created and written just now
                    return listing

            assert await delete_orphans(bookie, Late(meta, runtime)) == [1]
            assert bookie.ledgers() == [2]

        await world.node("bookie").start(main)

    simulate(1, scenario)


def test_a_store_that_is_away_costs_nothing_and_is_asked_again() -> None:
    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            meta = FaultyMeta(MemoryMeta(MemoryCore(runtime.clock), runtime), runtime)
            meta.faults = MetaFaults(lose_reply=1.0)
            bookie = View(1)
            watching = asyncio.ensure_future(watch_for_orphans(bookie, meta, runtime.clock, interval_s=60))
            await runtime.clock.sleep(100)
            assert bookie.ledgers() == [1]
            meta.faults = MetaFaults()
            await runtime.clock.sleep(100)
            assert bookie.ledgers() == []
            watching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watching

        await world.node("bookie").start(main)

    simulate(1, scenario)
