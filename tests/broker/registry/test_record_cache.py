"""Values in use, read while they change."""

import asyncio

from weir.meta.interfaces import Versioned
from weir.meta.key_space import KeySpace
from weir.meta.local import MemoryCore, MemoryMeta
from weir.meta.mirror import RecordCache
from weir.meta.update import Codec
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate

TEXT: Codec[str] = Codec(str.encode, lambda data: bytes(data).decode())


class LateAnswers(MemoryMeta):
    """Its answers to `get` are on their way for a second, and then of that age."""

    async def get(self, key: str) -> Versioned | None:
        found = await super().get(key)
        await asyncio.sleep(1)
        return found


def test_what_is_changed_while_it_is_read_is_known_as_it_is_now() -> None:
    async def on_node(runtime: Runtime) -> None:
        core = MemoryCore(runtime.clock, KeySpace(history=16))
        writer = MemoryMeta(core, runtime)
        version = await writer.put("/t/a", b"old")
        cache = RecordCache(
            LateAnswers(core, runtime),
            runtime,
            "/t/",
            TEXT,
            limit=4,
            on_change=lambda *_: None,
            on_gap=lambda: None,
        )
        await cache.start()
        reading = asyncio.ensure_future(cache.read("/t/a"))
        await runtime.clock.sleep(0.5)
        await writer.put("/t/a", b"new", expect=version)
        await reading
        here = cache.peek("/t/a")
        assert here is not None
        assert here.value == "new"
        await cache.close()

    async def scenario(world: World) -> None:
        await world.node("broker").start(on_node)

    simulate(1, scenario)
