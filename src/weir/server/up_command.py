"""`weir up`: a whole Weir in one process, until a signal ends it."""

import gc
import os
from pathlib import Path

import click

from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run
from weir.runtime.real_watch import LoopWatch
from weir.server.config import Config
from weir.server.config_load import load
from weir.server.config_options import config_options
from weir.server.logs import set_up_logs
from weir.server.standalone import Standalone
from weir.server.up import say_gone, serve_until_signal

_LEVELS = ("warning", "info", "debug")


@click.command(
    epilog="""
\b
Examples:
  weir up                                     data in ./weir-data; Pulsar on 6650, Kafka on 9092, HTTP on 8080
  weir up --data /var/lib/weir --config weir.toml
  weir up --set listeners.pulsar=127.0.0.1:0 --set listeners.kafka= --ready-file ready.json
  weir config show                            every setting; weir config explain KEY tells more

SIGTERM and SIGINT end it in order: what was accepted is stored, and its clients are told. Killing it loses nothing
that was acknowledged.
"""
)
@click.option("--data", metavar="DIR", help="The folder for everything that is kept; made when new.")
@config_options
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Go on without acknowledged bytes that are gone from the disk; what is given up is logged and kept.",
)
@click.option(
    "--ready-file", type=click.Path(dir_okay=False), metavar="FILE", help="Written as JSON once it serves."
)
@click.pass_context
def up(
    ctx: click.Context,
    *,
    data: str | None,
    config_file: str | None,
    assignments: tuple[str, ...],
    accept_loss: bool,
    ready_file: str | None,
) -> None:
    """Run a whole Weir on this machine: broker, storage and metadata in one process."""
    options = {} if data is None else {"data": data}
    loaded = load(
        file=None if config_file is None else Path(config_file),
        environment=os.environ,
        assignments=assignments,
        options=options,
    )
    set_up_logs(_level(ctx, loaded.config), loaded.config.log.format)
    ready = None if ready_file is None else Path(ready_file)
    if ready is not None and not ready.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder for {ready_file}", hint="check --ready-file")
    run(lambda runtime: _up(runtime, loaded.config, ready, accept_loss=accept_loss))


def _level(ctx: click.Context, config: Config) -> str:
    """-v and -q of the program say more or less than the configuration does."""
    verbose, quiet = ctx.find_root().params.get("verbose", 0), ctx.find_root().params.get("quiet", False)
    if quiet:
        return "error"
    return _LEVELS[min(verbose, 2)] if verbose else config.log.level


async def _up(runtime: Runtime, config: Config, ready_file: Path | None, *, accept_loss: bool) -> None:
    # What a killed one left behind would mislead whoever waits for the file; that of a living one is not ours.
    node = Standalone(runtime, config, on_locked=lambda: say_gone(ready_file), accept_loss=accept_loss)

    def on_ready() -> None:
        # What the start left behind lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        where = ", ".join(f"{name} {address}" for name, address in node.addresses.items())
        click.echo(f"weir is up: {where}; try: weir produce hello world; weir consume hello")

    with LoopWatch(runtime.loop_holds):
        await serve_until_signal(node, ready_file=ready_file, on_ready=on_ready)
