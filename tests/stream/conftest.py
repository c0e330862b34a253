"""Streams among fake bookies, in simulated time."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.batch import Batch, BatchFormat
from weir.model.ids import BookieId
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Runtime
from weir.stream.context import StreamContext
from weir.stream.log import Stream
from weir.stream.settings import StreamSettings
from weir.stream.tail import TailCache
from weir.testing.storage.fakes import FakeBookiePool
from weir.testing.world.world import World, simulate
from weir.wire.metadata import BookieInfo, encode_bookie_info


@dataclass
class Bench:
    """Brokers that share bookies and metadata."""

    runtime: Runtime
    core: MemoryCore
    bookies: FakeBookiePool
    settings: StreamSettings = field(default_factory=lambda: StreamSettings(quorum=Quorum(3, 2, 2)))

    async def broker(self, *, tail_bytes: int = 1 << 20, **changes: Any) -> StreamContext:
        """What one more broker shares among its streams."""
        meta = MemoryMeta(self.core, self.runtime)
        client = LedgerClient(self.runtime, meta, self.bookies)
        await client.start()
        return StreamContext(self.runtime, meta, client, TailCache(tail_bytes), replace(self.settings, **changes))

    @staticmethod
    def draft(text: str, count: int = 1) -> Batch:
        return Batch(-1, count, BatchFormat.PULSAR, 0, text.encode())

    @staticmethod
    async def texts(stream: Stream, offset: int = 0, max_bytes: int = 10_000) -> list[str]:
        """Everything from the offset to the end, one read after the other."""
        found = []
        while batches := await stream.read(offset, max_bytes):
            found += [bytes(batch.payload).decode() for batch in batches]
            offset = batches[-1].end_offset
        return found


Scenario = Callable[[Bench], Awaitable[None]]


@pytest.fixture
def run() -> Callable[[Scenario], None]:
    """Run a scenario on a node of a simulated world."""

    def run_it(scenario: Scenario) -> None:
        async def main(world: World) -> None:
            async def on_node(runtime: Runtime) -> None:
                core = MemoryCore(runtime.clock)
                meta = MemoryMeta(core, runtime)
                for number in range(4):
                    info = BookieInfo(BookieId(f"b{number}"), "nowhere", 1)
                    await meta.put(keys.bookie_writable(info.bookie_id), encode_bookie_info(info))
                await scenario(Bench(runtime, core, FakeBookiePool()))

            await world.node("broker").start(on_node)

        simulate(1, main)

    return run_it
