"""Brokers that die over bookies in memory at any durable step, and bookies whose answers get lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import BookieUnavailableError
from weir.model.ids import BookieId
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Clock, Runtime
from weir.stream.settings import StreamSettings
from weir.testing.storage.fakes import FakeBookie, FakeBookiePool
from weir.testing.world.errors import NodeCrashedError
from weir.testing.world.world import World, simulate
from weir.wire.metadata import BookieInfo, encode_bookie_info

#: What somebody does in the life of a broker, given a bench (`tests/broker/conftest.py`).
Liveness = Callable[[Any], Awaitable[None]]
_BOOKIE = BookieId("b0")


class CrashingPool(FakeBookiePool):
    """One bookie; `crash` is called at the add of that number, before it is stored or right after."""

    def __init__(self, at: int, stored: bool, crash: Callable[[], None]) -> None:
        super().__init__()
        self.adds = 0
        pool = self

        class Crashing(FakeBookie):
            def add(self, *args: Any, **more: Any) -> "asyncio.Future[None]":
                pool.adds += 1
                if pool.adds != at:
                    return super().add(*args, **more)
                if stored:
                    super().add(*args, **more)
                crash()
                return asyncio.get_running_loop().create_future()

        self.bookies[_BOOKIE] = Crashing(_BOOKIE)

    def crash_no_more(self) -> None:
        self.adds = -(10**9)


def crashing_lives(bench_type: Any, at: int, stored: bool, lives: Sequence[Liveness]) -> None:
    """Brokers that follow each other: each crashes at the add of this number, counted anew, but the last one."""

    async def main(world: World) -> None:
        current = ""
        pool = CrashingPool(at, stored, lambda: world.node(current).crash())
        core = await _prepared(world)

        def on(work: Liveness) -> Callable[[Runtime], Any]:
            async def life(runtime: Runtime) -> None:
                await work(bench_type(runtime, core, pool, world, StreamSettings(quorum=Quorum(1, 1, 1))))

            return life

        for number, work in enumerate(lives[:-1], 1):
            current = f"broker{number}"
            with suppress(NodeCrashedError):
                await world.node(current).start(on(work))
            pool.adds = 0
            world.node(current).crash()
        current = f"broker{len(lives)}"
        pool.crash_no_more()
        await world.node(current).start(on(lives[-1]))

    simulate(at, main)


async def _prepared(world: World) -> MemoryCore:
    """Metadata that know of the bookie."""
    core: list[MemoryCore] = []

    async def prepare(runtime: Runtime) -> None:
        core.append(MemoryCore(runtime.clock))
        info = BookieInfo(_BOOKIE, "nowhere", 1)
        await MemoryMeta(core[0], runtime).put(keys.bookie_writable(info.bookie_id), encode_bookie_info(info))

    await world.node("store").start(prepare)
    return core[0]


async def lose_bookies(pool: FakeBookiePool, clock: Clock, dice: Random) -> None:
    """All of them go away for a moment; sometimes they still store what comes, and their answers get lost."""
    bookies = list(pool.bookies.values())
    await clock.sleep(dice.choice((0, 0.0001, 0.001, 0.01)))
    answers_too = dice.random() < 0.5
    for bookie in bookies:
        if answers_too:
            bookie.hold()
        else:
            bookie.failure = BookieUnavailableError("down")
    await clock.sleep(dice.random() / 10)
    for bookie in bookies:
        bookie.failure = BookieUnavailableError("down") if answers_too else None
    await clock.sleep(dice.random() / 10)
    for bookie in bookies:
        bookie.failure = None
        bookie.release()
