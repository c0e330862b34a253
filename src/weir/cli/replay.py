"""`weir replay`: deliver messages that a query selects again to a subscription, or produce them to a topic."""

import os
import signal
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from weir.cli.arguments import show_moment
from weir.cli.command import examples
from weir.cli.output import Column, Output, done
from weir.cli.remote import Remote, remote_options
from weir.cli.spark_session import master_option, need_spark, place_of
from weir.cli.sql import hello_of, open_session
from weir.model.errors import ConfigError, ReplayNotFoundError, ReplayStateError, WeirError
from weir.model.moments import parse_moment_ms
from weir.model.topics import TopicName

if TYPE_CHECKING:
    from weir.client.admin import Access
    from weir.model.definitions import Replay
    from weir.spark.tables.names import WeirCluster

#: For tests: names a step at which the process exits at once, as if killed.
_STOP_AT = "WEIR_REPLAY_STOP_AT"
#: How long a running replay waits for unavailable brokers.
_PATIENCE_S = 60.0
_LIST_PATIENCE_S = 5.0


@click.group(
    invoke_without_command=True,
    epilog="""
\b
Examples:
  weir replay --topic orders --from -2h --where "amount > 100" --into billing --dry-run
  weir replay --topic orders --from -2h --where "amount > 100" --into billing
  weir replay --topic orders --from 2026-11-01 --to 2026-11-02 --into topic:audit
  weir replay --topic orders --where "headers['region'] = 'eu'" --into billing
  weir replay --topic orders --where "__dead_reason = 'delivery_limit'" --into billing --rate 50
  weir replay --topic orders --where "__key = '4711' AND __partition = 2" --into billing
  weir replay list                                     queries, targets, progress
  weir replay resume 20261116-081500-a1b2c3            resume an interrupted replay
  weir replay cancel 20261116-081500-a1b2c3

\b
The condition is Spark's SQL over the columns of the topic as weir sql has them: fields of the
schema, __key, __timestamp, __offset, __partition, headers['name'], and of dead letters
__dead_reason, __dead_subscription, __dead_deliveries, __dead_at. See docs/how-to/replay.md.
""",
)
@click.option("--topic", metavar="TOPIC", help="The source topic; by default that of the subscription.")
@click.option("--from", "since", metavar="T", help="Start time: 2026-11-16T08:00, or -2h. [all messages]")
@click.option("--to", "until", metavar="T", help="End time, exclusive. [now]")
@click.option("--where", metavar="SQL", default="", help="A condition on messages. [all]")
@click.option("--into", metavar="SUBSCRIPTION|TOPIC", help="The target; subscription:X or topic:X if X is both.")
@click.option("--rate", type=click.IntRange(min=1), metavar="N", help="Most messages per second.")
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="The Kafka listener, if the address that the server announces does not work.",
)
@master_option("Where Spark selects the messages")
@click.option("--no-server", is_flag=True, help="Start Spark in this process, not in the server of weir sql.")
@remote_options(changes=True)
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    *,
    topic: str | None,
    since: str | None,
    until: str | None,
    where: str,
    into: str | None,
    rate: int | None,
    dry_run: bool,
    kafka: str | None,
    master: str,
    no_server: bool,
    remote: Remote,
    as_json: bool,
) -> None:
    """Deliver messages again that a query selects from topic, lake and dead letters, each once."""
    if ctx.invoked_subcommand is not None:
        return
    if into is None:
        raise ConfigError("the replay has no target", hint="name a subscription or topic with --into")
    need_spark()
    from weir.spark.replay.requests import Request, begin, resolve

    now_ms = time.time_ns() // 1_000_000
    place = place_of(remote, kafka)
    named = None if topic is None else TopicName.parse(topic)
    if named is not None and named.partition is not None:
        raise ConfigError(f"{topic} is one partition", hint="name the topic, and write --where '__partition = N'")
    request = Request(
        named,
        into,
        where,
        None if since is None else parse_moment_ms(since, now_ms),
        None if until is None else parse_moment_ms(until, now_ms),
        rate or 0,
    )
    wanted = resolve(place, request)
    spark = _Statements(remote, kafka, master, server=not no_server)
    try:
        if dry_run:
            count = spark.count(wanted)
            done(f"{count} messages would go to {wanted.into}", as_json=as_json, messages=count)
            return
        begun = begin(place, wanted)
        if not as_json:
            click.echo(f"replay {begun.id}", err=True)
        _go_on(place, begun, spark, as_json=as_json)
    finally:
        spark.close()


