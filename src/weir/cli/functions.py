"""`weir functions`: deploy, update, start, stop, delete and watch Python functions of messages, and run them.

Deploy and update check code, topics and options before they send them. Start and stop wait until the runner
reports the new state. Logs come from the function's log topic.
"""

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from weir.cli.command import LazyGroup
from weir.cli.import_check import check_imports
from weir.cli.output import Column, Output, done
from weir.cli.remote import Remote, remote_options
from weir.cli.streams import names_of, short_name
from weir.client import functions as rest
from weir.client.admin import Access, ask_v2, topic_path
from weir.client.functions import Definition, Deployed
from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.consumer import Subscribing
from weir.client.pulsar.messages import Incoming
from weir.functions.function_code import look
from weir.functions.options import FunctionOptions, from_text, to_text
from weir.functions.subscriptions import leave, note, noted, subscribe
from weir.model.definitions import Function, FunctionStats, FunctionWanted, check_reachable
from weir.model.errors import (
    ConfigError,
    FunctionError,
    FunctionNotFoundError,
    NetworkError,
    RunnerBusyError,
    TopicClosedError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.runtime.real import real_runtime
from weir.runtime.real import run as real_run
from weir.wire.pulsar.ids import MessageId

_NAMES_PATIENCE_S = 5.0


def access_of(remote: Remote, *, patience_s: float = _NAMES_PATIENCE_S) -> Access:
    """`patience_s`: how long the server may be unavailable."""
    return remote.access(patience_s)


def find(access: Access, name: str) -> Deployed:
    """Find a function by any form of its name; FunctionNotFoundError lists the existing ones."""
    listed = rest.all_functions(access)
    for one in listed:
        space = one.function.name.namespace
        if name in names_of(one.function.name) | {f"{space.name}/{one.function.name.local}"}:
            return one
    known = ", ".join(short_name(one.function.name) for one in listed[:5])
    hint = f"known functions: {known}" if known else "no functions are deployed; weir functions deploy deploys one"
    raise FunctionNotFoundError(f"there is no function {name}", hint=hint)


_PATIENCE_S, _LOOK_S = 40.0, 0.2


@click.command(
    epilog="""
\b
Examples:
  weir functions stop clean
  weir functions stop clean tidy

A function finishes its current batch. Later messages wait until weir functions start.
"""
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@remote_options(changes=True)
def stop(*, names: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Stop functions until weir functions start; their messages wait."""
    access = access_of(remote)
    named = [find(access, name).function for name in names]
    # Send all requests before waiting for the first.
    for function in [rest.want(access, one.name, FunctionWanted.STOPPED).function for one in named]:
        stopped = _reached(access, function, ("stopped",)) == "stopped"
        what = "is stopped" if stopped else "stops when its runner reads the change"
        done(f"function {short_name(function.name)} {what}", as_json=as_json, function=str(function.name))


@click.command(
    epilog="""
\b
Examples:
  weir functions start clean

The function resumes with the waiting messages. Exits with 1 if it fails at once; see weir functions describe.
"""
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@remote_options(changes=True)
def start(*, names: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Start stopped functions."""
    access = access_of(remote)
    named = [find(access, name).function for name in names]
    for function in [rest.want(access, one.name, FunctionWanted.RUNNING).function for one in named]:
        shown, state = short_name(function.name), _reached(access, function, ("running", "failed"))
        if state == "failed":
            raise FunctionError(f"function {shown} fails", hint=f"weir functions describe {shown} says why")
        what = "runs" if state == "running" else "is started; it runs once weir functions run is up"
        done(f"function {shown} {what}", as_json=as_json, function=str(function.name))


@click.command(
    epilog="""
\b
Examples:
  weir functions delete clean
  weir functions delete clean --if-exists

Its subscriptions, its state and its pending retries are deleted. Its output, its dead letters and its log
stay.
"""
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="Ignore functions that do not exist.")
@remote_options(changes=True)
def delete(*, names: tuple[str, ...], if_exists: bool, remote: Remote, as_json: bool) -> None:
    """Delete functions and their state; their output topics stay."""
    access = access_of(remote)
    named: list[Function] = []
    for name in dict.fromkeys(names):
        try:
            named.append(find(access, name).function)
        except FunctionNotFoundError:
            if not if_exists:
                raise
    for function in named:
        rest.want(access, function.name, FunctionWanted.STOPPED)
    for function in named:
        _reached(access, function, ("stopped",))
        _clean(access, function)
        rest.delete(access, function.name)
        shown = short_name(function.name)
        done(f"function {shown} is deleted; its output stays", as_json=as_json, function=str(function.name))


def _clean(access: Access, function: Function) -> None:
    """Clean up before the definition is deleted: after an interruption, the command can run again."""
    known: list[TopicName] = []
    with suppress(WeirError):
        known = noted(access, function)
    for topic in dict.fromkeys([*function.inputs, *known]):
        with suppress(WeirError):
            leave(access, function, topic)
    for topic in (function.retry_topic, function.state_topic):
        partitions = 0
        with suppress(WeirError):
            partitions = ask_v2(access, "GET", topic_path(topic, "partitions"))["partitions"]
        with suppress(WeirError):
            path = topic_path(topic, "partitions") if partitions else topic_path(topic)
            ask_v2(access, "DELETE", f"{path}?force=true")


def _reached(access: Access, function: Function, awaited: tuple[str, ...]) -> str:
    """The state that its runner reports; "" without a runner, or if it does not answer in time."""
    if rest.runner(access).where is None:
        return ""
    clock = real_runtime().clock
    deadline = clock.monotonic() + _PATIENCE_S
    while clock.monotonic() < deadline:
        told = rest.get_function(access, function.name).stats
        if told is not None and told.state in awaited and told.version == function.version:
            return told.state
        real_run(lambda runtime: runtime.clock.sleep(_LOOK_S))
    return ""


_MOST_BYTES = 500_000


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    given = [
        click.option("--in", "inputs", multiple=True, metavar="TOPIC", help="An input topic; may be repeated."),
        click.option("--out", "output", metavar="TOPIC", help="The output topic; '' for none."),
        click.option(
            "--on",
            type=click.Choice(["light", "spark"]),
            help="Where it runs; light: in processes beside the broker.",
        ),
        click.option("--parallelism", type=int, metavar="N", help="Worker processes; each key has one. [1]"),
        click.option("--retries", "retry", metavar="SCHEDULE", help="Retry delays: '1s 10s 1m'. [1s..1m]"),
        click.option(
            "--max-deliveries", type=int, metavar="N", help="Deliveries before a dead letter; 0: never. [5]"
        ),
        click.option(
            "--dead-letter-topic", metavar="TOPIC", help="Topic of dead letters. [<topic>-fn-<name>-DLQ]"
        ),
        click.option("--log-topic", metavar="TOPIC", help="Topic of prints and logs; '' for none. [<name>-logs]"),
        click.option(
            "--log-level",
            type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
            help="The lowest level to log. [INFO]",
        ),
        click.option(
            "--start",
            type=click.Choice(["earliest", "latest"]),
            help="Start position of a new function. [earliest]",
        ),
        click.option("--batch-messages", type=int, metavar="N", help="Most messages in one commit. [1000]"),
        click.option(
            "--linger", "linger_ms", type=int, metavar="MS", help="How long a batch waits for more messages. [0]"
        ),
        click.option("--timeout", "timeout_s", type=float, metavar="S", help="Time limit for one message. [none]"),
        click.option("--ordered/--unordered", default=None, help="Whether a failed message blocks later ones."),
        click.option(
            "--stateful/--stateless", default=None, help="Whether it keeps state by key; default: by its code."
        ),
        click.option(
            "--batch/--messages", default=None, help="Whether it takes Arrow batches; default: by its signature."
        ),
        click.option(
            "--set", "config", multiple=True, metavar="NAME=VALUE", help="For context.config; may be repeated."
        ),
        click.option("--master", help="Where Spark runs it. [local[*]]"),
        click.option("--memory", help="Memory of Spark's driver. [1g]"),
    ]
    for option in reversed(given):
        command = option(command)
    return command


@click.command(
    epilog="""
\b
Examples:
  weir functions deploy f.py:clean --in orders --out clean
  weir functions deploy f.py:clean --in orders --out clean --name tidy --parallelism 4 --retries '1s 10s 1m'
  weir functions deploy f.py:count --in orders --out counts --set currency=EUR --log-topic ops
  weir functions deploy heavy.py:score --in orders --out scores --on spark
  weir functions deploy f.py:clean --in sales/eu/orders --out sales/eu/clean --name sales/eu/clean

The function takes a message, or a message and a context, or a pyarrow.RecordBatch
(docs/reference/functions.md). weir functions run, or weir up --functions, runs it. With authentication, deploying
needs a superuser's token.
"""
)
@click.argument("code", metavar="FILE.py[:FUNCTION]")
@click.option("--name", help="NAME, or TENANT/NAMESPACE/NAME of the function; by default its name in the file.")
@_options
@remote_options(changes=True)
def deploy(*, code: str, name: str | None, remote: Remote, as_json: bool, **given: Any) -> None:
    """Deploy a Python function of messages: it runs as a subscription of its inputs."""
    read = _read(code)
    if not given["inputs"]:
        raise ConfigError("the function reads nothing", hint="name a topic with --in")
    function_name = TopicName.parse(name or read[2].rpartition(".")[2])
    definition = _definition(None, read, function_name, given)
    access = access_of(remote)
    found = rest.deploy(access, function_name, definition).function
    subscribe(access, found)
    _say(access, found, "is deployed", as_json=as_json)


@click.command(
    epilog="""
\b
Examples:
  weir functions update clean f.py               the file's current content
  weir functions update clean g.py:clean_better  other code
  weir functions update clean --parallelism 4    the same code
  weir functions update clean --in orders --in returns

The old version's worker commits its current batch; the new one resumes there, with the state. Messages are neither
lost nor processed twice. Inputs that --in no longer names are dropped: once the new version runs, their
subscriptions are removed, with their backlogs.
"""
)
@click.argument("name")
@click.argument("code", metavar="[FILE.py[:FUNCTION]]", required=False)
@_options
@remote_options(changes=True)
def update(*, name: str, code: str | None, remote: Remote, as_json: bool, **given: Any) -> None:
    """Change the code, topics or options of a function, without losing a message."""
    access = access_of(remote)
    before = find(access, name).function
    read = (before.code, before.file, before.entry) if code is None else _read(code, before.entry)
    definition = _definition(before, read, before.name, given)
    note(access, before)  # so that dropped inputs are found even after an interruption
    found = rest.update(access, before.name, definition).function
    subscribe(access, found)
    what = "is unchanged" if found.version == before.version else f"is updated to version {found.version}"
    _say(access, found, what, as_json=as_json)


def _read(code: str, entry: str | None = None) -> tuple[str, str, str]:
    """The text, the file name and the function's name: by default the only one defined in the file itself."""
    path, _, named = code.rpartition(":") if ":" in code else (code, "", "")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(f"{path} cannot be read: {failure}", hint="name a Python file: f.py:clean") from None
    if len(text.encode()) > _MOST_BYTES:
        raise ConfigError(
            f"{path} has more than {_MOST_BYTES:,} bytes", hint="put libraries into the runner's Python"
        )
    return text, Path(path).name, named or entry or Path(path).stem


def _definition(
    before: Function | None, code: tuple[str, str, str], name: TopicName, given: dict[str, Any]
) -> Definition:
    """Options that are not given keep their values."""
    text, file, entry = code
    seen = look(text, file, entry)
    if before is None or before.code != text:
        check_imports(text, file, entry)
    usual = from_text({} if before is None else before.options)
    if before is None:
        usual = replace(usual, stateful=seen.stateful and not seen.batch, log_topic=f"{name.local}-logs")
    elif before.code != text:
        usual = replace(usual, stateful=usual.stateful or (seen.stateful and not seen.batch))
    said = {key: value for key, value in given.items() if value is not None and key in FunctionOptions.__slots__}
    said["config"] = dict(usual.config) | _config(given["config"])
    options = from_text(to_text(replace(usual, **said)))
    if before is not None and options.on != usual.on:
        raise ConfigError(
            f"{short_name(name)} runs {usual.on}, where its state and position are",
            hint="deploy it under another name",
        )
    inputs = tuple(_topic(one, name) for one in given["inputs"]) or (before.inputs if before else ())
    output = before.output if before and given["output"] is None else None
    if given["output"]:
        output = _topic(given["output"], name)
    others = [_topic(one, name) for one in (options.log_topic, options.dead_letter_topic) if one]
    for written in [*others, *([] if output is None else [output])]:
        if written in inputs:
            raise ConfigError(
                f"{short_name(written)} is both input and output", hint="messages would loop for ever"
            )
    return Definition(text, file, entry, inputs, output, to_text(options))


def _config(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {one} is not a pair", hint="write --set name=value")
        found[key] = value
    return found


def _topic(text: str, near: TopicName) -> TopicName:
    """A name without a namespace belongs to the function's namespace."""
    return check_reachable(TopicName.parse(text if "/" in text else f"{near.namespace}/{text}"))


def _say(access: Access, function: Function, what: str, *, as_json: bool) -> None:
    run = "" if rest.runner(access).where is not None else "; it runs once weir functions run is up"
    done(
        f"function {short_name(function.name)} {what}{run}",
        as_json=as_json,
        function=str(function.name),
        version=function.version,
    )


@click.command(
    epilog="""
\b
Examples:
  weir functions logs clean             the stored lines
  weir functions logs clean -f          and new ones, until Ctrl-C
  weir functions logs clean --json
"""
)
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Wait for new lines, until Ctrl-C.")
@remote_options
def logs(*, name: str, follow: bool, remote: Remote, as_json: bool) -> None:
    """Print the output, logs and errors of a function."""
    function = find(access_of(remote), name).function
    topic = from_text(function.options).log_topic
    if not topic:
        raise ConfigError(f"{name} has no log topic", hint=f"weir functions update {name} --log-topic {name}-logs")
    whole = TopicName.parse(topic if "/" in topic else f"{function.name.namespace}/{topic}")
    remote.broker(
        str(whole), lambda _, client: _print(client, whole, function.name.local, follow=follow, as_json=as_json)
    )


async def _print(client: PulsarClient, topic: TopicName, name: str, *, follow: bool, as_json: bool) -> None:
    asked = Subscribing("weir-functions-logs", earliest=True, durable=False)
    consumer = await client.consumer(str(topic), asked)
    ends = {part: at for part, at in enumerate(await consumer.last_ids()) if at.entry >= 0}
    while follow or ends:
        message = await consumer.receive()
        if message is None:
            return
        _line(message, name, as_json=as_json)
        end = ends.get(message.part)
        if end is not None and _is_last(message, end):
            del ends[message.part]


def _is_last(message: Incoming, end: MessageId) -> bool:
    whole = message.batch_size == 0 or message.id.batch_index + 1 >= message.batch_size
    return whole and (message.id.ledger, message.id.entry) >= (end.ledger, end.entry)


def _line(message: Incoming, name: str, *, as_json: bool) -> None:
    try:
        said: dict[str, Any] = json.loads(message.payload)
    except ValueError:
        return
    if said.get("function") != name:  # several functions may share a topic
        return
    if as_json:
        click.echo(json.dumps(said))
        return
    moment = datetime.fromtimestamp(said["time"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    about = f"  [{TopicName.parse(said['topic']).local} {said['offset']}]" if "offset" in said else ""
    click.echo(f"{moment} {said['level']:<7} {said['message']}{about}")


_RUNNER_PATIENCE_S = 60.0
_LEASE_PATIENCE_S = 20.0
_STANDBY_S = 2.0
#: After this silence a worker no longer counts as running.
_SILENT_MS = 30_000


@click.group(
    cls=LazyGroup,
    lazy={"logs": "weir.cli.functions:logs"},
    epilog="""
\b
Examples:
  weir functions deploy f.py:clean --in orders --out clean
  weir functions run                    keep all functions running, until Ctrl-C; or weir up --functions
  weir functions list
  weir functions stats clean            received, sent, failed, lag, latency
  weir functions logs clean -f          its output and logs
  weir functions update clean f.py      the next version resumes where this one is
  weir functions stop clean             and start, and delete
""",
)
def functions() -> None:
    """Deploy Python functions of messages, run them as subscriptions, and manage them."""


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
    """List the functions: inputs, outputs and state."""
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
    """The state in one word; a function without a runner waits."""
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
    """Show one function: its topics, options, versions and state."""
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
    """Show statistics of a function since its worker started: messages, lag, latency and the size of its state."""
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

One process runs the functions of a Weir, each in its own worker; functions on Spark get their own Spark. With
authentication it needs a superuser's token. weir up --functions does the same beside the broker.
"""
)
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="The Kafka listener, if the address that the server announces does not work.",
)
@click.option("--checkpoints", metavar="FOLDER", help="Checkpoints of functions on Spark.")
@click.option("--standby", is_flag=True, help="Wait while another process runs the functions.")
@click.option(
    "--deployed-by",
    "deployers",
    multiple=True,
    metavar="ROLE",
    help="Run only functions that this role has deployed; may be repeated.",
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
    """Run the functions until a signal arrives; current batches finish first."""
    from weir.functions.runner import Runner, WorkerOptions

    verbose = logging.getLogger().isEnabledFor(logging.INFO)
    logging.getLogger("weir").setLevel(logging.INFO)
    access = access_of(remote, patience_s=_RUNNER_PATIENCE_S)
    if not rest.runner(access).allowed:
        raise ConfigError("only a superuser runs functions", hint="give a superuser's --token")
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
    """Acquire the runner lease; wait for the lease of a previous runner that died."""
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
