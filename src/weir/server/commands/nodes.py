"""`weir broker`, `weir storage` and `weir bookie serve`: single nodes, each in its own process until a signal.

`weir storage` is the storage process of `weir up --workers N`.
"""

import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from weir.bookie.settings import BookieSettings, JournalSettings
from weir.broker.security.cluster_credentials import (
    ClusterCredentialSettings,
    load_cluster_secret,
    load_credentials,
)
from weir.ledger.settings import LedgerSettings
from weir.model.errors import ConfigError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Runtime
from weir.runtime.real import LoopWatch, run
from weir.server.addresses import parse_address
from weir.server.bookie_node import BookieNode, BookieNodeSettings
from weir.server.broker_node import BrokerNode
from weir.server.config import part_settings
from weir.server.config.keys import parse_sync
from weir.server.config.load import config_options
from weir.server.config.tree import Config
from weir.server.listeners import is_local
from weir.server.local_storage import StorageNode
from weir.server.logs import set_up_logs
from weir.server.remote_storage import RemoteStorage
from weir.server.serve import ConfigSource, Reloading, Served, say_gone, serve_until_signal
from weir.server.start_checks import check_usable, start_warnings

log = logging.getLogger(__name__)

_LEVELS = ("warning", "info", "debug")

_ready_file = click.option(
    "--ready-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="JSON file, written when the node serves.",
)


@click.command(
    epilog="""
\b
Examples:
  weir broker --config broker.toml
  weir broker --set cluster.meta=etcd://etcd-1:2379,etcd-2:2379 --set cluster.name=b1 \\
      --set cluster.secret=file:/etc/weir/secret --set listeners.peer=0.0.0.0:6660 \\
      --set listeners.advertised_host=b1.example
  weir config explain cluster.meta            the description of a setting

A broker stores no data on its disk: bookies (weir bookie serve) store topics, the metadata stores their owners.
SIGTERM and SIGINT stop it in order: it first hands its topics over to other brokers and redirects its clients.
"""
)
@config_options
@_ready_file
@click.pass_context
def broker(
    ctx: click.Context, *, config_file: str | None, assignments: tuple[str, ...], ready_file: str | None
) -> None:
    """Run a broker of a cluster, over etcd and bookies."""
    config = load_config(ctx, config_file, assignments)
    source = config_source(ctx, config_file, assignments)
    storage = part_settings.remote_storage(config)
    name, ready = part_settings.broker_name(config), ready_path(ready_file)
    if config.listeners.peer is None:
        raise ConfigError(
            f"broker {name} has no address for the other brokers",
            hint="set listeners.peer, for example 0.0.0.0:6660",
        )

    async def main(runtime: Runtime) -> None:
        say_gone(ready)
        node = BrokerNode(runtime, config, storage=RemoteStorage(runtime, storage))

        def warnings() -> Iterator[str]:
            yield from start_warnings(config, now=datetime.now(UTC))
            if told := node.storage_warning():
                yield told

        await _serve(runtime, node, ready, f"broker {name}", Reloading(source), warnings=warnings)

    run(main)