@replay.command("list", epilog=examples("weir replay list", "weir replay list orders -o json"))
@click.argument("topic", required=False)
@remote_options
def list_replays(*, topic: str | None, remote: Remote, out: Output) -> None:
    """List replays: their owner, source, target, message count and progress."""
    from weir.client.replays import all_replays

    found = all_replays(remote.access(_LIST_PATIENCE_S), None if topic is None else TopicName.parse(topic))
    rows = [
        (
            one.id,
            one.topic.local,
            one.subscription or str(one.target),
            one.where,
            None if one.since_ms is None else show_moment(one.since_ms),
            None if one.until_ms is None else show_moment(one.until_ms),
            one.state.value,
            sum(one.selected),
            sum(one.delivered),
            one.role,
            show_moment(one.created_ms),
        )
        for one in found
    ]
    columns = [
        Column("id"),
        Column("topic"),
        Column("into"),
        Column("where"),
        Column("from", wide=True),
        Column("to", wide=True),
        Column("state"),
        Column("selected"),
        Column("delivered"),
        Column("by"),
        Column("begun", wide=True),
    ]
    out.table(columns, rows, data=[_told(one) for one in found])


@replay.command(epilog=examples("weir replay resume", "weir replay resume 20261116-081500-a1b2c3"))
@click.argument("replay_id", metavar="[ID]", required=False)
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="The Kafka listener, if the address that the server announces does not work.",
)
@master_option("Where Spark selects the messages")
@click.option("--no-server", is_flag=True, help="Start Spark in this process, not in the server of weir sql.")
@remote_options(changes=True)
def resume(
    *, replay_id: str | None, kafka: str | None, master: str, no_server: bool, remote: Remote, as_json: bool
) -> None:
    """Resume an interrupted replay; without ID, all that have not ended."""
    need_spark()
    from weir.client.replays import all_replays, find_replay
    from weir.model.definitions import ReplayState
    from weir.spark.replay.delivery import sweep

    place = place_of(remote, kafka)
    sweep(place)
    if replay_id is not None:
        left = [find_replay(place.access, replay_id)]
    else:
        open_ = (ReplayState.SELECTING, ReplayState.DELIVERING)
        left = [one for one in all_replays(place.access) if one.state in open_]
    if not left:
        done("no replay to resume", as_json=as_json)
    spark = _Statements(remote, kafka, master, server=not no_server)
    try:
        if len(left) == 1:
            _go_on(place, left[0], spark, as_json=as_json)
            return
        failed = [one.id for one in left if not _tried(place, one, spark, as_json=as_json)]
    finally:
        spark.close()
    if failed:
        raise ReplayStateError(
            f"{len(failed)} of {len(left)} replays failed to resume", hint="see weir replay list"
        )


@replay.command(epilog=examples("weir replay cancel 20261116-081500-a1b2c3"))
@click.argument("replay_id", metavar="ID")
@remote_options(changes=True)
def cancel(*, replay_id: str, remote: Remote, as_json: bool) -> None:
    """End a replay; messages that it has delivered stay delivered."""
    need_spark()
    from weir.client.replays import find_replay
    from weir.spark.replay.delivery import cancel as end

    place = place_of(remote, None)
    found = end(place, find_replay(place.access, replay_id))
    count, of = sum(found.delivered), sum(found.selected)
    done(f"replay {found.id} is {found.state.value}: {count} of {of} messages were delivered", as_json=as_json)


def _tried(place: "WeirCluster", one: "Replay", spark: "_Statements", *, as_json: bool) -> bool:
    """Whether it ran to its end; after a failure, others may."""
    try:
        _go_on(place, one, spark, as_json=as_json)
    except WeirError as failure:
        click.echo(f"replay {one.id}: {failure}", err=True)
        return False
    return True


