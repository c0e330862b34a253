"""Ledger ids: each is given out once, however many ask at the same time."""

import asyncio

from weir.meta.local import MemoryCore, MemoryMeta
from weir.meta.update import IdBlocks
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate


def test_more_takers_at_once_than_a_block_has_ids_all_get_one() -> None:
    async def main(world: World) -> list[int]:
        async def takers(runtime: Runtime) -> list[int]:
            ids = IdBlocks(runtime.clock, MemoryMeta(MemoryCore(runtime.clock), runtime), size=4)
            taken: list[int] = []

            async def take(turns: int) -> None:
                for _ in range(turns):  # so that some ask in the very turn in which a block has come
                    await runtime.clock.sleep(0)
                taken.append(await ids.take())

            await asyncio.gather(*(take(turns) for turns in range(12) for _ in range(9)))
            return taken

        return await world.node("n").start(takers)

    taken = simulate(1, main)
    assert len(set(taken)) == len(taken) == 12 * 9
