"""`weir functions deploy | update`: code, topics and options of a function, looked at before they are sent.

`weir functions`: deploy, update, start, stop, delete, list and watch functions of messages, and run them.

`weir functions start | stop | delete`: what a function shall do; its runner's word is waited for.

`weir functions logs`: what a function printed and logged, from its log topic.

How commands name functions, and reach the Weir that has them.
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
    """`patience_s`: how long the server may be away."""
    return remote.access(patience_s)


def find(access: Access, name: str) -> Deployed:
    """By any of the ways to write its name; FunctionNotFoundError tells those that there are."""
    listed = rest.all_functions(access)
    for one in listed:
        space = one.function.name.namespace
        if name in names_of(one.function.name) | {f"{space.name}/{one.function.name.local}"}:
            return one
    known = ", ".join(short_name(one.function.name) for one in listed[:5])
    hint = f"there are {known}" if known else "there are none; weir functions deploy makes them"
    raise FunctionNotFoundError(f"there is no function {name}", hint=hint)


_PATIENCE_S, _LOOK_S = 40.0, 0.2


@click.command(
    epilog="""
\b
Examples:
  weir functions stop clean
  weir functions stop clean tidy

What is under way is finished. What comes then waits for it, and weir functions start goes on with that.
"""
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@remote_options(changes=True)
def stop(*, names: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Let functions stop, until they are started again; messages wait for them."""
    access = access_of(remote)
    named = [find(access, name).function for name in names]
    # All are told before one is waited for.
    for function in [rest.want(access, one.name, FunctionWanted.STOPPED).function for one in named]:
        stopped = _reached(access, function, ("stopped",)) == "stopped"
        what = "is stopped" if stopped else "stops as soon as its runner sees it"
        done(f"function {short_name(function.name)} {what}", as_json=as_json, function=str(function.name))


