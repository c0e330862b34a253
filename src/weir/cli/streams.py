"""`weir streams`: what SQL has defined, and the process that runs it."""

import logging
import os
import signal
import time
from typing import TYPE_CHECKING, NoReturn

import click

from weir.cli.remote import Remote, remote_options
from weir.cli.spark_side import checkpoint_folder, need_spark, place_of
from weir.cli.sql_views import print_rows
from weir.model.errors import RunnerBusyError

if TYPE_CHECKING:
    from weir.spark.sql.runner import Runner

#: One that was killed is the runner until its lease runs out.
_LEASE_PATIENCE_S = 20.0


@click.group(
    epilog="""
\b
Examples:
  weir streams run          keep all streams running, until Ctrl-C
  weir streams list
"""
)
def streams() -> None:
    """Run and list the streams that SQL has defined."""


@streams.command(name="list")
@remote_options
def list_streams(*, remote: Remote, as_json: bool) -> None:
    """List the streams, and how far they are."""
    need_spark()
    from weir.spark.sql.console import Console, Rows
    from weir.spark.sql.statements import ShowStreams

    found = Console(_no_spark, place_of(remote, "unused:0")).do(ShowStreams())
    if isinstance(found, Rows):
        print_rows(found.columns, found.rows, as_json=as_json)


@streams.command()
@click.option(
    "--checkpoints",
    metavar="FOLDER",
    help="Where streams keep what they need to go on; by default beside the data.",
)
@click.option("--kafka", metavar="HOST:PORT", help="The Kafka listener, if the server's own word does not do.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs queries.")
@click.option("--memory", default="1g", show_default=True, help="Memory of Spark's driver.")
@click.option("--patience", type=click.IntRange(min=1), metavar="S", help="End if the broker is away for so long.")
@click.option("--leave-when-idle", is_flag=True, help="End when there are no streams for a minute.")
@remote_options
def run(
    *,
    checkpoints: str | None,
    kafka: str | None,
    master: str,
    memory: str,
    patience: int | None,
    leave_when_idle: bool,
    remote: Remote,
    as_json: bool,
) -> None:
    """Run the streams: one process does it for all of them."""
    need_spark()
    from weir.spark.sessions import session
    from weir.spark.sql import runner as runners

    logging.getLogger("weir").setLevel(logging.INFO)
    place = place_of(remote, kafka)
    folder = checkpoint_folder(place.access, checkpoints)
    stopped: list[int] = []
    # Before Spark starts, which has the JVM ignore Ctrl-C; the loop ends by itself, and closes what it runs.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: stopped.append(got))
    spark = session("weir-streams", master=master, config={"spark.driver.memory": memory})
    runner = runners.Runner(spark, place, str(folder))
    try:
        _take(runner, stopped)
        click.echo(f"running streams as process {os.getpid()}; checkpoints in {folder}")
        runners.run(runner, lambda: bool(stopped), patience_s=patience, leave_when_idle=leave_when_idle)
        runner.close()
    finally:
        spark.stop()


def _take(runner: "Runner", stopped: list[int]) -> None:
    """Become the runner, also if the last one died a moment ago."""
    deadline = time.monotonic() + _LEASE_PATIENCE_S
    while not stopped:
        try:
            runner.take()
            return
        except RunnerBusyError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def _no_spark() -> NoReturn:
    raise AssertionError("no Spark is needed to list streams")
