"""`weir bookie serve`: one bookie as a process of its own, until a signal ends it."""

import logging
from pathlib import Path

import click

from weir.bookie.settings import BookieSettings, JournalSettings
from weir.broker.peers.credentials import ClusterCredentialSettings, load_credentials
from weir.ledger.settings import LedgerSettings
from weir.model.errors import ConfigError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run
from weir.runtime.real_watch import LoopWatch
from weir.server.addresses import parse_address
from weir.server.bookie import BookieNode, BookieNodeSettings
from weir.server.open_listeners import is_local
from weir.server.sync_policy import parse_sync
from weir.server.up import serve_until_signal
from weir.server.usable_folder import check_usable

log = logging.getLogger(__name__)

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

SIGTERM and SIGINT end it in order: it unregisters, answers what it took, and flushes.
"""
)
@click.option(
    "--id", "bookie_id", required=True, metavar="ID", help="The bookie's id; it belongs to its disk for good."
)
@click.option("--data", required=True, metavar="DIR", help="The folder for its files; formatted when new.")
@click.option(
    "--listen", default="127.0.0.1:3181", show_default=True, metavar="HOST:PORT", help="Port 0: any free one."
)
@click.option("--advertise", metavar="HOST:PORT", help="The address for others, if not that of --listen.")
@click.option("--meta", required=True, metavar="URL", help="file:/path/to/folder or etcd://host:port[,host:port].")
@click.option("--rack", default="", metavar="LABEL", help="Where it stands; replicas are spread over racks.")
@click.option(
    "--sync", default="always", show_default=True, metavar="POLICY", help="always, or periodic:MILLISECONDS."
)
@click.option(
    "--cluster-secret",
    envvar="WEIR_CLUSTER_SECRET",
    default="",
    metavar="SECRET",
    help="What nodes of the cluster know: base64:... or file:/path.",
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
    help="Take part in copying what lost bookies held.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Go on without acknowledged bytes that are gone from the journal; what is given up is logged and kept.",
)
@click.option(
    "--ready-file", type=click.Path(dir_okay=False), metavar="FILE", help="Written as JSON once it serves."
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
    run(lambda runtime: _serve(runtime, settings, shown, None if ready_file is None else Path(ready_file)))


def parse_id(text: str) -> str:
    """A bookie id, which becomes part of keys and of the hello."""
    if not text or "/" in text or not text.isprintable() or len(text.encode()) > _MAX_ID_BYTES:
        raise ConfigError(f"{text!r} is no bookie id", hint="use a short name without slashes")
    return text


async def _serve(
    runtime: Runtime, settings: BookieNodeSettings, shown: ClusterCredentialSettings, ready_file: Path | None
) -> None:
    node = BookieNode(runtime, settings, credentials=await load_credentials(runtime.disk, shown))

    def on_ready() -> None:
        if shown == ClusterCredentialSettings() and not is_local(settings.listen.host):
            log.warning(
                "everybody who reaches %s may read and delete ledgers: the bookie asks for no credentials "
                "(give it --cluster-secret, docs/how-to/security.md says how; or listen on 127.0.0.1)",
                node.address,
            )
        log.info("bookie %s serves at %s", settings.bookie.bookie_id, node.address)

    with LoopWatch(runtime.loop_holds):
        await serve_until_signal(node, ready_file=ready_file, on_ready=on_ready)