@click.command(
    epilog="""
\b
Example:
  weir storage --data /var/lib/weir --meta 127.0.0.1:2300 --set cluster.secret=file:/run/weir/secret

`weir up --workers N` starts it automatically.
"""
)
@click.option("--data", metavar="DIR", help="The data folder; created if missing.")
@click.option("--meta", default="127.0.0.1:0", metavar="HOST:PORT", help="The address of the metadata.")
@click.option("--bookie", default="127.0.0.1:0", metavar="HOST:PORT", help="The address of the bookie.")
@click.option("--accept-loss", is_flag=True, help="Accept the loss of acknowledged data that the disk lacks.")
@config_options
@_ready_file
@click.pass_context
def storage(
    ctx: click.Context,
    *,
    data: str | None,
    meta: str,
    bookie: str,
    accept_loss: bool,
    config_file: str | None,
    assignments: tuple[str, ...],
    ready_file: str | None,
) -> None:
    """Serve the storage and the metadata of one folder to brokers."""
    config = load_config(ctx, config_file, assignments, {} if data is None else {"data": data})
    check_usable("--data", config.data)
    if not config.cluster.secret:
        raise ConfigError("weir storage needs a secret for its clients", hint="set cluster.secret")
    ready = ready_path(ready_file)

    async def main(runtime: Runtime) -> None:
        settings = part_settings.storage_settings(config, accept_loss=accept_loss)
        secret = await load_cluster_secret(runtime.disk, config.cluster.secret)
        node = StorageNode(
            runtime,
            settings,
            meta=parse_address(meta),
            bookie=parse_address(bookie),
            secret=secret,
            on_locked=lambda: say_gone(ready),
        )
        source = config_source(ctx, config_file, assignments, {} if data is None else {"data": data})
        await _serve(runtime, node, ready, "storage", Reloading(source))

    run(main)


def load_config(
    ctx: click.Context,
    config_file: str | None,
    assignments: tuple[str, ...],
    options: dict[str, str] | None = None,
) -> Config:
    """The configuration of a command with `config_options`; sets up its logs."""
    config = config_source(ctx, config_file, assignments, options).load().config
    set_up_logs(_level(ctx, config), config.log.format)
    return config


def config_source(
    ctx: click.Context,
    config_file: str | None,
    assignments: tuple[str, ...],
    options: dict[str, str] | None = None,
) -> ConfigSource:
    """The configuration source of such a command."""
    file = None if config_file is None else Path(config_file)
    return ConfigSource(file, assignments, options or {}, lambda config: _level(ctx, config))


def ready_path(ready_file: str | None) -> Path | None:
    """The path of the ready file; ConfigError if it is not writable."""
    ready = None if ready_file is None else Path(ready_file)
    if ready is not None and not ready.absolute().parent.is_dir():
        raise ConfigError(f"the folder of {ready_file} does not exist", hint="check --ready-file")
    return ready


def settle() -> None:
    """Freeze objects of the start, which live as long as the process, so that garbage collection skips them."""
    gc.collect()
    gc.freeze()


async def _serve(
    runtime: Runtime,
    node: Served,
    ready: Path | None,
    what: str,
    reload: Reloading,
    *,
    warnings: Callable[[], Iterable[str]] = tuple,
) -> None:
    def on_ready() -> None:
        settle()
        where = ", ".join(f"{name} {address}" for name, address in node.addresses.items())
        log.info("%s serves: %s", what, where)

        for one in warnings():
            log.warning("%s", one)

    with LoopWatch(runtime.loop_holds):
        await serve_until_signal(node, ready_file=ready, on_ready=on_ready, reload=reload)


def _level(ctx: click.Context, config: Config) -> str:
    """The log level: -v and -q of the program override the configuration."""
    verbose, quiet = ctx.find_root().params.get("verbose", 0), ctx.find_root().params.get("quiet", False)
    if quiet:
        return "error"
    return _LEVELS[min(verbose, 2)] if verbose else config.log.level


_MAX_ID_BYTES = 200


