"""`weir streams`: list and control the streams that SQL defines, and run them on Spark.

Pause, resume and drop need no Spark: they change the stored definition, and the runner follows.
"""

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

from weir.cli.arguments import complete_stream
from weir.cli.command import examples
from weir.cli.output import Column, Output, done, print_json
from weir.cli.remote import Remote, remote_options
from weir.cli.spark_session import need_spark, place_of, spark_config
from weir.cli.sql_views import print_watched
from weir.client import streams as rest
from weir.client.admin import Access
from weir.client.streams import COLUMNS, FIELDS, Defined, described, listed
from weir.model.definitions import Wanted
from weir.model.errors import (
    NetworkError,
    RunnerBusyError,
    SparkJvmError,
    SqlError,
    SqlStreamNotFoundError,
    TopicClosedError,
)
from weir.model.topics import TopicName
from weir.runtime.real import real_runtime
from weir.runtime.real import run as real_run

if TYPE_CHECKING:
    from weir.spark.sql.runner import Runner


#: The longest wait for the runner's answer, and the polling interval.
_PATIENCE_S, _LOOK_S = 15.0, 0.3
_SERVER_PATIENCE_S = 5.0


def _names(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_stream)(
        command
    )


@click.command(
    epilog="""
\b
Examples:
  weir streams pause big
  weir streams pause sales.by_hour sales.by_day

A stream stops after its current batch. New input waits, and resume continues from there.
"""
)
@_names
@remote_options(changes=True)
def pause(*, names: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Pause streams until weir streams resume."""
    access = access_of(remote)
    for found in found_streams(access, names):
        _want(access, found, Wanted.PAUSED)
        state = _state(access, found, ("paused",))
        what = "is paused" if state == "paused" else "pauses when its runner reads the change"
        done(f"stream {short_name(found.stream.name)} {what}", as_json=as_json, stream=str(found.stream.name))


@click.command(
    epilog="""
\b
Examples:
  weir streams resume big
  weir streams resume sales.by_hour --json

The stream continues with the waiting input. Exits with 1 if it fails at once; see `weir streams describe`.
"""
)
@_names
@remote_options(changes=True)
def resume(*, names: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Resume paused streams."""
    access = access_of(remote)
    for found in found_streams(access, names):
        _want(access, found, Wanted.RUNNING)
        shown = short_name(found.stream.name)
        state = _state(access, found, ("running", "failed"))
        if state == "failed":
            raise SqlError(f"stream {shown} is resumed, and fails", hint=f"weir streams describe {shown} says why")
        what = "runs" if state == "running" else "is resumed; it runs once weir streams run is up"
        done(f"stream {shown} {what}", as_json=as_json, stream=str(found.stream.name))


@click.command(
    epilog="""
\b
Examples:
  weir streams drop big
  weir streams drop big --if-exists

The output stays: delete its topic with weir topics delete.
"""
)
@_names
@click.option("--if-exists", is_flag=True, help="Ignore streams that do not exist.")
@remote_options(changes=True)
def drop(*, names: tuple[str, ...], if_exists: bool, remote: Remote, as_json: bool) -> None:
    """Drop streams; their output topics stay."""
    access = access_of(remote)
    for found in found_streams(access, names, missing_ok=if_exists):
        rest.drop_stream(access, found.stream.name)
        shown = short_name(found.stream.name)
        done(f"stream {shown} is dropped; its topic stays", as_json=as_json, stream=str(found.stream.name))


def access_of(remote: Remote) -> Access:
    return remote.access(_SERVER_PATIENCE_S)


def found_streams(access: Access, names: Sequence[str], *, missing_ok: bool = False) -> list[Defined]:
    """Find all named streams before a command changes one of them."""
    listed = rest.all_streams(access)
    found: list[Defined] = []
    for name in names:
        one = next((one for one in listed if name in names_of(one.stream.name)), None)
        if one is not None:
            found.append(one)
        elif not missing_ok:
            known = ", ".join(short_name(one.stream.name) for one in listed[:5])
            hint = f"known streams: {known}" if known else "no streams are defined; weir sql defines them"
            raise SqlStreamNotFoundError(f"there is no stream {name}", hint=hint)
    return found


def short_name(topic: TopicName) -> str:
    """The name in SQL: bare in public/default."""
    return ".".join(short_parts(topic))


def short_parts(topic: TopicName) -> tuple[str, ...]:
    space = topic.namespace
    if str(space) == "public/default":
        return (topic.local,)
    return (space.name, topic.local) if space.tenant == "public" else (space.tenant, space.name, topic.local)


def names_of(topic: TopicName) -> set[str]:
    """Every form of the name, as a table and as a topic."""
    whole = (topic.namespace.tenant, topic.namespace.name, topic.local)
    shortest = len(short_parts(topic))
    ways = [whole[3 - length :] for length in range(shortest, 4)]
    plain = {".".join(parts) for parts in ways}
    quoted = {".".join(part if part.isidentifier() else f"`{part}`" for part in parts) for parts in ways}
    return plain | quoted | {"/".join(whole), str(topic)}


def _want(access: Access, found: Defined, wanted: Wanted) -> None:
    stream = found.stream
    rest.put_stream(
        access, stream.name, sql=stream.sql, sources=stream.sources, options=stream.options, wanted=wanted
    )


def _state(access: Access, found: Defined, awaited: tuple[str, ...]) -> str:
    """The state that its runner reports; "" without a runner, or if it does not answer in time."""
    if rest.runner(access).where is None:
        return ""
    clock = real_runtime().clock
    deadline = clock.monotonic() + _PATIENCE_S
    before = found.progress
    while clock.monotonic() < deadline:
        told = rest.get_stream(access, found.stream.name).progress
        if told is not None and told.state in awaited and told != before:
            return told.state
        if told is not None and told.state == awaited[0]:
            return told.state
        real_run(lambda runtime: runtime.clock.sleep(_LOOK_S))
    return ""


T = TypeVar("T")

#: The refresh interval of --watch.
_WATCH_S = 2.0
#: How often a standby process checks for the runner.
_STANDBY_S = 2.0
#: Columns of the list: for -o wide only, and those that shrink in a narrow terminal.
_WIDE = ("state rows", "state bytes", "last batch", "next try")
_CUT = {"stream": "start", "error": "end"}
#: A killed runner keeps its role until its lease expires.
_LEASE_PATIENCE_S = 20.0
#: A service may start before its broker does.
_BROKER_PATIENCE_S = 60.0


@click.group(
    epilog="""
\b
Examples:
  weir streams run                 keep all streams running, until Ctrl-C
  weir streams list                state, rows per second, lag and size of the state
  weir streams list --watch        the same, every two seconds
  weir streams describe big
  weir streams pause big           and resume, and drop; only run needs Spark
"""
)
def streams() -> None:
    """Run, list, watch, pause, resume and drop the streams that SQL defines."""


for _change in (drop, pause, resume):
    streams.add_command(_change)


def _watch_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("-w", "--watch", is_flag=True, help="Refresh every two seconds, until Ctrl-C.")(command)


@streams.command(
    name="list", epilog=examples("weir streams list", "weir streams list --watch", "weir streams list -o wide")
)
@_watch_option
@remote_options
def list_streams(*, watch: bool, remote: Remote, out: Output) -> None:
    """List the streams: state, rows per second, lag, and size of their state."""
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
    """Show one stream: its query, its progress, and the reason of a failure."""
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
    """The streams at one moment, with the columns and rows to print."""

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
    except BrokenPipeError:  # the reader closed the pipe
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
    help="Checkpoints of streams; by default beside the data.",
)
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="The Kafka listener, if the address that the server announces does not work.",
)
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs queries.")
@click.option("--memory", default="1g", show_default=True, help="Memory of Spark's driver.")
@click.option(
    "--patience", type=click.IntRange(min=1), metavar="S", help="Exit if the broker is unavailable for S seconds."
)
@click.option("--standby", is_flag=True, help="Wait while another process runs the streams.")
@click.option("--debug", is_flag=True, help="Log errors of Spark and Java in full.")
@click.option("--leave-when-idle", is_flag=True, help="Exit after a minute without streams.")
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
    """Run the streams: one process runs all of them; with authentication it needs a superuser's token."""
    need_spark()
    from py4j.protocol import Py4JError

    from weir.spark.serving.session import checkpoint_folder
    from weir.spark.spark_session import session
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
        if starting:  # no stream runs yet that needs a clean stop
            raise SystemExit(0)

    # Before Spark starts, because its JVM ignores Ctrl-C; the loop ends by itself and closes its streams.
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
        runner.close()  # so that the next process need not wait for the lease to expire
        raise
    finally:
        with suppress(OSError, Py4JError):  # the JVM itself may have ended
            spark.stop()


def _stand_by(access: "Access") -> None:
    """Wait until no process runs the streams, before starting Spark."""
    from weir.client.streams import runner

    said = False
    while (found := _asked(lambda: runner(access))) is None or found.where is not None:
        if found is not None and not said:
            click.echo(f"{found.where} runs the streams; this process is on standby")
            said = True
        time.sleep(_STANDBY_S)


def _take(runner: "Runner", stopped: list[int], *, patience_s: float | None) -> None:
    """Acquire the runner lease; wait for the lease of a previous runner that died."""
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
    """Return None while the broker is unavailable."""
    try:
        return ask()
    except (NetworkError, TopicClosedError):
        return None
