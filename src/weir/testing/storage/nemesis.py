"""The one who makes trouble: strikes a simulated cluster with the faults of a plan, and heals them in the end."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import ClassVar

from weir.bookie.folder import Layout
from weir.model.ids import BookieId
from weir.runtime.loss_records import end_records
from weir.testing.storage.cluster import Cluster, bookie_settings
from weir.testing.storage.history import LedgerOpKind
from weir.testing.storage.plan import Fault, Plan
from weir.testing.storage.rotting import LogSpans, is_log
from weir.testing.storage.workload import Shared
from weir.testing.world.disk import DiskFaults, SimDisk
from weir.testing.world.links import NetFaults
from weir.testing.world.meta import MetaFaults

#: How long the links of a node stay bad, a disk stuck, and so on; short and long both occur.
_SPANS_S = (0.05, 0.5, 2.0, 5.0)


class Nemesis:
    """Runs until it is stopped; `heal()` undoes everything, whatever was under way."""

    def __init__(self, cluster: Cluster, plan: Plan, shared: Shared, rng: Random) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._plan = plan
        self._shared = shared
        self._rng = rng
        self._healing: dict[asyncio.Task[None], None] = {}
        self.strikes: dict[Fault, int] = {}
        self._spans = LogSpans()

    async def run(self) -> None:
        """Strike at random moments, half of them chosen to hurt."""
        while self._plan.faults:
            await self._world.sleep(self._rng.expovariate(1.0 / self._plan.fault_every_s))
            if self._rng.random() < 0.5:
                await self._bad_moment()
            fault = self._rng.choice(self._plan.faults)
            self._world.note("strike", fault.value)
            self.strikes[fault] = self.strikes.get(fault, 0) + 1
            undo = self._STRIKES[fault](self)
            if undo is not None:
                task = asyncio.get_running_loop().create_task(self._heal_later(undo))
                self._healing[task] = None
                task.add_done_callback(lambda done: self._healing.pop(done, None))

    async def _bad_moment(self) -> None:
        """Wait until a client has just begun something, and a little longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._plan.fault_every_s):
                await self._shared.begun.wait()
        await self._world.sleep(self._rng.uniform(0, 4 * (self._plan.link_s + self._plan.sync_s)))

    async def _heal_later(self, undo: Callable[[], None]) -> None:
        await self._world.sleep(self._span())
        undo()

    def heal(self) -> None:
        """No more faults: every node runs, every link and disk is sound."""
        for task in list(self._healing):
            task.cancel()
        world = self._world
        world.note("heal", "all")
        world.net.heal()
        world.net.set_faults(None)
        for node in world.nodes:
            world.net.set_faults(None, node=node.name)
            node.disk.faults = DiskFaults()
            node.disk.capacity_bytes = None
            node.clock.rate = 1.0
            node.resume()
        self._cluster.elect_meta_leader()
        self._cluster.hurry()

    # --- who -----------------------------------------------------------------------------------------------

    def _span(self) -> float:
        return self._rng.uniform(0, self._rng.choice(_SPANS_S))

    def _bookie(self) -> str:
        return self._rng.choice(self._cluster.bookie_names)

    def _client(self) -> str:
        return self._rng.choice(self._cluster.client_names)

    def _anyone(self) -> str:
        return self._rng.choice([*self._cluster.bookie_names, *self._cluster.client_names])

    # --- nodes ---------------------------------------------------------------------------------------------

    def _crash_bookie(self) -> None:
        """Power loss; sometimes of several at the same moment."""
        count = self._rng.choice((1, 1, 1, 2, len(self._cluster.bookie_names)))
        for name in self._rng.sample(self._cluster.bookie_names, min(count, len(self._cluster.bookie_names))):
            self._world.node(name).crash()

    def _kill_bookie(self) -> None:
        self._world.node(self._bookie()).kill()

    def _restart_bookie(self) -> None:
        self._cluster.end_bookie(self._bookie())

    def _crash_client(self) -> None:
        self._world.node(self._client()).crash()

    def _pause(self) -> Callable[[], None]:
        node = self._world.node(self._anyone())
        node.pause()
        return node.resume

    # --- network -------------------------------------------------------------------------------------------

    def _partition(self) -> Callable[[], None]:
        nodes = [*self._cluster.bookie_names, *self._cluster.client_names]
        self._rng.shuffle(nodes)
        cut = self._rng.randint(1, max(1, len(nodes) - 1))
        self._world.net.partition(nodes[:cut], nodes[cut:])
        return self._world.net.heal

    def _one_way(self) -> Callable[[], None]:
        source, target = self._anyone(), self._anyone()
        self._world.net.block(source, target)
        return lambda: self._world.net.unblock(source, target)

    def _slow_link(self) -> Callable[[], None]:
        name = self._anyone()
        slow = NetFaults(
            latency_s=self._rng.choice((0.01, 0.1, 0.5)),
            jitter_s=self._rng.choice((0.01, 0.2)),
            bandwidth=self._rng.choice((0.0, 20_000.0)),
        )
        self._world.net.set_faults(slow, node=name)
        return lambda: self._world.net.set_faults(None, node=name)

    def _lost_connections(self) -> Callable[[], None]:
        name = self._anyone()
        if self._rng.random() < 0.5:
            self._world.net.break_connections(name, self._anyone())
        resets, refusals = self._rng.choice((0.01, 0.1)), self._rng.choice((0.0, 0.5))
        flaky = replace(self._cluster.usual_link, reset_chance=resets, refuse_chance=refusals)
        self._world.net.set_faults(flaky, node=name)
        return lambda: self._world.net.set_faults(None, node=name)

    # --- disks ---------------------------------------------------------------------------------------------

    def _disk(self, **changes: float | bool) -> Callable[[], None]:
        disk = self._world.node(self._bookie()).disk
        usual = self._cluster.usual_disk
        disk.faults = replace(usual, **changes)  # type: ignore[arg-type]

        def undo() -> None:
            disk.faults = usual

        return undo

    def _slow_disk(self) -> Callable[[], None]:
        return self._disk(latency_s=self._rng.choice((0.005, 0.05)), sync_s=self._rng.choice((0.02, 0.3)))

    def _stuck_disk(self) -> Callable[[], None]:
        return self._disk(stuck=True)

    def _bit_flips(self) -> Callable[[], None]:
        return self._disk(flip_chance=self._rng.choice((0.05, 0.5)))

    def _failing_disk(self) -> Callable[[], None]:
        which = self._rng.choice(("sync_error_chance", "write_error_chance", "read_error_chance"))
        return self._disk(**{which: self._rng.choice((0.02, 0.3))})

    def _no_space(self) -> Callable[[], None]:
        """Of what grows; or of every write, on a file system that copies on write."""
        if self._rng.random() < 0.3:
            return self._disk(full=True)
        disk = self._world.node(self._bookie()).disk
        disk.capacity_bytes = disk.used_bytes + self._rng.choice((0, 1000, 100_000))

        def undo() -> None:
            disk.capacity_bytes = None

        return undo

    def _lost_disk(self) -> None:
        if self._cluster.losable_disks() > 0:
            self._cluster.lose_disk(self._bookie())

    def _rot(self) -> None:
        """Damage a few places of one disk for good. Only one disk of a run rots: nothing scrubs it clean."""
        name = self._cluster.rotten or self._bookie()
        one_copy = self._plan.quorum.ack == 1
        if self._cluster.rotten is None and self._cluster.losable_disks() == 0 and not one_copy:
            return
        self._cluster.rotten = name
        disk = self._world.node(name).disk
        # Not the journal: damage to its very last record looks like a torn write (docs/adr/0003).
        files = [path for path in disk.names.paths() if "/logs/" in path and disk.read(path)]
        for _ in range(self._rng.randint(1, 3)):
            if files and one_copy:
                self._rot_known(disk, self._rng.choice(files))
            elif files:
                disk.rot(self._rng.choice(files))

    def _rot_known(self, disk: SimDisk, path: str) -> None:
        """Of an index everything can be made anew; of a log it is written down which entry is hit."""
        if not is_log(path):
            disk.rot(path)
            return
        spans = self._spans.of(path, disk.read(path))
        if spans:
            hit = self._rng.choice(spans)
            disk.rot(path, self._rng.randrange(hit.begin, hit.end))
            self._cluster.history.note("nemesis", LedgerOpKind.ROTTED, ledger=hit.ledger_id, entry=hit.entry_id)

    def _cut(self) -> None:
        """Take the end of a bookie's journal behind its back, or put zeros there: synced bytes that its end record
        names. It must refuse to start, or its denials would be believed; an operator replaces it then."""
        if self._cluster.cut is not None or self._cluster.losable_disks() == 0:
            return
        name = self._bookie()
        node, layout = self._world.node(name), Layout(bookie_settings(BookieId(name)).directory)
        node.kill()
        if not node.disk.names.exists(layout.journal_end):
            return
        end = max(end_records(node.disk.read(layout.journal_end))[0], default=None)
        path = layout.journal_file(end.file) if end is not None else ""
        if end is not None and end.end and node.disk.names.exists(path):
            self._cluster.cut = name
            node.disk.cut(path, self._rng.randrange(end.end), zeros=self._rng.random() < 0.5)

    # --- clocks and metadata -------------------------------------------------------------------------------

    def _clock(self) -> None:
        node = self._world.node(self._anyone())
        node.clock_skew = self._rng.choice((-3600.0, -1.0, 0.0, 1.0, 86_400.0))
        node.clock.rate = self._rng.uniform(0.95, 1.05)

    def _meta(self, faults: MetaFaults) -> Callable[[], None]:
        name = None if self._rng.random() < 0.3 else self._anyone()
        self._cluster.set_meta_faults(faults, node=name)
        return lambda: self._cluster.set_meta_faults(None, node=name)

    def _meta_loss(self) -> Callable[[], None]:
        chance = self._rng.choice((0.05, 0.3))
        requests, replies = self._rng.choice(((chance, 0.0), (0.0, chance)))
        delay_s = max(self._plan.meta_delay_s, self._rng.choice((0.0, 0.05, 0.3)))
        return self._meta(
            MetaFaults(delay_s=delay_s, watch_delay_s=delay_s * 10, lose_request=requests, lose_reply=replies)
        )

    def _meta_outage(self) -> Callable[[], None]:
        return self._meta(MetaFaults(outage=True))

    def _leases(self) -> Callable[[], None]:
        return self._meta(MetaFaults(starve_leases=True))

    _STRIKES: ClassVar[dict[Fault, Callable[["Nemesis"], Callable[[], None] | None]]] = {
        Fault.CRASH_BOOKIE: _crash_bookie,
        Fault.KILL_BOOKIE: _kill_bookie,
        Fault.RESTART_BOOKIE: _restart_bookie,
        Fault.CRASH_CLIENT: _crash_client,
        Fault.PAUSE: _pause,
        Fault.PARTITION: _partition,
        Fault.ONE_WAY: _one_way,
        Fault.SLOW_LINK: _slow_link,
        Fault.LOST_CONNECTIONS: _lost_connections,
        Fault.SLOW_DISK: _slow_disk,
        Fault.STUCK_DISK: _stuck_disk,
        Fault.BIT_FLIPS: _bit_flips,
        Fault.NO_SPACE: _no_space,
        Fault.FAILING_DISK: _failing_disk,
        Fault.CLOCK: _clock,
        Fault.META_LOSS: _meta_loss,
        Fault.META_OUTAGE: _meta_outage,
        Fault.LEASES: _leases,
        Fault.LOST_DISK: _lost_disk,
        Fault.ROT: _rot,
        Fault.CUT: _cut,
    }
