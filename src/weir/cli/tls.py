"""`weir tls`: a private authority, and certificates for servers, clients and nodes of a cluster."""

import json
import socket
from datetime import UTC, datetime
from pathlib import Path

import click

from weir.cli.certificates import Authority, Pair, Purpose, describe, load_certificate
from weir.cli.command import examples
from weir.cli.output import Column, Output
from weir.cli.remote import output_options
from weir.model.errors import ConfigError

#: Always in a server's certificate, for commands and health checks on the same machine.
_HERE = ("localhost", "127.0.0.1", "::1")

_FOLDER = click.option(
    "--dir", "folder", default="tls", show_default=True, type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the files.",
)  # fmt: skip
_DAYS = click.option(
    "--days", default=825, show_default=True, type=click.IntRange(1, 36500), help="Validity of certificates."
)
_HOSTS = click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="A name or address that clients connect to; may be repeated.",
)


@click.group(
    epilog="""
\b
Examples:
  weir tls init --host weir.example --host 10.0.0.5     an authority and a server's certificate, in ./tls
  weir tls client alice                                 a client certificate for the role alice
  weir tls node broker-1                                one for a cluster node, signed by the cluster authority
  weir tls show                                         certificates and their expiry
  weir tls renew                                        all of them, with the same keys
"""
)
def tls() -> None:
    """Create, show and renew certificates for TLS."""


@tls.command(
    epilog="""
\b
Examples:
  weir tls init                                  for this machine: its name, localhost, 127.0.0.1 and ::1
  weir tls init --dir /etc/weir/tls --host weir.example --client alice
  weir tls init --node broker-1 --node bookie-1  and for the nodes of a cluster

It prints the lines for weir.toml. Give clients ca.pem only. Keep ca.key off the server: its owner can impersonate
any server and any client.
"""
)
@_FOLDER
@_HOSTS
@click.option(
    "--client", "clients", multiple=True, metavar="ROLE", help="A client's certificate too; see weir tls client."
)
@click.option(
    "--node", "nodes", multiple=True, metavar="NAME", help="A node's certificate too; see weir tls node."
)
@_DAYS
@click.option(
    "--ca-days",
    default=3650,
    show_default=True,
    type=click.IntRange(1, 36500),
    help="Validity of the authority.",
)
def init(
    *,
    folder: Path,
    hosts: tuple[str, ...],
    clients: tuple[str, ...],
    nodes: tuple[str, ...],
    days: int,
    ca_days: int,
) -> None:
    """Create an authority, and a server certificate that it signs."""
    wanted = [_authority(folder), Pair.named(folder, "server"), *(_client(folder, name) for name in clients)]
    for files in [*wanted, *(_node(folder, name) for name in nodes)]:
        files.check_new()
    named = list(dict.fromkeys([*hosts, *([] if hosts else [socket.gethostname()]), *_HERE]))
    authority = Authority.create(_authority(folder), f"Weir CA of {named[0]}"[:64], ca_days)
    server = Pair.named(folder, "server")
    authority.sign(server, named[0][:64], named, Purpose.SERVER, days)
    for name in clients:
        authority.sign(_client(folder, name), name, (), Purpose.CLIENT, days)
    for name in nodes:
        _make_node(folder, name, days, ca_days)
    click.echo(
        f"created for {', '.join(named)}, valid for {days} days; clients trust {authority.files.certificate}\n",
        err=True,
    )
    click.echo(_server_lines(folder, hosts), nl=False)
    if nodes:
        click.echo(_node_lines(folder, nodes[0]), nl=False)


@tls.command(
    epilog="""
\b
Example:
  weir tls server --name weir-2 --host weir-2.example
"""
)
@click.option("--name", required=True, metavar="NAME", help="Writes NAME.pem and NAME.key.")
@_FOLDER
@_HOSTS
@_DAYS
def server(*, name: str, folder: Path, hosts: tuple[str, ...], days: int) -> None:
    """Create a certificate for one more server."""
    files = Pair.named(folder, name)
    named = list(dict.fromkeys([*(hosts or (name,)), *_HERE]))
    Authority(_authority(folder)).sign(files, named[0][:64], named, Purpose.SERVER, days)
    _say(files)


@tls.command(
    epilog="""
\b
Example:
  weir tls client alice
  weir topics list --url https://weir.example:8443 --ca tls/ca.pem \\
      --cert tls/client-alice.pem --cert-key tls/client-alice.key

The server requests client certificates if tls.client_ca is the authority's ca.pem. With auth.authenticate=true the
common name is the client's role.
"""
)
@click.argument("role")
@_FOLDER
@_DAYS
def client(*, role: str, folder: Path, days: int) -> None:
    """Create a client certificate for ROLE."""
    files = _client(folder, role)
    Authority(_authority(folder)).sign(files, role, (), Purpose.CLIENT, days)
    _say(files)


@tls.command(
    epilog="""
\b
Example:
  weir tls node broker-1

Nodes have a separate authority, cluster-ca.pem, created with the first node. Its certificates grant membership of
the cluster, so it signs no others.
"""
)
@click.argument("name")
@_FOLDER
@_DAYS
@click.option(
    "--ca-days",
    default=3650,
    show_default=True,
    type=click.IntRange(1, 36500),
    help="Validity of the authority.",
)
def node(*, name: str, folder: Path, days: int, ca_days: int) -> None:
    """Create a certificate that a cluster node presents to other nodes."""
    _make_node(folder, name, days, ca_days)
    click.echo(_node_lines(folder, name), nl=False)


