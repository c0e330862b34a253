"""`weir functions start | stop | delete`: what a function shall do; its runner's word is waited for."""

from contextlib import suppress

import click

from weir.cli.functions.names import access_of, find
from weir.cli.output import done
from weir.cli.remote import Remote, remote_options
from weir.cli.spark.stream_changes import short_name
from weir.client import functions as rest
from weir.client.admin import topic_path
from weir.client.blocking import Access, ask_v2
from weir.functions.subscribing import leave, noted
from weir.model.errors import FunctionError, FunctionNotFoundError, WeirError
from weir.model.functions import Function, FunctionWanted
from weir.model.topics import TopicName
from weir.runtime.real import real_runtime, run

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
        run(lambda runtime: runtime.clock.sleep(_LOOK_S))
    return ""