@click.command(
    epilog="""
\b
Examples:
  weir bookie serve --id b1 --data /var/lib/weir/b1 --listen 127.0.0.1:3181 --meta etcd://127.0.0.1:2379
  weir bookie serve --id b2 --data ./b2 --listen 0.0.0.0:3181 --advertise b2.example:3181 --rack east-1 \\
      --meta etcd://etcd-1:2379,etcd-2:2379
  weir bookie serve --id b3 --data ./b3 --listen 127.0.0.1:0 --meta file:/var/lib/weir/meta \\
      --ready-file b3.json --sync periodic:5

SIGTERM and SIGINT stop it in order: it unregisters, answers accepted requests, and flushes.
"""
)
@click.option(
    "--id", "bookie_id", required=True, metavar="ID", help="The bookie's id; it belongs to its disk permanently."
)
@click.option("--data", required=True, metavar="DIR", help="The data folder; formatted if new.")
@click.option(
    "--listen", default="127.0.0.1:3181", show_default=True, metavar="HOST:PORT", help="Port 0: any free one."
)
@click.option("--advertise", metavar="HOST:PORT", help="The address for other nodes, if not that of --listen.")
@click.option("--meta", required=True, metavar="URL", help="file:/path/to/folder or etcd://host:port[,host:port].")
@click.option("--rack", default="", metavar="LABEL", help="The rack of the node; replicas are spread over racks.")
@click.option(
    "--sync", default="always", show_default=True, metavar="POLICY", help="always, or periodic:MILLISECONDS."
)
@click.option(
    "--cluster-secret",
    envvar="WEIR_CLUSTER_SECRET",
    default="",
    metavar="SECRET",
    help="The shared secret of the nodes: base64:... or file:/path.",
)
@click.option(
    "--cluster-certificate",
    envvar="WEIR_CLUSTER_CERTIFICATE",
    default="",
    metavar="FILE",
    help="This node's certificate for other nodes, PEM.",
)
@click.option("--cluster-key", envvar="WEIR_CLUSTER_KEY", default="", metavar="FILE", help="Its private key, PEM.")
@click.option(
    "--cluster-authority",
    envvar="WEIR_CLUSTER_AUTHORITY",
    default="",
    metavar="FILE",
    help="The authority of the nodes' certificates, PEM.",
)
@click.option(
    "--auto-repair/--no-auto-repair",
    default=True,
    show_default=True,
    help="Take part in re-replicating the ledgers of lost bookies.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Accept the loss of acknowledged entries that the journal lacks; the loss is logged and recorded.",
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="JSON file, written when the node serves.",
)
def serve(
    *,
    bookie_id: str,
    data: str,
    listen: str,
    advertise: str | None,
    meta: str,
    rack: str,
    sync: str,
    cluster_secret: str,
    cluster_certificate: str,
    cluster_key: str,
    cluster_authority: str,
    auto_repair: bool,
    accept_loss: bool,
    ready_file: str | None,
) -> None:
    """Run a storage node."""
    check_usable("--data", data)
    settings = BookieNodeSettings(
        bookie=BookieSettings(
            BookieId(parse_id(bookie_id)),
            str(Path(data).absolute()),
            journal=JournalSettings(sync_interval_s=parse_sync(sync)),
        ),
        meta_url=meta,
        listen=parse_address(listen),
        advertise=None if advertise is None else parse_address(advertise),
        rack=rack,
        auto_repair=LedgerSettings() if auto_repair else None,
        accept_loss=accept_loss,
    )
    shown = ClusterCredentialSettings(cluster_secret, cluster_certificate, cluster_key, cluster_authority)
    run(
        lambda runtime: _bookie_command_serve(
            runtime, settings, shown, None if ready_file is None else Path(ready_file)
        )
    )


def parse_id(text: str) -> str:
    """A bookie id, which becomes part of keys and of the handshake."""
    if not text or "/" in text or not text.isprintable() or len(text.encode()) > _MAX_ID_BYTES:
        raise ConfigError(f"{text!r} is not a bookie id", hint="use a short name without slashes")
    return text


async def _bookie_command_serve(
    runtime: Runtime, settings: BookieNodeSettings, shown: ClusterCredentialSettings, ready_file: Path | None
) -> None:
    node = BookieNode(runtime, settings, credentials=await load_credentials(runtime.disk, shown))

    def on_ready() -> None:
        if shown == ClusterCredentialSettings() and not is_local(settings.listen.host):
            log.warning(
                "any client that reaches %s may read and delete ledgers: the bookie requires no credentials "
                "(give it --cluster-secret, see docs/how-to/security.md; or listen on 127.0.0.1)",
                node.address,
            )
        log.info("bookie %s serves at %s", settings.bookie.bookie_id, node.address)

    with LoopWatch(runtime.loop_holds):
        await serve_until_signal(node, ready_file=ready_file, on_ready=on_ready)