def _go_on(place: "WeirCluster", begun: "Replay", spark: "_Statements", *, as_json: bool) -> None:
    from weir.spark.replay.delivery import Delivery, go_on

    asked = place.access
    # Wait for a broker that dies during the replay; an unreachable one has failed the command before.
    place = replace(place, access=replace(place.access, patience_s=_PATIENCE_S))
    reached = _stop_at(os.environ.get(_STOP_AT))
    with _Bar(begun, shown=not as_json) as bar:

        def select(wanted: "Replay") -> None:
            bar.say("Spark selects the messages")
            reached("begun")
            spark.select(wanted)
            reached("selected")

        try:
            found = go_on(place, begun, select, Delivery(place, bar, reached=reached))
        except WeirError as failure:
            if _is_open(asked, begun):
                failure.hint = f"`weir replay resume {begun.id}` resumes it, `cancel` ends it"
            raise
        except KeyboardInterrupt:
            bar.stop()
            click.echo(
                f"replay {begun.id} is kept: `weir replay resume {begun.id}` resumes it, `cancel` ends it",
                err=True,
            )
            raise
    count = sum(found.delivered)
    before = "" if begun is not found else ", before now"
    done(
        f"{count} messages were delivered again to {found.into} (replay {found.id}){before}",
        as_json=as_json,
        replay=found.id,
        messages=count,
    )


def _is_open(access: "Access", begun: "Replay") -> bool:
    """Whether the replay can be resumed; if no broker answers, as far as is known. A replay whose condition was
    invalid leaves no record."""
    from weir.client.replays import find_replay
    from weir.model.definitions import ReplayState

    try:
        return find_replay(access, begun.id).state in (ReplayState.SELECTING, ReplayState.DELIVERING)
    except ReplayNotFoundError:
        return False
    except WeirError:
        return True


def _told(one: "Replay") -> dict[str, Any]:
    return {
        "id": one.id,
        "topic": str(one.topic),
        "subscription": one.subscription,
        "target": str(one.target),
        "where": one.where,
        "sinceMs": one.since_ms,
        "untilMs": one.until_ms,
        "rate": one.rate,
        "state": one.state.value,
        "selected": sum(one.selected),
        "delivered": sum(one.delivered),
        "role": one.role,
        "createdMs": one.created_ms,
        "updatedMs": one.updated_ms,
    }


def _stop_at(wanted: str | None) -> Callable[[str], None]:
    def reached(step: str) -> None:
        if step == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


class _Statements:
    """The Spark part of a replay, as statements for the warm server of `weir sql`, or for this process."""

    def __init__(self, remote: Remote, kafka: str | None, master: str, *, server: bool) -> None:
        self._how = (remote, kafka, master, server)
        self._opened: Any = None

    def count(self, wanted: "Replay") -> int:
        from msgspec import json

        counted: list[int] = []

        def take(answer: Any) -> None:
            rows = getattr(answer, "rows", None)
            if isinstance(rows, list):
                counted.extend(int(json.decode(bytes(row))["messages"]) for row in rows)

        asked = b64encode(json.encode(wanted)).decode()
        self._run(f"REPLAY COUNT OF '{asked}'", take)
        return sum(counted)

    def select(self, wanted: "Replay") -> None:
        self._run(f"REPLAY SELECTION OF '{wanted.id}'")

    def _run(self, text: str, take: Callable[[Any], None] = lambda _: None) -> None:
        if self._opened is None:
            remote, kafka, master, server = self._how
            hello = hello_of(
                remote, as_json=True, limit=None, start="latest", kafka=kafka, checkpoints=None, no_runner=True
            )
            self._opened = open_session(hello, master, server=server, waiting=_nothing, ready=_nothing)
        self._opened.run([text], take)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def _nothing() -> None:
    pass


class _Bar:
    """Progress of a replay, on a terminal."""

    def __init__(self, begun: "Replay", *, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._bars = Progress(
            *columns, console=console, transient=True, disable=not shown or not console.is_terminal
        )
        self._into = begun.into
        self._task = self._bars.add_task(begun.into, total=None)

    def __enter__(self) -> "_Bar":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._bars.stop()

    def say(self, what: str) -> None:
        self._bars.update(self._task, description=what)

    def begin(self, total: int, delivered: int) -> None:
        self._bars.update(self._task, description=self._into, total=total, completed=delivered)

    def advance(self, messages: int) -> None:
        self._bars.advance(self._task, messages)
