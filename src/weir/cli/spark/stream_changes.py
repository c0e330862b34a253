"""`weir streams pause | resume | drop`: what a stream shall do, changed without Spark; its runner follows."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from weir.cli.completing import complete_stream
from weir.cli.output import done
from weir.cli.remote import Remote, remote_options
from weir.client import streams as rest
from weir.client.blocking import Access
from weir.client.streams import Defined
from weir.model.errors import SqlError, SqlStreamNotFoundError
from weir.model.sql_streams import Wanted
from weir.model.topics import TopicName
from weir.runtime.real import real_runtime, run

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
        run(lambda runtime: runtime.clock.sleep(_LOOK_S))
    return ""
