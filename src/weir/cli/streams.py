"""`weir streams`: what SQL has defined, and the process that runs it.

`weir streams pause | resume | drop`: what a stream shall do, changed without Spark; its runner follows.
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


#: How long the runner's word is waited for, and how often it is looked for.
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

It stops at the end of the batch that it is in; what waits for it is kept, and it goes on from there.
"""
)
@_names
@remote_options(changes=True)
def pause(*, names: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Let streams pause, until they are resumed."""
    access = access_of(remote)
    for found in found_streams(access, names):
        _want(access, found, Wanted.PAUSED)
        state = _state(access, found, ("paused",))
        what = "is paused" if state == "paused" else "pauses as soon as its runner sees it"
        done(f"stream {short_name(found.stream.name)} {what}", as_json=as_json, stream=str(found.stream.name))


@click.command(
    epilog="""
\b
Examples:
  weir streams resume big
  weir streams resume sales.by_hour --json

It goes on with what came meanwhile. Ends with 1 if it fails at once; `weir streams describe` says more.
"""
)
@_names
@remote_options(changes=True)
def resume(*, names: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Let paused streams run again."""
    access = access_of(remote)
    for found in found_streams(access, names):
        _want(access, found, Wanted.RUNNING)
        shown = short_name(found.stream.name)
        state = _state(access, found, ("running", "failed"))
        if state == "failed":
            raise SqlError(f"stream {shown} is resumed, and fails", hint=f"weir streams describe {shown} says why")
        what = "runs" if state == "running" else "is resumed; it runs as soon as weir streams run does"
        done(f"stream {shown} {what}", as_json=as_json, stream=str(found.stream.name))


@click.command(
    epilog="""
\b
Examples:
  weir streams drop big
  weir streams drop big --if-exists

What it has written stays: delete its topic with weir topics delete.
"""
)
@_names
@click.option("--if-exists", is_flag=True, help="One that is not there is no error.")
@remote_options(changes=True)
def drop(*, names: tuple[str, ...], if_exists: bool, remote: Remote, as_json: bool) -> None:
    """End streams for good; the topics that they wrote stay."""
    access = access_of(remote)
    for found in found_streams(access, names, missing_ok=if_exists):
        rest.drop_stream(access, found.stream.name)
        shown = short_name(found.stream.name)
        done(f"stream {shown} is dropped; its topic stays", as_json=as_json, stream=str(found.stream.name))


def access_of(remote: Remote) -> Access:
    return remote.access(_SERVER_PATIENCE_S)


def found_streams(access: Access, names: Sequence[str], *, missing_ok: bool = False) -> list[Defined]:
    """All of them, before anything is done to one."""
    listed = rest.all_streams(access)
    found: list[Defined] = []
    for name in names:
        one = next((one for one in listed if name in names_of(one.stream.name)), None)
        if one is not None:
            found.append(one)
        elif not missing_ok:
            known = ", ".join(short_name(one.stream.name) for one in listed[:5])
            hint = f"there are {known}" if known else "there are none; weir sql defines them"
            raise SqlStreamNotFoundError(f"there is no stream {name}", hint=hint)
    return found


def short_name(topic: TopicName) -> str:
    """As SQL writes it: bare in public/default."""
    return ".".join(short_parts(topic))


def short_parts(topic: TopicName) -> tuple[str, ...]:
    space = topic.namespace
    if str(space) == "public/default":
        return (topic.local,)
    return (space.name, topic.local) if space.tenant == "public" else (space.tenant, space.name, topic.local)


def names_of(topic: TopicName) -> set[str]:
    """Every way to write it, as a table and as a topic."""
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
    """What its runner says once it has seen it; "" if there is none, or it takes its time."""
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
