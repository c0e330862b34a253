"""`weir functions`: deploy, update, start, stop, delete, list and watch functions of messages, and run them."""

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from weir.cli.functions.changes import delete, start, stop
from weir.cli.functions.deploy import deploy, update
from weir.cli.functions.names import access_of, find
from weir.cli.lazy import LazyGroup
from weir.cli.output import Column, Output
from weir.cli.remote import Remote, remote_options
from weir.cli.spark.stream_changes import short_name
from weir.client import functions as rest
from weir.client.functions import Deployed
from weir.model.errors import ConfigError, NetworkError, RunnerBusyError, TopicClosedError
from weir.model.functions import FunctionStats

_RUNNER_PATIENCE_S = 60.0
_LEASE_PATIENCE_S = 20.0
_STANDBY_S = 2.0
#: A worker that has not said anything for so long is not known to run.
_SILENT_MS = 30_000


@click.group(
    cls=LazyGroup,
    lazy={"logs": "weir.cli.functions.logs:logs"},
    epilog="""
\b
Examples:
  weir functions deploy f.py:clean --in orders --out clean
  weir functions run                    keep all functions running, until Ctrl-C; or weir up --functions
  weir functions list
  weir functions stats clean            received, sent, failed, lag, latency
  weir functions logs clean -f          what it prints and logs
  weir functions update clean f.py      the next version goes on where this one is
  weir functions stop clean             and start, and delete
""",
)
def functions() -> None:
    """Deploy Python functions of messages, run them as subscriptions, and look after them."""


for _command in (deploy, update, start, stop, delete):
    functions.add_command(_command)


@functions.command(
    name="list",
    epilog="""
\b
Examples:
  weir functions list
  weir functions list -o wide
  weir functions list --json
""",
)
@remote_options
def list_functions(*, remote: Remote, out: Output) -> None:
    """List the functions: what they read and write, and how they go."""
    found = rest.all_functions(access_of(remote))
    columns = [
        Column("NAME"),
        Column("VERSION"),
        Column("STATE"),
        Column("INPUTS"),
        Column("OUTPUT"),
        Column("RECEIVED/S"),
        Column("LAG"),
        Column("FAILED"),
        Column("DEAD"),
        Column("ON", True),
        Column("ERROR", True),
    ]
    out.table(columns, [_row(one) for one in found])


def _row(one: Deployed) -> list[object]:
    function, stats = one.function, one.stats
    inputs = ", ".join(short_name(topic) for topic in function.inputs)
    output = "" if function.output is None else short_name(function.output)
    told = stats or FunctionStats(function.id, function.version, "")
    return [
        short_name(function.name),
        function.version,
        state_of(one),
        inputs,
        output,
        told.received_per_second,
        told.lag,
        told.failed,
        told.dead,
        function.options.get("on", "light"),
        told.error,
    ]


def state_of(one: Deployed) -> str:
    """In a word; what nobody runs, waits."""
    function, stats = one.function, one.stats
    silent = stats is None or (
        stats.state in ("starting", "running") and time.time_ns() // 1_000_000 - stats.reported_ms > _SILENT_MS
    )
    if function.wanted.value == "stopped":
        return "stopped" if silent or stats is None or stats.state != "running" else "stopping"
    if silent or stats is None:
        return "waiting"
    if stats.version != function.version:
        return "updating"
    return "starting" if stats.state == "stopped" else stats.state


@functions.command(
    epilog="""
\b
Examples:
  weir functions describe clean
  weir functions describe clean --code         with the text of its file
  weir functions describe sales/clean --json
"""
)
@click.argument("name")
@click.option("--code", is_flag=True, help="Print the text of its file instead.")
@remote_options
def describe(*, name: str, code: bool, remote: Remote, out: Output) -> None:
    """Show all about one function: its topics, options, versions and how it goes."""
    found = find(access_of(remote), name)
    function = found.function
    if code:
        click.echo(function.code, nl=not function.code.endswith("\n"))
        return
    rows: list[tuple[str, object]] = [
        ("name", short_name(function.name)),
        ("state", state_of(found)),
        ("version", function.version),
        ("code", f"{function.file}:{function.entry}"),
        ("inputs", ", ".join(map(str, function.inputs))),
        ("output", "" if function.output is None else str(function.output)),
        ("subscription", function.subscription),
        *((f"option {key}", text) for key, text in sorted(function.options.items())),
        ("deployed by", function.role),
        ("deployed", _moment(function.created_ms)),
        ("updated", _moment(function.updated_ms)),
    ]
    out.fields([*rows, *_stats_rows(found.stats)])