@tls.command(
    epilog="""
\b
Examples:
  weir tls renew                         every certificate in ./tls, except authorities
  weir tls renew tls/server.pem --days 90

A running Weir uses the new certificate for the next connection; it needs no restart.
"""
)
@click.argument("files", nargs=-1, metavar="[CERTIFICATE]...", type=click.Path(dir_okay=False, path_type=Path))
@_FOLDER
@_DAYS
def renew(*, files: tuple[Path, ...], folder: Path, days: int) -> None:
    """Replace certificates by ones that expire later, with the same names and keys."""
    by_name = {
        load_certificate(pair.certificate).subject: pair
        for pair in (_authority(folder), _cluster_authority(folder))
        if pair.certificate.exists()
    }
    chosen = files or tuple(path for path in _certificates(folder) if not _is_authority(path, folder))
    if not chosen or not by_name:
        raise ConfigError(f"no certificates to renew in {folder}", hint="name the folder with --dir")
    signers = {path: by_name.get(load_certificate(path).issuer) for path in chosen}
    for path, signer in signers.items():
        if signer is None:
            raise ConfigError(f"no authority in {folder} has signed {path}", hint="name the folder with --dir")
        Authority(signer).renew(path, days)
        click.echo(f"{path}  valid until {describe(path).ends:%Y-%m-%d}")


@tls.command(epilog=examples("weir tls show", "weir tls show tls/server.pem --json"))
@click.argument("files", nargs=-1, metavar="[CERTIFICATE]...", type=click.Path(dir_okay=False, path_type=Path))
@_FOLDER
@output_options
def show(*, files: tuple[Path, ...], folder: Path, out: Output) -> None:
    """Show certificates: their subjects, issuers and expiry."""
    chosen = files or _certificates(folder)
    if not chosen:
        raise ConfigError(f"no certificates in {folder}", hint="weir tls init creates some")
    now, told, rows = datetime.now(UTC), [], []
    for path in chosen:
        found = describe(path)
        left = (found.ends - now).days
        told.append(
            {
                "file": str(path),
                "name": found.name,
                "issuer": found.issuer,
                "hosts": list(found.hosts),
                "ends": found.ends.isoformat(),
                "days_left": left,
            }
        )
        state = f"valid for {left} days" if left >= 0 else "EXPIRED"
        rows.append((str(path), found.name, state, f"{found.ends:%Y-%m-%d}", found.issuer, list(found.hosts)))
    columns = (
        Column("file", cut="start"),
        "name",
        "state",
        "until",
        Column("signed by", cut="end"),
        Column("hosts", cut="end"),
    )
    out.table(columns, rows, data=told)


def _make_node(folder: Path, name: str, days: int, ca_days: int) -> None:
    signer, files = _cluster_authority(folder), _node(folder, name)
    files.check_new()
    authority = Authority(signer) if signer.exists else Authority.create(signer, "Weir cluster CA", ca_days)
    authority.sign(files, name, (name,), Purpose.NODE, days)


def _authority(folder: Path) -> Pair:
    return Pair.named(folder, "ca")


def _cluster_authority(folder: Path) -> Pair:
    return Pair.named(folder, "cluster-ca")


def _client(folder: Path, role: str) -> Pair:
    return Pair.named(folder, f"client-{_file_name(role)}")


def _node(folder: Path, name: str) -> Pair:
    return Pair.named(folder, f"node-{_file_name(name)}")


def _file_name(name: str) -> str:
    if not name or "/" in name or "\0" in name:
        raise ConfigError(f"{name!r} cannot be part of a file's name", hint="choose a name without slashes")
    return name


def _certificates(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.glob("*.pem")))


def _is_authority(path: Path, folder: Path) -> bool:
    return path in (_authority(folder).certificate, _cluster_authority(folder).certificate)


def _say(files: Pair) -> None:
    click.echo(str(files.certificate))
    click.echo(str(files.key))


def _server_lines(folder: Path, hosts: tuple[str, ...]) -> str:
    """The settings for weir.toml."""
    files = Pair.named(folder.absolute(), "server")
    names = [host for host in hosts if not host.replace(".", "").isdigit() and ":" not in host]
    reached = f"advertised_host = {_quoted((names or hosts)[0])}\n" if hosts else ""
    listen = "0.0.0.0" if hosts else "127.0.0.1"
    return f"""\
[listeners]
pulsar_tls = "{listen}:6651"
kafka_tls = "{listen}:9093"
amqps = "{listen}:5671"
rocketmq_tls = "{listen}:8081"
https = "{listen}:8443"
pulsar = ""                # no plaintext; remove a line to serve both
kafka = ""
amqp = ""
rocketmq = ""
http = ""
{reached}
[tls]
certificate = {_quoted(files.certificate)}
key = {_quoted(files.key)}
# client_ca = {_quoted(_authority(folder.absolute()).certificate)}   # requests client certificates of it
"""


def _node_lines(folder: Path, name: str) -> str:
    files, authority = _node(folder.absolute(), name), _cluster_authority(folder.absolute())
    return f"""\
[cluster]                  # of {name}; bookies: --cluster-certificate, --cluster-key and --cluster-authority
certificate = {_quoted(files.certificate)}
key = {_quoted(files.key)}
authority = {_quoted(authority.certificate)}
"""


def _quoted(value: object) -> str:
    """A TOML string; a JSON string is one."""
    return json.dumps(str(value))
