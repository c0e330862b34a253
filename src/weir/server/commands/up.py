"""`weir up`: a whole Weir, in one process or with worker processes, until a signal ends it."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click

from weir.cli.remote import DEFAULT_URL, LISTENING_FILE, http_url
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime
from weir.runtime.real import LoopWatch, run
from weir.server.broker_node import BrokerNode
from weir.server.commands.nodes import config_source, load_config, ready_path, settle
from weir.server.config.load import config_options, port_offset_option
from weir.server.config.tree import Config
from weir.server.listeners import warning
from weir.server.runner_processes import with_connectors, with_functions, with_streams
from weir.server.serve import ConfigSource, Reloading, Served, say_gone, serve_until_signal
from weir.server.start_checks import check_kind, check_usable, start_warnings, unknown_host
from weir.server.workers import WorkerOptions, Workers


@click.command(
    epilog="""
\b
Examples:
  weir up                                     data in ./weir-data; Pulsar 6650, Kafka 9092, AMQP 5672,
                                              RocketMQ 8081, HTTP 8080
  weir up --data /var/lib/weir --config weir.toml
  weir up --streams                           also run SQL streams
  weir up --connect                           also run connectors to and from other systems
  weir up --functions                         also run deployed functions, with latency in milliseconds
  weir up --workers 3                         serve the folder by three broker processes
  weir up --data second --port-offset 100     a second Weir on this machine; Pulsar 6750, Kafka 9192, AMQP 5772,
                                              RocketMQ 8181, HTTP 8180
  weir up --set listeners.pulsar=127.0.0.1:0 --set listeners.kafka= --ready-file ready.json
  weir config show                            every setting; weir config explain KEY describes one

SIGTERM and SIGINT stop it in order: it stores and answers accepted messages first. A kill loses no acknowledged
message. SIGHUP reloads log.level, log.format and the TLS files; the log reports the result.
"""
)
@click.option("--data", metavar="DIR", help="The data folder; created if missing.")
@port_offset_option
@config_options
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Accept the loss of acknowledged data that the disk lacks; the loss is logged and recorded.",
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="JSON file, written when the node serves.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Serve the folder with N broker processes and one storage process; by default, one process does both.",
)
@click.option(
    "--streams",
    is_flag=True,
    help="Also run SQL streams, in a supervised process that logs here; same as streams.run.",
)
@click.option(
    "--functions",
    is_flag=True,
    help="Also run functions, in supervised processes that log here; same as functions.run.",
)
@click.option(
    "--connect",
    is_flag=True,
    help="Also run connectors, in a supervised process that logs here; same as connect.run.",
)
@click.pass_context
def up(
    ctx: click.Context,
    *,
    data: str | None,
    port_offset: int | None,
    config_file: str | None,
    assignments: tuple[str, ...],
    accept_loss: bool,
    ready_file: str | None,
    workers: int | None,
    streams: bool,
    functions: bool,
    connect: bool,
) -> None:
    """Run a whole Weir on this machine: broker, storage and metadata in one process."""
    given = {"data": data, "port-offset": None if port_offset is None else str(port_offset)}
    named = {name: value for name, value in given.items() if value is not None}
    config = load_config(ctx, config_file, assignments, named)
    _check(config)
    source = config_source(ctx, config_file, assignments, named)
    ready = ready_path(ready_file)
    beside = Beside(streams, functions, connect)
    if workers is None:
        run(lambda runtime: _up(runtime, config, source, ready, accept_loss=accept_loss, beside=beside))
        return
    of_workers = (*assignments, f"data={config.data}")
    options = WorkerOptions(config_file, of_workers, workers, accept_loss=accept_loss)
    run(lambda runtime: _up_with_workers(runtime, config, source, ready, options, beside=beside))


class Beside(NamedTuple):
    """Runners beside the broker, each in its own process."""

    streams: bool
    functions: bool
    connect: bool

    def of(self, node: Served, runtime: Runtime, config: Config) -> Served:
        inner = with_streams(node, runtime, config, streams=self.streams)
        inner = with_functions(inner, runtime, config, functions=self.functions)
        return with_connectors(inner, runtime, config, connect=self.connect)


def _check(config: Config) -> None:
    """ConfigError for settings that `weir up` does not support, before it opens any file."""
    check_usable("--data", config.data)
    check_kind(config.data, cluster=False)
    if config.cluster.meta:
        raise ConfigError(
            f"weir up keeps its metadata in its own folder; cluster.meta = {config.cluster.meta} is for brokers"
            " of a cluster",
            hint="remove cluster.meta, or run weir broker",
        )


async def _up_with_workers(
    runtime: Runtime,
    config: Config,
    source: ConfigSource,
    ready_file: Path | None,
    options: WorkerOptions,
    *,
    beside: Beside,
) -> None:
    say_gone(ready_file)
    listening = _listening_file(config.data)
    workers = Workers(runtime, config, options, on_locked=lambda: say_gone(listening))
    node = beside.of(workers, runtime, config)
    await serve_until_signal(
        node,
        ready_file=ready_file,
        on_ready=lambda: _say_up(node, config),
        listening_file=listening,
        instance=workers.instance,
        reload=Reloading(source, pass_on=workers.supervisor.hang_up),
    )


def _listening_file(data: str) -> Path:
    return Path(data).absolute() / LISTENING_FILE


def _say_up(node: Served, config: Config) -> None:
    """Print the listeners, and first commands, which name the server unless they would find it anyway."""
    addresses = {name: str(address) for name, address in node.addresses.items()}
    where = ", ".join(f"{name} {address}" for name, address in addresses.items())
    url = http_url(addresses)
    named = "" if url == DEFAULT_URL else f" --url {url}"
    hint = "" if url is None else f"; try: weir produce hello world{named}; weir consume hello{named}"
    click.echo(f"weir is up: {where}{hint}")
    told = warning(config, node.addresses)
    if told is not None:
        click.echo(f"warning: {told}")
    for one in start_warnings(config, now=datetime.now(UTC)):
        click.echo(f"warning: {one}", err=True)
    asyncio.get_running_loop().run_in_executor(None, _say_unknown_host, config)


def _say_unknown_host(config: Config) -> None:
    """Printed later, because a resolver may be slow."""
    told = unknown_host(config)
    if told:
        click.echo(f"warning: {told}", err=True)


async def _up(
    runtime: Runtime,
    config: Config,
    source: ConfigSource,
    ready_file: Path | None,
    *,
    accept_loss: bool,
    beside: Beside,
) -> None:
    listening = _listening_file(config.data)

    def on_locked() -> None:
        """Remove files of a killed process, which would mislead readers; those of a live process are not ours."""
        say_gone(ready_file)
        say_gone(listening)

    broker = BrokerNode(runtime, config, on_locked=on_locked, accept_loss=accept_loss)
    node = beside.of(broker, runtime, config)

    def on_ready() -> None:
        settle()
        _say_up(node, config)
        full = broker.storage_warning()
        if full:
            click.echo(f"warning: {full}", err=True)

    with LoopWatch(runtime.loop_holds):
        await serve_until_signal(
            node,
            ready_file=ready_file,
            on_ready=on_ready,
            listening_file=listening,
            instance=broker.instance,
            reload=Reloading(source),
        )
