"""`weir functions deploy | update`: code, topics and options of a function, looked at before they are sent."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from weir.cli.functions.imports import check_imports
from weir.cli.functions.names import access_of, find
from weir.cli.output import done
from weir.cli.remote import Remote, remote_options
from weir.cli.spark.stream_changes import short_name
from weir.client import functions as rest
from weir.client.blocking import Access
from weir.client.functions import Definition
from weir.functions.loading import look
from weir.functions.options import FunctionOptions, from_text, to_text
from weir.functions.subscribing import note, subscribe
from weir.model.errors import ConfigError
from weir.model.functions import Function, check_reachable
from weir.model.topics import TopicName

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