@functions.command(
    epilog="""
\b
Examples:
  weir functions stats clean
  weir functions stats clean --json
"""
)
@click.argument("name")
@remote_options
def stats(*, name: str, remote: Remote, out: Output) -> None:
    """Show how a function goes: messages since its worker began, lag, latency and the size of its state."""
    found = find(access_of(remote), name)
    out.fields([("state", state_of(found)), *_stats_rows(found.stats)])


def _stats_rows(told: FunctionStats | None) -> list[tuple[str, object]]:
    if told is None:
        return []
    return [
        ("received", told.received),
        ("sent", told.sent),
        ("failed", told.failed),
        ("tried again", told.retried),
        ("dead letters", told.dead),
        ("received per second", told.received_per_second),
        ("lag", told.lag),
        ("latency p50 ms", told.latency_p50_ms),
        ("latency p99 ms", told.latency_p99_ms),
        ("state keys", told.state_keys),
        ("state bytes", told.state_bytes),
        ("last error", told.error),
        ("instances", told.instances),
        ("restarts", told.restarts),
        ("failures in a row", told.failures),
        ("started again", _moment(told.next_try_ms)),
        ("runs at", told.where),
        ("runs since", _moment(told.started_ms)),
    ]


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if ms else ""


@functions.command(
    epilog="""
\b
Examples:
  weir functions run
  weir functions run --standby --url https://weir:8443 --ca ca.pem --token file:runner.token

One process runs the functions of a Weir: each in a worker of its own, those on Spark with a Spark of their own.
It needs to be a superuser where there are tokens. weir up --functions does the same beside the broker.
"""
)
@click.option("--kafka", metavar="HOST:PORT", help="The Kafka listener, if the server's own word does not do.")
@click.option("--checkpoints", metavar="FOLDER", help="Where functions on Spark keep what they need to go on.")
@click.option("--standby", is_flag=True, help="While another one runs the functions, wait until it does not.")
@click.option(
    "--deployed-by",
    "deployers",
    multiple=True,
    metavar="ROLE",
    help="Run functions that this role has deployed, and no others; may be given several times.",
)
@remote_options(changes=True)
def run(
    *,
    kafka: str | None,
    checkpoints: str | None,
    standby: bool,
    deployers: tuple[str, ...],
    remote: Remote,
    as_json: bool,
) -> None:
    """Run the functions, until a signal ends it; what is under way is finished then."""
    from weir.functions.runner import Runner, WorkerOptions

    verbose = logging.getLogger().isEnabledFor(logging.INFO)
    logging.getLogger("weir").setLevel(logging.INFO)
    access = access_of(remote, patience_s=_RUNNER_PATIENCE_S)
    if not rest.runner(access).allowed:
        raise ConfigError("functions are run by a superuser", hint="give a superuser's --token")
    options = WorkerOptions(kafka, verbose=verbose, deployers=deployers)
    if checkpoints is not None:
        options = replace(options, checkpoints=Path(checkpoints).absolute())
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda found, _frame: stopped.append(found))
    while not stopped:
        runner = Runner(access, options)
        try:
            _take(runner.take, stopped, standby=standby)
            if stopped:
                break
            click.echo(f"running functions as process {os.getpid()}")
            runner.run(lambda: bool(stopped))
        except RunnerBusyError:
            if not standby:
                raise
        finally:
            runner.close()


def _take(take: Callable[[], None], stopped: Sequence[int], *, standby: bool) -> None:
    """Become the runner, also if the last one died a moment ago."""
    deadline = time.monotonic() + _LEASE_PATIENCE_S
    while not stopped:
        try:
            take()
            return
        except RunnerBusyError:
            if not standby and time.monotonic() > deadline:
                raise
        except (NetworkError, TopicClosedError):
            if not standby:
                raise
        time.sleep(_STANDBY_S if standby else 0.5)
