"""`weir streams`: what SQL has defined, and the process that runs it."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weir.cli.examples import examples
from weir.cli.output import Column, Output, print_json
from weir.cli.remote import Remote, remote_options
from weir.cli.spark.common import need_spark, place_of, spark_config
from weir.cli.spark.sql_views import print_watched
from weir.cli.spark.stream_changes import access_of, drop, found_streams, pause, resume, short_name
from weir.client.stream_rows import COLUMNS, FIELDS, described, listed
from weir.model.errors import NetworkError, RunnerBusyError, SparkJvmError, TopicClosedError

if TYPE_CHECKING:
    from weir.client.blocking import Access
    from weir.spark.sql.runner import Runner

T = TypeVar("T")

#: How often the same is shown to those who watch.
_WATCH_S = 2.0
#: How often one that stands by looks whether it is needed.
_STANDBY_S = 2.0
#: Of the list: what is shown with -o wide alone, and what gives way in a narrow terminal.
_WIDE = ("state rows", "state bytes", "last batch", "next try")
_CUT = {"stream": "start", "error": "end"}
#: One that was killed is the runner until its lease runs out.
_LEASE_PATIENCE_S = 20.0
#: A service may be started before its broker is.
_BROKER_PATIENCE_S = 60.0


@click.group(
    epilog="""
\b
Examples:
  weir streams run                 keep all streams running, until Ctrl-C
  weir streams list                state, rows per second, lag and size of the state
  weir streams list --watch        the same, again every two seconds
  weir streams describe big
  weir streams pause big           and resume, and drop; only run needs Spark
"""
)
def streams() -> None:
    """Run, list, watch, pause, resume and drop the streams that SQL has defined."""


for _change in (drop, pause, resume):
    streams.add_command(_change)


def _watch_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("-w", "--watch", is_flag=True, help="Again every two seconds, until Ctrl-C.")(command)


@streams.command(
    name="list", epilog=examples("weir streams list", "weir streams list --watch", "weir streams list -o wide")
)
@_watch_option
@remote_options
def list_streams(*, watch: bool, remote: Remote, out: Output) -> None:
    """List the streams, and how far they are: what they do, rows per second, lag, and size of their state."""
    access = access_of(remote)

    def look() -> Listed:
        return Listed(COLUMNS, listed(access, short_name))

    if watch:
        _watch(look, out)
    elif out.json:
        _print_json(look())
    else:
        columns = [Column(name, name in _WIDE, _CUT.get(name, "")) for name in COLUMNS]
        out.table(columns, look().rows)


@streams.command(
    epilog="""
\b
Examples:
  weir streams describe big
  weir streams describe sales.by_hour --watch
  weir streams status revenue            the same
"""
)
@click.argument("name")
@_watch_option
@remote_options
def describe(*, name: str, watch: bool, remote: Remote, out: Output) -> None:
    """Show all about one stream: its query, how far it is, and why it fails if it does."""
    access = access_of(remote)

    def look() -> Listed:
        (found,) = found_streams(access, (name,))
        return Listed(FIELDS, described(access, found, short_name))

    if watch:
        _watch(look, out)
    elif out.json:
        _print_json(look())
    else:
        out.fields([(str(what), value) for what, value in look().rows])


streams.add_command(describe, "status")


@dataclass(frozen=True, slots=True)
class Listed:
    """What was found, at one moment."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def _print_json(found: Listed) -> None:
    print_json([dict(zip(found.columns, row, strict=True)) for row in found.rows])


def _watch(look: Callable[[], Listed], out: Output) -> None:
    def again() -> Generator[Listed]:
        while True:
            yield look()
            time.sleep(_WATCH_S)

    try:
        print_watched(again(), out)
    except KeyboardInterrupt:
        click.echo("", err=True)
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@streams.command(
    epilog="""
\b
Examples:
  weir streams run
  weir streams run --checkpoints /var/lib/streams --url https://weir:8443 --ca ca.pem --token file:runner.token
"""
)
@click.option(
    "--checkpoints",
    metavar="FOLDER",
    help="Where streams keep what they need to go on; by default beside the data.",
)
@click.option("--kafka", metavar="HOST:PORT", help="The Kafka listener, if the server's own word does not do.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs queries.")
@click.option("--memory", default="1g", show_default=True, help="Memory of Spark's driver.")
@click.option("--patience", type=click.IntRange(min=1), metavar="S", help="End if the broker is away for so long.")
@click.option("--standby", is_flag=True, help="While another one runs the streams, wait until it does not.")
@click.option("--debug", is_flag=True, help="Log all that Spark and Java say of a stream that fails.")
@click.option("--leave-when-idle", is_flag=True, help="End when there are no streams for a minute.")
@remote_options(changes=True)
def run(
    *,
    checkpoints: str | None,
    kafka: str | None,
    master: str,
    memory: str,
    patience: int | None,
    leave_when_idle: bool,
    standby: bool,
    debug: bool,
    remote: Remote,
    as_json: bool,
) -> None:
    """Run the streams: one process does it for all of them, as a superuser where there are tokens."""
    need_spark()
    from py4j.protocol import Py4JError

    from weir.spark.serving.runner_starter import checkpoint_folder
    from weir.spark.sessions import session
    from weir.spark.sql import runner as runners

    logging.getLogger("weir").setLevel(logging.INFO)
    if debug:
        logging.getLogger(runners.__name__).setLevel(logging.DEBUG)
    place = place_of(remote, kafka, patience_s=_BROKER_PATIENCE_S)
    runners.check_allowed(place.access)
    folder = checkpoint_folder(place.access, checkpoints)
    stopped: list[int] = []
    starting = True

    def stop(number: int, _frame: object) -> None:
        stopped.append(number)
        if starting:  # nothing runs yet that would have to be closed
            raise SystemExit(0)

    # Before Spark starts, which has the JVM ignore Ctrl-C; the loop ends by itself, and closes what it runs.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if standby:
        _stand_by(place.access)
    config = {"spark.driver.memory": memory, **spark_config()}
    spark = session("weir-streams", master=master, config=config)
    starting = False
    runner = runners.Runner(spark, place, str(folder))
    try:
        _take(runner, stopped, patience_s=None if standby else _LEASE_PATIENCE_S)
        click.echo(f"running streams as process {os.getpid()}; checkpoints in {folder}")
        runners.run(runner, lambda: bool(stopped), patience_s=patience, leave_when_idle=leave_when_idle)
        runner.close()
    except SparkJvmError:
        runner.close()  # the next process need not wait for the lease to run out
        raise
    finally:
        with suppress(OSError, Py4JError):  # the JVM may be what has ended
            spark.stop()


def _stand_by(access: "Access") -> None:
    """Until nobody runs the streams; before Spark is started."""
    from weir.client.streams import runner

    said = False
    while (found := _asked(lambda: runner(access))) is None or found.where is not None:
        if found is not None and not said:
            click.echo(f"the streams are run by {found.where}; this one stands by")
            said = True
        time.sleep(_STANDBY_S)


def _take(runner: "Runner", stopped: list[int], *, patience_s: float | None) -> None:
    """Become the runner, also if the last one died a moment ago."""
    deadline = None if patience_s is None else time.monotonic() + patience_s
    while not stopped:
        try:
            runner.take()
            return
        except RunnerBusyError:
            if deadline is not None and time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def _asked(ask: Callable[[], T]) -> T | None:
    """None while the broker is away."""
    try:
        return ask()
    except (NetworkError, TopicClosedError):
        return None
