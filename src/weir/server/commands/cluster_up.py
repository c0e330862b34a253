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

The extra `cluster` installs the etcd: pip install '.[cluster]' in a checkout. What dies is started again. SIGTERM
and SIGINT end it in order. Ports are chosen at the first start (9092, 6650 and 8080 and the next ones where they
are free; --port-offset N adds N to them) and kept. Each message has two copies, on two of the bookies.
"""
)
@click.option(
    "--brokers",
    type=click.IntRange(0, 64),
    default=3,
    show_default=True,
    metavar="N",
    help="How many; 0: storage alone, for weir restore.",
)
@click.option("--bookies", type=click.IntRange(1, 64), default=3, show_default=True, metavar="N", help="How many.")
@click.option(
    "--data",
    default="weir-cluster",
    show_default=True,
    metavar="DIR",
    help="The folder for everything that is kept; made when new.",
)
@click.option(
    "--meta", metavar="URL", help="An etcd of your own, etcd://host:port[,host:port]; else one is started."
)
@click.option(
    "--etcd-members",
    type=click.Choice(["1", "3"]),
    default="1",
    show_default=True,
    help="How many members the etcd that is started has.",
)
@port_offset_option
@config_options
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Written as JSON once all of it serves, and when a process was started again.",
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
    """Run a whole cluster on this machine: etcd, bookies and brokers, each a process of its own."""
    named = {} if port_offset is None else {"port-offset": str(port_offset)}
    config = load_config(ctx, config_file, assignments, named)  # what is wrong in it is said here, once
    part_settings.tls_context(config)
    check_usable("--data", data)
    check_kind(data, cluster=True)
    if meta is None:
        etcd_program()  # before a folder is made for a cluster that cannot start
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
            if ready is not None and ready.exists():  # not before all of it serves, nor at the end
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
            "it has storage and no brokers: weir restore COPY --data this folder, then start it with brokers"
        )