@click.command(
    epilog="""
\b
Examples:
  weir functions start clean

It goes on with what came meanwhile. Ends with 1 if it fails at once; weir functions describe says more.
"""
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@remote_options(changes=True)
def start(*, names: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Let functions run again."""
    access = access_of(remote)
    named = [find(access, name).function for name in names]
    for function in [rest.want(access, one.name, FunctionWanted.RUNNING).function for one in named]:
        shown, state = short_name(function.name), _reached(access, function, ("running", "failed"))
        if state == "failed":
            raise FunctionError(f"function {shown} fails", hint=f"weir functions describe {shown} says why")
        what = "runs" if state == "running" else "is started; it runs as soon as weir functions run does"
        done(f"function {shown} {what}", as_json=as_json, function=str(function.name))


@click.command(
    epilog="""
\b
Examples:
  weir functions delete clean
  weir functions delete clean --if-exists

Its subscriptions, its state and what waits to be tried again go with it; what it has written, its dead letters
and its log stay.
"""
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="One that is not there is no error.")
@remote_options(changes=True)
def delete(*, names: tuple[str, ...], if_exists: bool, remote: Remote, as_json: bool) -> None:
    """End functions for good, with their state; the topics that they wrote stay."""
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
    """Before the definition goes: whoever is killed in between can be asked again."""
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
    """What its runner says once it has seen it; "" if there is none, or it takes its time."""
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
        click.option(
            "--in", "inputs", multiple=True, metavar="TOPIC", help="A topic that it reads; may be given again."
        ),
        click.option("--out", "output", metavar="TOPIC", help="Where what it returns goes; '' for nowhere."),
        click.option(
            "--on",
            type=click.Choice(["light", "spark"]),
            help="Where it runs; light: in processes beside the broker.",
        ),
        click.option(
            "--parallelism", type=int, metavar="N", help="Processes that run it; messages of a key go to one. [1]"
        ),
        click.option(
            "--retries", "retry", metavar="SCHEDULE", help="When what fails comes again: '1s 10s 1m'. [1s..1m]"
        ),
        click.option("--max-deliveries", type=int, metavar="N", help="Then it is a dead letter; 0: never. [5]"),
        click.option(
            "--dead-letter-topic", metavar="TOPIC", help="Where dead letters go. [<topic>-fn-<name>-DLQ]"
        ),
        click.option("--log-topic", metavar="TOPIC", help="Where prints and logs go; '' for none. [<name>-logs]"),
        click.option(
            "--log-level",
            type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
            help="The least to log. [INFO]",
        ),
        click.option(
            "--start", type=click.Choice(["earliest", "latest"]), help="Where it begins when it is new. [earliest]"
        ),
        click.option(
            "--batch-messages", type=int, metavar="N", help="Messages committed at once, at the most. [1000]"
        ),
        click.option(
            "--linger", "linger_ms", type=int, metavar="MS", help="How long more of them are waited for. [0]"
        ),
        click.option(
            "--timeout", "timeout_s", type=float, metavar="S", help="How long one message may take. [no end]"
        ),
        click.option(
            "--ordered/--unordered", default=None, help="Whether what fails holds up what comes behind it."
        ),
        click.option(
            "--stateful/--stateless", default=None, help="Whether it keeps state by key; else as its code says."
        ),
        click.option(
            "--batch/--messages", default=None, help="Whether it is of Arrow batches; else as its signature says."
        ),
        click.option(
            "--set", "config", multiple=True, metavar="NAME=VALUE", help="For context.config; may be given again."
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
(docs/reference/functions.md). It is run
by weir functions run, or weir up --functions: where there are tokens, deploying takes a superuser's.
"""
)
@click.argument("code", metavar="FILE.py[:FUNCTION]")
@click.option(
    "--name", help="Of the function: NAME, or TENANT/NAMESPACE/NAME. By default what it is called in the file."
)
@_options
@remote_options(changes=True)
def deploy(*, code: str, name: str | None, remote: Remote, as_json: bool, **given: Any) -> None:
    """Deploy a Python function of messages: from now on it runs as a subscription of its inputs."""
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
  weir functions update clean f.py               the file as it is now
  weir functions update clean g.py:clean_better  other code
  weir functions update clean --parallelism 4    the same code
  weir functions update clean --in orders --in returns

The worker of the version before finishes what it has and commits it; the new one begins there, with its state.
Nothing is lost, and nothing is done twice. Inputs that --in names no more are dropped: once the new one runs,
their subscriptions are removed, with what waited there.
"""
)
@click.argument("name")
@click.argument("code", metavar="[FILE.py[:FUNCTION]]", required=False)
@_options
@remote_options(changes=True)
def update(*, name: str, code: str | None, remote: Remote, as_json: bool, **given: Any) -> None:
    """Give a function other code, topics or options, without losing a message."""
    access = access_of(remote)
    before = find(access, name).function
    read = (before.code, before.file, before.entry) if code is None else _read(code, before.entry)
    definition = _definition(before, read, before.name, given)
    note(access, before)  # whatever is done of this: what it has no more is found
    found = rest.update(access, before.name, definition).function
    subscribe(access, found)
    what = "is as it was" if found.version == before.version else f"is updated to version {found.version}"
    _say(access, found, what, as_json=as_json)


def _read(code: str, entry: str | None = None) -> tuple[str, str, str]:
    """The text, the file's name, and the function's: by default the only one that the file names itself after."""
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
    """What is not said stays as it was."""
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
            raise ConfigError(f"{short_name(written)} is read and written", hint="that would go round for ever")
    return Definition(text, file, entry, inputs, output, to_text(options))


def _config(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {one} sets nothing", hint="write --set name=value")
        found[key] = value
    return found


def _topic(text: str, near: TopicName) -> TopicName:
    """A name without a namespace is one in the function's."""
    return check_reachable(TopicName.parse(text if "/" in text else f"{near.namespace}/{text}"))


def _say(access: Access, function: Function, what: str, *, as_json: bool) -> None:
    run = "" if rest.runner(access).where is not None else "; it runs as soon as weir functions run does"
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
  weir functions logs clean             the lines that there are
  weir functions logs clean -f          and those that come, until Ctrl-C
  weir functions logs clean --json
"""
)
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@remote_options
def logs(*, name: str, follow: bool, remote: Remote, as_json: bool) -> None:
    """Print what a function printed and logged, and what it failed of."""
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
#: A worker that has not said anything for so long is not known to run.
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
