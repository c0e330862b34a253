"""A replicated bookie that goes on after it lost its journal's end denies nothing, and is filled up by repair."""

from random import Random

import pytest

from weir.bookie.folder import Layout
from weir.bookie.settings import BookieSettings, FlushSettings, SpaceSettings
from weir.ledger.bookie_directory import BookieDirectory
from weir.ledger.client import LedgerClient
from weir.ledger.remote_bookie import RemoteBookiePool
from weir.ledger.repair import check_ledger
from weir.ledger.settings import LedgerSettings, RepairSettings
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import EntryCorruptError, JournalCorruptError, LedgerFencedError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Runtime
from weir.runtime.loss_records import end_records
from weir.server.addresses import Address
from weir.server.bookie_node import BookieNode, BookieNodeSettings
from weir.testing.world.world import World, simulate

REPAIR = LedgerSettings(repair=RepairSettings(bookie_grace_s=60, open_grace_s=5, audit_every_s=2, work_every_s=1))
NAMES = ("b1", "b2", "b3")
ENTRIES = 20


class Cluster:
    """Three bookies, each with every ledger; the first can be cut short."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.core = MemoryCore(world.node("meta").runtime.clock)
        self.nodes: dict[str, BookieNode] = {}

    async def serve(self, runtime: Runtime, name: str, *, accept_loss: bool = False) -> None:
        bookie = BookieSettings(
            BookieId(name), "/data", flush=FlushSettings(interval_s=1e6), space=SpaceSettings(0, 0)
        )
        settings = BookieNodeSettings(
            bookie, "memory:", Address(name, 3181), auto_repair=REPAIR, accept_loss=accept_loss, doubt_interval_s=1
        )
        node = BookieNode(runtime, settings, meta=MemoryMeta(self.core, runtime))
        await node.start()
        self.nodes[name] = node
        await node.failed()

    async def client(self, runtime: Runtime) -> LedgerClient:
        meta = MemoryMeta(self.core, runtime)
        directory = BookieDirectory(runtime.clock, meta)
        pool = RemoteBookiePool(runtime, directory.resolve)
        client = LedgerClient(runtime, meta, pool, directory=directory)
        await client.start()
        return client

    async def write(self, runtime: Runtime, quorum: Quorum, *, close: bool) -> LedgerId:
        writer = await (await self.client(runtime)).create(quorum)
        for n in range(ENTRIES):
            await writer.append(b"entry %d" % n)
        if close:
            await writer.close()
        return writer.ledger_id

    def cut(self, name: str, rng: Random) -> None:
        """Take what the journal holds behind its first record."""
        disk, layout = self.world.node(name).disk, Layout("/data")
        end = max(end_records(disk.read(layout.journal_end))[0])
        disk.cut(layout.journal_file(end.file), 4096, zeros=rng.random() < 0.5)

    async def whole(self, runtime: Runtime, ledger_id: LedgerId) -> bool:
        client = await self.client(runtime)
        ledger = await client.recover(ledger_id)
        assert ledger.last_entry == ENTRIES - 1
        return (await check_ledger(client.context, ledger, confirmed=ledger.last_entry)).good


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_bookie_that_accepted_a_loss_denies_nothing_until_repair_has_filled_it_up(seed: int) -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world)
        for name in NAMES:
            world.node(name).start(lambda runtime, name=name: cluster.serve(runtime, name))
        await world.sleep(2)
        quorum = Quorum(3, 3, 2)
        closed = await world.node("writer").start(lambda runtime: cluster.write(runtime, quorum, close=True))
        still_open = await world.node("other").start(lambda runtime: cluster.write(runtime, quorum, close=False))
        await world.sleep(2)
        world.node("b1").kill()
        cluster.cut("b1", world.rng("cut"))
        with pytest.raises(JournalCorruptError):
            await world.node("b1").start(lambda runtime: cluster.serve(runtime, "b1"))
        world.node("b1").kill()
        world.node("b1").start(lambda runtime: cluster.serve(runtime, "b1", accept_loss=True))
        del cluster.nodes["b1"]
        while "b1" not in cluster.nodes:
            await world.sleep(0.01)
        bookie = cluster.nodes["b1"].bookie
        assert bookie.doubts.ledgers == {closed, still_open}
        with pytest.raises(EntryCorruptError):
            await bookie.read(closed, EntryId(5), EntryId(5), max_bytes=1)
        with pytest.raises(LedgerFencedError):
            await bookie.add(still_open, [])
        assert await world.node("reader").start(lambda runtime: cluster.whole(runtime, still_open)) in (
            True,
            False,
        )
        while bookie.doubts.ledgers:
            await world.sleep(1)
        for ledger_id in (closed, still_open):
            assert await world.node("checker").start(lambda runtime, i=ledger_id: cluster.whole(runtime, i))
        assert len((await bookie.read(closed, EntryId(0), EntryId(19), max_bytes=1 << 20)).entries) == ENTRIES

    simulate(seed, scenario)
