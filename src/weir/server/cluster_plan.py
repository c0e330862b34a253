"""What a cluster on one machine consists of: names and ports, kept in its folder so that they stay the same."""

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from weir.model.errors import AddressInUseError, ConfigError
from weir.server.etcd_bundle import EtcdMember
from weir.server.free_ports import HeldPorts

#: By it one knows the folder of a cluster.
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
    #: 0 in a folder of a Weir that had none. (RocketMQ: 8091 and on, since 8081 is the second HTTP port.)
    amqp: int = 0
    rocketmq: int = 0


@dataclass(frozen=True, slots=True)
class BookiePlan:
    """A bookie's name and port."""

    name: str
    port: int


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All of it. `etcd` is empty where the metadata is somebody else's."""

    brokers: list[BrokerPlan] = field(default_factory=list)
    bookies: list[BookiePlan] = field(default_factory=list)
    etcd: list[EtcdMember] = field(default_factory=list)
    #: Added to the ports that clients know, when they were chosen.
    port_offset: int = 0


def plan_cluster(
    folder: Path, ports: HeldPorts, *, brokers: int, bookies: int, etcd_members: int, port_offset: int = 0
) -> ClusterPlan:
    """What is there already, and more where more is wanted. A broker of a cluster is not missed; a bookie has the
    only copies of nothing, but its disk belongs to it, and etcd's members know each other. All of its ports are
    held; AddressInUseError if somebody has one of those that clients know."""
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
            f"the cluster in {folder} keeps its ports, since clients know them: Kafka's are"
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
            f"127.0.0.1:{taken[0]} is in use, and is the port of {names[taken[0]]}",
            hint=f"stop whoever listens there: the cluster in {folder} keeps its ports, since clients know them",
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
    """The secret that the nodes of this cluster share; made once."""
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
    """All that are known, with who has them."""
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
    """Those that were planned by a Weir that knew fewer protocols get ports for the new ones."""
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
