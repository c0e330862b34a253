"""A simulated storage cluster: real bookies on simulated disks, real clients over a simulated network.

Every node is kept running: when its program ends, by a crash or by itself, it is started again a little later,
as an operator's supervisor would. A bookie whose disk is lost stays away for good and another, with a new name,
takes its place. Sizes and time-outs are small, so that journals roll, caches flush, logs are compacted and
leases run out within a few virtual seconds.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any

from weir.bookie.registration import RegistrationSettings
from weir.bookie.settings import (
    BookieSettings,
    CacheSettings,
    FlushSettings,
    GcSettings,
    JournalSettings,
    SpaceSettings,
)
from weir.ledger.bookie_directory import BookieDirectory
from weir.ledger.client import LedgerClient
from weir.ledger.remote_bookie import RemoteBookiePool, RemoteSettings
from weir.ledger.replication import Auditor, ReplicationWorker
from weir.ledger.settings import (
    LedgerSettings,
    ReaderSettings,
    RecoverySettings,
    RepairSettings,
    WriterSettings,
)
from weir.meta import keys
from weir.meta.local import MemoryMeta
from weir.meta.update import UpdateSettings
from weir.model.errors import (
    BookieCookieError,
    InvariantError,
    JournalCorruptError,
    LedgersUnknownError,
    WeirError,
)
from weir.model.ids import BookieId
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.addresses import Address
from weir.server.bookie_node import BookieNode, BookieNodeSettings
from weir.testing.storage.history import History
from weir.testing.storage.plan import Plan, make_plan
from weir.testing.world.disk import DiskFaults
from weir.testing.world.errors import NodeCrashedError
from weir.testing.world.links import NetFaults
from weir.testing.world.meta import ElectedCore, FaultyMeta, MetaFaults
from weir.testing.world.world import World
from weir.wire.metadata import decode_ledger

Main = Callable[[Runtime], Coroutine[Any, Any, None]]

KIB = 1024
#: How long a node stays down: usually short, sometimes longer than a registration lives.
_DOWN_S = (0.05, 0.5, 2.0, 6.0)
_LEASE_S = 3.0
_PORT = 3181
#: For so long after it is lost, a bookie may still be chosen for a new ensemble: its registration has to run out,
#: and clients have to hear of it.
_REMEMBERED_S = 10.0
#: A bookie that cannot start so often in a row, on a sound disk, never will.
_HOPELESS = 12

LEDGER_SETTINGS = LedgerSettings(
    writer=WriterSettings(
        window_entries=16,
        window_bytes=16 * KIB,
        batch_bytes=2 * KIB,
        add_timeout_s=1.0,
        degraded_retry_s=0.7,
    ),
    reader=ReaderSettings(
        chunk_bytes=4 * KIB,
        read_ahead_bytes=16 * KIB,
        speculative_after_s=0.1,
        read_timeout_s=1.0,
        poll_s=0.5,
    ),
    recovery=RecoverySettings(
        request_timeout_s=1.0, timeout_s=6.0, retry_pause_s=0.1, chunk_entries=4, chunk_bytes=4 * KIB
    ),
    repair=RepairSettings(
        bookie_grace_s=5.0,
        open_grace_s=3.0,
        audit_every_s=1.0,
        work_every_s=0.5,
        chunk_bytes=4 * KIB,
        lease_s=_LEASE_S,
        add_timeout_s=1.0,
    ),
    id_block=2,
    update=UpdateSettings(attempts=12),
    quarantine_s=1.5,
)
REMOTE_SETTINGS = RemoteSettings(
    connect_timeout_s=1.0,
    request_timeout_s=1.5,
    ping_interval_s=1.0,
    ping_timeout_s=1.0,
    max_backoff_s=0.5,
    max_requests=64,
)


def bookie_settings(bookie_id: BookieId) -> BookieSettings:
    """A bookie that fills its files and caches within seconds."""
    return BookieSettings(
        bookie_id=bookie_id,
        directory="/bookie",
        journal=JournalSettings(
            file_bytes=64 * KIB, max_free_files=2, max_write_bytes=8 * KIB, max_queued_bytes=32 * KIB
        ),
        cache=CacheSettings(
            write_bytes=24 * KIB,
            read_bytes=4 * KIB,
            read_ahead_bytes=2 * KIB,
            index_bytes=2 * KIB,
            max_open_logs=3,
        ),
        flush=FlushSettings(interval_s=1.0, chunk_bytes=2 * KIB, sync_every_bytes=8 * KIB, retry_s=0.3),
        gc=GcSettings(
            interval_s=1.3, small_bytes=8 * KIB, merge_logs=3, target_bytes=32 * KIB, bytes_per_s=1024 * KIB
        ),
        space=SpaceSettings(low_water_bytes=200 * KIB, high_water_bytes=250 * KIB, interval_s=0.4),
    )


class Cluster:
    """All nodes of one run, and what is known of them from outside."""

    ledger_settings = LEDGER_SETTINGS

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.history = History(lambda: world.now)
        self.core = ElectedCore(world.node("meta").runtime.clock)
        #: Bookies that may still serve; one that lost its disk is no longer among them.
        self.bookie_names: list[str] = []
        self.client_names: list[str] = []
        #: Bookies whose disks are gone, and since when.
        self.lost: dict[BookieId, float] = {}
        self.rotten: str | None = None
        #: The bookie whose journal was cut short: it refuses to start, unless everything is in its entry logs.
        self.cut: str | None = None
        #: What no fault explains: bugs.
        self.bugs: list[BaseException] = []
        self.usual_disk = DiskFaults(sync_s=plan.sync_s, sync_jitter_s=plan.sync_s)
        self.usual_link = NetFaults(latency_s=plan.link_s, jitter_s=plan.link_s)
        world.net.set_faults(self.usual_link)
        self._rng: Random = world.rng("cluster")
        self._sound_meta = MetaFaults(delay_s=plan.meta_delay_s, watch_delay_s=plan.meta_delay_s)
        self._metas: dict[str, FaultyMeta] = {}
        self._meta_faults: dict[str, MetaFaults] = {}
        self._bookies_made = 0
        self._repairers = 0
        self._in_a_hurry = False
        self._ending: dict[str, asyncio.Event] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}

    # --- nodes ---------------------------------------------------------------------------------------------

    def add_bookie(self) -> str:
        """Another bookie, with an id that none had before."""
        self._bookies_made += 1
        name = f"b{self._bookies_made}"
        rack = f"rack{self._bookies_made % self.plan.racks}"
        self.bookie_names.append(name)
        self.world.node(name).disk.faults = self.usual_disk
        self._keep(name, lambda runtime: self._run_bookie(runtime, name, rack))
        return name

    def add_client(self, name: str, main: Main) -> None:
        """A node that runs `main` until the end of the run, again after each crash."""
        self.client_names.append(name)
        self._keep(name, main)

    def stop_clients(self) -> None:
        """End every client for good, as a crash would."""
        for name in self.client_names:
            self._keepers[name].cancel()
            self.world.node(name).crash()
        self.client_names.clear()

    def hurry(self) -> None:
        """From now on nodes that are down come back at once."""
        self._in_a_hurry = True

    def _keep(self, name: str, main: Main) -> None:
        self._keepers[name] = asyncio.get_running_loop().create_task(self._keep_running(name, main))

    async def _keep_running(self, name: str, main: Main) -> None:
        """Start a node's program again and again."""
        node = self.world.node(name)
        refusals = 0
        while True:
            started = self.world.now
            try:
                await node.start(main)
            except NodeCrashedError:
                refusals = 0
            except (JournalCorruptError, LedgersUnknownError, BookieCookieError) as refusal:
                refusals += 1
                if self._give_up(name, refusal, refusals):
                    return
            except InvariantError as bug:
                self.bugs.append(bug)
            except WeirError as failure:
                self.world.note("exit", f"{name} {type(failure).__name__}")
            except Exception as bug:
                self.bugs.append(bug)
            node.kill()
            down_s = 0.2 if self._in_a_hurry else self._rng.uniform(0, self._rng.choice(_DOWN_S))
            await self._down(down_s, at_least=0.05 if self.world.now == started else 0.0)

    async def _down(self, seconds: float, *, at_least: float) -> None:
        until = self.world.now + max(seconds, at_least)
        while self.world.now < until and not (self._in_a_hurry and self.world.now >= until - seconds + 0.2):
            await self.world.sleep(min(0.2, until - self.world.now))

    def _give_up(self, name: str, refusal: WeirError, times: int) -> bool:
        """A bookie that refuses its disk: an operator gives it up if the disk is known to be bad. A bit that
        was read wrong only once does not keep it from starting the next time."""
        if name == self.cut or (name == self.rotten and self.plan.losable_disks > 0):
            self._retire(name)
            return True
        if times >= _HOPELESS and self._in_a_hurry:
            self.bugs.append(refusal)
            return True
        return False

    # --- disks that are lost ---------------------------------------------------------------------------------

    def losable_disks(self) -> int:
        """How many more disks may go now without breaking the precondition of the promise."""
        recently = self.world.now - _REMEMBERED_S
        gone = sum(since > recently or not self.repaired(lost) for lost, since in self.lost.items())
        return self.plan.losable_disks - gone - (self.rotten is not None) - (self.cut in self.bookie_names)

    def lose_disk(self, name: str) -> None:
        """The disk is gone for good. Its node never comes back; a new one takes its place."""
        self.world.note("lose-disk", name)
        self._keepers[name].cancel()
        self.world.node(name).crash()
        self._retire(name)

    def _retire(self, name: str) -> None:
        if name in self.bookie_names:
            self.bookie_names.remove(name)
            self.lost[BookieId(name)] = self.world.now
            self.add_bookie()

    def repaired(self, bookie_id: BookieId) -> bool:
        """Whether no ledger counts on this bookie any more."""
        return all(
            bookie_id not in decode_ledger(item.value).bookies() for item in self.core.listing(keys.LEDGERS).items
        )

    # --- metadata --------------------------------------------------------------------------------------------

    def meta(self, runtime: Runtime, name: str) -> FaultyMeta:
        """A node's way to the metadata, with the faults that are set for it."""
        faults = self._meta_faults.get(name, self._sound_meta)
        rng = self.world.rng(f"meta/{name}")
        meta = self._metas[name] = FaultyMeta(MemoryMeta(self.core, runtime), runtime, faults, rng=rng)
        return meta

    def set_meta_faults(self, faults: MetaFaults | None, *, node: str | None = None) -> None:
        """How one node, or every node, reaches the metadata from now on; None for no faults."""
        faults = replace(faults or self._sound_meta, leaderless=self.core.leaderless)
        for name in list(self._metas) if node is None else [node]:
            self._meta_faults[name] = faults
            if name in self._metas:
                self._metas[name].faults = faults

    def lose_meta_leader(self) -> None:
        """Nothing is decided until `elect_meta_leader`."""
        self.core.lose_leader()
        self.set_meta_faults(None)

    def elect_meta_leader(self) -> None:
        self.core.elect()
        self.set_meta_faults(None)

    def end_leases(self, node: str) -> None:
        """The store drops every lease of a node, which does not know it until it renews one."""
        if node in self._metas:
            for lease_id in self._metas[node].leases:
                self.core.revoke(lease_id)

    # --- programs --------------------------------------------------------------------------------------------

    async def ledger_client(self, runtime: Runtime, name: str) -> LedgerClient:
        """A started client of the ledgers for a node."""
        meta = self.meta(runtime, name)
        directory = BookieDirectory(runtime.clock, meta)
        pool = RemoteBookiePool(runtime, directory.resolve, REMOTE_SETTINGS)
        client = LedgerClient(runtime, meta, pool, self.ledger_settings, directory=directory)
        await client.start()
        return client

    async def _run_bookie(self, runtime: Runtime, name: str, rack: str) -> None:
        """A bookie until it fails, or until it is asked to end."""
        settings = BookieNodeSettings(
            bookie=bookie_settings(BookieId(name)),
            meta_url="",
            listen=Address(name, _PORT),
            rack=rack,
            registration=RegistrationSettings(ttl_s=_LEASE_S, retry_s=0.3),
            orphan_interval_s=2.0,
        )
        node = BookieNode(runtime, settings, meta=self.meta(runtime, name))
        ending = self._ending[name] = asyncio.Event()
        await node.start()
        await asyncio.wait(
            [asyncio.ensure_future(node.failed()), asyncio.ensure_future(ending.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        await node.close()

    def end_bookie(self, name: str) -> None:
        """Ask a bookie to end in order, as SIGTERM does; it is started again later."""
        if name in self._ending:
            self._ending[name].set()

    def add_repair(self) -> None:
        """A node that audits the ledgers and repairs them."""
        self._repairers += 1
        name = f"repair{self._repairers}"
        self.add_client(name, lambda runtime: self._run_repair(runtime, name))

    async def _run_repair(self, runtime: Runtime, name: str) -> None:
        client = await self.ledger_client(runtime, name)
        tasks = TaskScope(name)
        tasks.spawn(Auditor(client.context, name).run(), "auditor")
        await ReplicationWorker(client.context, name).run()


async def sound_cluster(world: World, bookies: int = 4) -> Cluster:
    """Bookies that nothing happens to, for those whose brokers fail."""
    plan = replace(make_plan(Random(world.seed)), racks=1, faults=(), meta_delay_s=0.0)
    cluster = Cluster(world, plan)
    world.net.set_faults(NetFaults())
    for _ in range(bookies):
        cluster.add_bookie()
    await world.sleep(0.5)
    return cluster
