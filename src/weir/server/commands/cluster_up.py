"""`weir cluster up`: a whole cluster on one machine, until a signal ends it."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from weir.cli.remote import LISTENING_FILE
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run
from weir.server.cluster_up import ClusterOptions, ClusterUp, etcd_program
from weir.server.commands.nodes import config_source, load_config, ready_path
from weir.server.config import part_settings
from weir.server.config.load import config_options, port_offset_option
from weir.server.serve import Reloading, say_gone, say_ready, serve_until_signal
from weir.server.start_checks import check_kind, check_usable


@click.command(
    epilog="""
\b
Examples:
  weir cluster up                               three brokers, three bookies and an etcd; data in ./weir-cluster
  weir cluster up --brokers 3 --bookies 3 --etcd-members 3 --data /var/lib/weir-cluster
  weir cluster up --brokers 2 --bookies 1 --meta etcd://etcd-1:2379
  weir cluster up --port-offset 100             the first broker has Kafka 9192, Pulsar 6750, HTTP 8180, and so on
  weir cluster status                           in another terminal

The extra `cluster` installs the etcd: pip install '.[cluster]' in a checkout. The command restarts processes that
die. SIGTERM and SIGINT stop all of them in order. The first start chooses free ports from 9092, 6650 and 8080 on
(--port-offset N adds N to them), and the cluster keeps them. Each message has two copies, on two of the bookies.
"""
)
@click.option(
    "--brokers",
    type=click.IntRange(0, 64),
    default=3,
    show_default=True,
    metavar="N",
    help="Brokers; 0: storage only, for weir restore.",
)
@click.option("--bookies", type=click.IntRange(1, 64), default=3, show_default=True, metavar="N", help="Bookies.")
@click.option(
    "--data",
    default="weir-cluster",
    show_default=True,
    metavar="DIR",
    help="The data folder; created if missing.",
)
@click.option(
    "--meta", metavar="URL", help="Your own etcd: etcd://host:port[,host:port]; by default weir starts one."
)
@click.option(
    "--etcd-members",
    type=click.Choice(["1", "3"]),
    default="1",
    show_default=True,
    help="Members of the etcd that weir starts.",
)
@port_offset_option
@config_options
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="JSON file, written when all nodes serve, and after each restart of a process.",
)
@click.pass_context
def up(
    ctx: click.Context,
    *,
    brokers: int,
    bookies: int,
    data: str,
    meta: str | None,
    etcd_members: str,
    port_offset: int | None,
    config_file: str | None,
    assignments: tuple[str, ...],
    ready_file: str | None,
) -> None:
    """Run a whole cluster on this machine: etcd, bookies and brokers, each in its own process."""
    named = {} if port_offset is None else {"port-offset": str(port_offset)}
    config = load_config(ctx, config_file, assignments, named)  # so that errors in it appear once, here
    part_settings.tls_context(config)
    check_usable("--data", data)
    check_kind(data, cluster=True)
    if meta is None:
        etcd_program()  # check before creating a folder for a cluster that cannot start
    source, ready = config_source(ctx, config_file, assignments, named), ready_path(ready_file)
    options = ClusterOptions(
        Path(data).absolute(),
        brokers,
        bookies,
        int(etcd_members),
        meta,
        config_file,
        assignments,
        config.listeners.port_offset,
    )

    listening = options.folder / LISTENING_FILE

    async def main(runtime: Runtime) -> None:
        say_gone(ready)

        def tell_processes() -> None:
            if ready is not None and ready.exists():  # only between the first readiness and the end
                say_ready(ready, cluster.ready())

        cluster = ClusterUp(runtime, options, tell_processes, on_locked=lambda: say_gone(listening))
        await serve_until_signal(
            cluster,
            ready_file=ready,
            on_ready=lambda: _show(cluster),
            ready_content=cluster.ready,
            listening_file=listening,
            instance=cluster.instance,
            reload=Reloading(source, pass_on=cluster.supervisor.hang_up),
        )

    run(main)


def _show(cluster: ClusterUp) -> None:
    table = Table(title="The cluster is up", title_justify="left", title_style="bold")
    for column in ("node", "role", "pid", "address"):
        table.add_column(column, overflow="fold")
    for row in cluster.rows():
        table.add_row(*row)
    Console(soft_wrap=True, highlight=False).print(table)
    if cluster.addresses:
        click.echo(f"try: weir cluster status --url http://{cluster.addresses['http']}")
    else:
        click.echo(
            "the cluster has no brokers: run weir restore COPY --data with this folder, then start it with brokers"
        )
