"""A whole cluster on one machine under one supervisor: etcd, bookies and brokers, each a process of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.datafolder.format import check_format, write_format
from weir.model.errors import AddressInUseError, FileLockedError
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.broker_node import INSTANCE, new_instance
from weir.server.cluster_plan import BookiePlan, BrokerPlan, ClusterPlan, cluster_secret_file, plan_cluster
from weir.server.config.load import PORT_OFFSET
from weir.server.etcd_bundle import etcd_specs, etcd_url
from weir.server.free_ports import HeldPorts
from weir.server.node import Node
from weir.server.supervisor import ChildSpec, Supervisor, settings, weir_command
from weir.server.unregistering import Unregistering

_LOOPBACK = "127.0.0.1"
_PORTS_PATIENCE_S = 10.0
_PORTS_LOOK_S = 0.2
PROTOCOLS = ("kafka", "pulsar", "amqp", "rocketmq", "http")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How many of each, where, and what all brokers are told besides."""

    folder: Path
    brokers: int = 3
    bookies: int = 3
    etcd_members: int = 1
    #: A metadata store of somebody else's, instead of a bundled etcd.
    meta_url: str | None = None
    config_file: str | None = None
    assignments: tuple[str, ...] = ()
    #: Of the ports that clients know; 0: as the folder has it.
    port_offset: int = 0


class ClusterUp(Node):
    """At the end brokers go first, who hand over and answer what they took, then the bookies, then etcd."""

    def __init__(
        self,
        runtime: Runtime,
        options: ClusterOptions,
        on_restart: Callable[[], None] = lambda: None,
        *,
        on_locked: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_locked` is called when no other process serves the folder."""
        self._on_locked = on_locked
        #: Each broker confirms it as its own.
        self.instance = new_instance(runtime.rng)
        self._runtime = runtime
        self._options = options
        self._supervisor = Supervisor(runtime.clock, on_restart)
        super().__init__()
        self._plan = ClusterPlan()

    @property
    def supervisor(self) -> Supervisor:
        return self._supervisor

    @property
    def addresses(self) -> dict[str, Address]:
        """Of the first broker, if there is one."""
        if not self._plan.brokers:
            return {}
        return {name: Address(_LOOPBACK, getattr(self._plan.brokers[0], name)) for name in PROTOCOLS}

    def ready(self) -> dict[str, Any]:
        """What the ready file says."""
        where = {
            name: ",".join(f"{_LOOPBACK}:{getattr(broker, name)}" for broker in self._plan.brokers)
            for name in PROTOCOLS
        }
        return where | {"nodes": self.nodes()}

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"name": child.spec.name, "role": child.spec.role, "pid": child.pid}
            for child in self._supervisor.children
        ]

    def rows(self) -> list[tuple[str, ...]]:
        """Name, role, process and addresses of every node, as a table shows them."""
        where = {member.name: f"{_LOOPBACK}:{member.client_port}" for member in self._plan.etcd}
        where |= {bookie.name: f"{_LOOPBACK}:{bookie.port}" for bookie in self._plan.bookies}
        for broker in self._plan.brokers:
            where[broker.name] = ", ".join(f"{name} {_LOOPBACK}:{getattr(broker, name)}" for name in PROTOCOLS)
        return [
            (str(node["name"]), str(node["role"]), str(node["pid"]), where[str(node["name"])])
            for node in self.nodes()
        ]

    async def _start(self) -> None:
        options = self._options
        folder = options.folder
        await self._runtime.disk.make_dirs(str(folder))
        await self._lock(folder)
        await check_format(self._runtime.disk, str(folder))
        own_etcd = options.etcd_members if options.meta_url is None else 0
        ports = HeldPorts()
        self._started.callback(ports.close)
        self._plan = plan = await self._planned(ports, own_etcd)
        await write_format(self._runtime.disk, str(folder))
        secret = cluster_secret_file(folder)
        run = folder / "run"
        await self._runtime.disk.make_dirs(str(run))
        self._started.push_async_callback(self._supervisor.close)
        meta = options.meta_url or etcd_url(plan.etcd)
        if own_etcd:
            await self._supervisor.add(etcd_specs(self._runtime, plan.etcd, folder))
        ports_of = {broker.name: broker.peer for broker in plan.brokers}
        self._supervisor.on_death = Unregistering(self._runtime, meta, f"file:{secret}", ports_of).ended
        await self._supervisor.add([self._bookie(each, folder, run, meta, secret) for each in plan.bookies])
        await self._supervisor.add([self._broker(each, run, meta, secret) for each in plan.brokers])

    async def _planned(self, ports: HeldPorts, etcd_members: int) -> ClusterPlan:
        """What one that was killed leaves behind needs a moment to let go of its ports."""
        options, clock = self._options, self._runtime.clock
        deadline = clock.monotonic() + _PORTS_PATIENCE_S
        while True:
            try:
                return plan_cluster(
                    options.folder,
                    ports,
                    brokers=options.brokers,
                    bookies=options.bookies,
                    etcd_members=etcd_members,
                    port_offset=options.port_offset,
                )
            except AddressInUseError:
                if clock.monotonic() > deadline:
                    raise
            await clock.sleep(_PORTS_LOOK_S)

    async def _lock(self, folder: Path) -> None:
        try:
            lock = await self._runtime.disk.lock(f"{folder}/LOCK")
        except FileLockedError:
            raise FileLockedError(f"another `weir cluster up` runs on {folder}") from None
        self._started.push_async_callback(lock.release)
        self._on_locked()

    def _bookie(self, plan: BookiePlan, folder: Path, run: Path, meta: str, secret: Path) -> ChildSpec:
        ready = run / f"{plan.name}.json"
        command = weir_command(
            *("bookie", "serve", "--id", plan.name, "--data", str(folder / plan.name)),
            *("--listen", f"{_LOOPBACK}:{plan.port}", "--meta", meta, "--ready-file", str(ready)),
            *("--cluster-secret", f"file:{secret}"),
        )
        return ChildSpec(plan.name, "bookie", command, ready)

    def _broker(self, plan: BrokerPlan, run: Path, meta: str, secret: Path) -> ChildSpec:
        ready = run / f"{plan.name}.json"
        values: Mapping[str, str] = {
            **{f"listeners.{name}": f"{_LOOPBACK}:{getattr(plan, name)}" for name in (*PROTOCOLS, "peer")},
            PORT_OFFSET: "0",  # these are the ports themselves
            "cluster.meta": meta,
            "cluster.name": plan.name,
            "cluster.secret": f"file:{secret}",
        }
        # Two copies; of one bookie, one. With three bookies any one may go, and there are still two to write to.
        if len(self._plan.bookies) == 1:
            values = {"storage.quorum": "1/1/1", **values}
        options = self._options
        given = [] if options.config_file is None else ["--config", options.config_file]
        given += [part for assignment in options.assignments for part in ("--set", assignment)]
        arguments = ["broker", *given, *settings(values), "--ready-file", str(ready)]
        environment = {INSTANCE: self.instance}
        return ChildSpec(plan.name, "broker", weir_command(*arguments), ready, environment=environment)
