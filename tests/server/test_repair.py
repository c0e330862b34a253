"""Auto-recovery as nodes run it: what a lost bookie held is copied without anybody asking."""

from weir.bookie.settings import BookieSettings
from weir.ledger.bookie_directory import BookieDirectory
from weir.ledger.client import LedgerClient
from weir.ledger.remote_bookie import RemoteBookiePool
from weir.ledger.repair import check_ledger
from weir.ledger.settings import LedgerSettings, RepairSettings
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.ids import BookieId
from weir.model.ledger import LedgerMetadata, Quorum
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.bookie_node import BookieNode, BookieNodeSettings
from weir.testing.world.world import World, simulate

REPAIR = LedgerSettings(repair=RepairSettings(bookie_grace_s=5, open_grace_s=5, audit_every_s=2, work_every_s=1))


def test_a_lost_bookies_ledgers_are_copied_by_the_nodes_that_are_left() -> None:
    async def scenario(world: World) -> None:
        core = MemoryCore(world.node("meta").runtime.clock)

        def bookie(name: str):
            async def serve(runtime: Runtime) -> None:
                settings = BookieNodeSettings(
                    BookieSettings(BookieId(name), "/data"), "memory:", Address(name, 3181), auto_repair=REPAIR
                )
                node = BookieNode(runtime, settings, meta=MemoryMeta(core, runtime))
                await node.start()
                await node.failed()

            return serve

        for name in ("b1", "b2", "b3", "b4"):
            world.node(name).start(bookie(name))
        await world.sleep(2)

        async def client_of(runtime: Runtime) -> LedgerClient:
            meta = MemoryMeta(core, runtime)
            directory = BookieDirectory(runtime.clock, meta)
            pool = RemoteBookiePool(runtime, directory.resolve)
            client = LedgerClient(runtime, meta, pool, directory=directory)
            await client.start()
            return client

        async def write(runtime: Runtime) -> LedgerMetadata:
            writer = await (await client_of(runtime)).create(Quorum(3, 2, 2))
            for i in range(20):
                await writer.append(b"entry %d" % i)
            return await writer.close()

        async def whole(runtime: Runtime) -> tuple[bool, LedgerMetadata]:
            client = await client_of(runtime)
            now = await client.metadata(ledger.ledger_id)
            return (await check_ledger(client.context, now, confirmed=now.last_entry)).good, now

        ledger = await world.node("writer").start(write)
        lost = ledger.fragments[0].bookies[0]
        world.node(lost).crash()
        await world.sleep(60)
        good, now = await world.node("checker").start(whole)
        assert lost not in now.bookies()
        assert good

    simulate(3, scenario)
