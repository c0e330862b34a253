"""`weir subscriptions retry` and `dead-letters`: retry policies, and dead letters listed and redriven."""

from base64 import b64decode
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from weir.cli.arguments import complete_subscription, complete_topic, show_moment
from weir.cli.command import examples
from weir.cli.output import Bytes, Output, done
from weir.cli.remote import Remote, remote_options
from weir.cli.topic_views import partitions_of
from weir.client.admin import AdminClient, join, topic_path
from weir.model.errors import ConfigError, NotFoundError
from weir.model.moments import parse_moment_ms
from weir.model.topics import TopicName
from weir.runtime.real import RealClock

_PAGE = 500
_SHOWN_CHARS = 60


@click.command(
    epilog=examples(
        "weir subscriptions retry orders billing",
        "weir subscriptions retry orders billing --schedule '1s 10s 1m' --max-deliveries 5",
        "weir subscriptions retry orders billing --schedule 1s..10m --dead-letter-topic graveyard",
        "weir subscriptions retry orders billing --default",
    )
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", shell_complete=complete_subscription)
@click.option("--schedule", metavar="WAITS", help="As in '1s 10s 1m', or growing as in 1s..10m or '1s..10m x3'.")
@click.option(
    "--max-deliveries",
    type=click.IntRange(min=0),
    help="A message becomes a dead letter after N deliveries; 0: never.",
)
@click.option("--dead-letter-topic", metavar="TOPIC", help="Instead of TOPIC-SUBSCRIPTION-DLQ.")
@click.option("--default", "default", is_flag=True, help="Use the policies of the topic and its namespace.")
@remote_options
def retry(
    *,
    topic: str,
    subscription: str,
    schedule: str | None,
    max_deliveries: int | None,
    dead_letter_topic: str | None,
    default: bool,
    remote: Remote,
    out: Output,
) -> None:
    """Show or set the retry and dead-letter policy of a shared subscription."""
    path = topic_path(TopicName.parse(topic), "subscription", subscription, "retry")
    said = {"schedule": schedule, "maxDeliveries": max_deliveries, "deadLetterTopic": dead_letter_topic}
    given = {name: value for name, value in said.items() if value is not None}
    if given and default:
        raise ConfigError("--default excludes all other options", hint="give it alone")

    async def work(admin: AdminClient) -> Any:
        if default:
            await admin.delete(path)
        elif given:
            now = (await admin.get(path))["own"]
            await admin.put(path, {**now, **given})
        return await admin.get(path)

    found = remote.admin(work)
    out.fields(
        [
            ("retries", "by the server" if found["active"] else "at once, without end"),
            ("schedule", found["schedule"] or "at once"),
            ("max deliveries", found["maxDeliveries"] or "no end"),
            ("dead letters", found["deadLetterTopic"]),
        ],
        data=found,
    )


@click.group(
    "dead-letters",
    epilog="""
\b
Examples:
  weir subscriptions dead-letters list orders billing
  weir subscriptions dead-letters list orders billing --reason rejected --since -1h
  weir subscriptions dead-letters redrive orders billing --dry-run
  weir subscriptions dead-letters redrive orders billing --key 4711
  weir subscriptions dead-letters redrive orders billing --filter "region = 'eu' AND weir_dead_deliveries = 3"
""",
)
def dead_letters() -> None:
    """List the dead letters of a subscription, and redrive them to their original topics."""


def _filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that filter dead letters."""
    options = (
        click.argument("topic", shell_complete=complete_topic),
        click.argument("subscription", shell_complete=complete_subscription),
        click.option("--in", "place", metavar="TOPIC", help="The dead-letter topic, if the policy names none."),
        click.option("--key", help="Only messages with this key."),
        click.option("--property", "prop", metavar="NAME=VALUE", help="Only messages with this property."),
        click.option("--reason", help="Only this reason: rejected, delivery_limit, expired or maxlen."),
        click.option("--since", metavar="WHEN", help="Only dead letters since this time, or span as in -1h."),
        click.option("--until", metavar="WHEN", help="Only dead letters before this time."),
        click.option("--filter", "sql", metavar="SQL", help="Only messages that match an SQL92 condition."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@dead_letters.command(
    "list",
    epilog=examples(
        "weir subscriptions dead-letters list orders billing",
        "weir subscriptions dead-letters list orders billing --since -1h -o json",
        "weir subscriptions dead-letters list work queue --in dead",
    ),
)
@_filtered
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=100, show_default=True, help="The most to list."
)
@remote_options
def list_(*, count: int, remote: Remote, out: Output, **which: Any) -> None:
    """List the dead letters of SUBSCRIPTION, oldest first, with their reason, time and delivery count."""

    async def work(admin: AdminClient) -> list[Any]:
        found: list[Any] = []
        for place, path in await _places(admin, which):
            start: int | None = 0
            while start is not None and len(found) < count:
                query = {**_query(which), "from": start, "limit": min(_PAGE, count - len(found))}
                page = await admin.own("GET", _with_query(path, query))
                found += [{"deadLetterTopic": str(place), **one} for one in page["letters"]]
                start = page["next"]
        return found

    found = remote.admin(work)
    rows = [
        (
            _short(one["topic"] or ""),
            one["originOffset"],
            one["reason"] or "",
            one["deliveries"],
            "" if one["diedMs"] is None else show_moment(one["diedMs"]),
            _text(one["key"]),
            _text(one["value"]),
            Bytes(one["size"]),
        )
        for one in found
    ]
    columns = ("topic", "offset", "reason", "deliveries", "died", "key", "value", "size")
    out.table(columns, rows, data=found)


@dead_letters.command(
    epilog=examples(
        "weir subscriptions dead-letters redrive orders billing --dry-run",
        "weir subscriptions dead-letters redrive orders billing",
        "weir subscriptions dead-letters redrive orders billing --property region=eu",
    )
)
@_filtered
@click.option("--dry-run", is_flag=True, help="Only count them.")
@remote_options
def redrive(*, dry_run: bool, remote: Remote, as_json: bool, **which: Any) -> None:
    """Move dead letters of SUBSCRIPTION back to their original topics, each exactly once."""
    moved, kept = remote.admin(lambda admin: _redrive(admin, which, dry_run=dry_run, quiet=as_json))
    if dry_run:
        done(f"{moved} would be redriven", as_json=as_json, found=moved)
        return
    stayed = f"; {kept} stay: their topic is deleted, or a consumer holds them" if kept else ""
    done(f"{moved} redriven{stayed}", as_json=as_json, moved=moved, kept=kept)


async def _redrive(admin: AdminClient, which: dict[str, Any], *, dry_run: bool, quiet: bool) -> tuple[int, int]:
    moved = kept = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("letters"))
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as bar:
        places = await _places(admin, which)
        # Skip dead letters that arrive while the command runs, including those that fail again because of it.
        ends = [(await admin.own("GET", f"{path}?limit=1"))["end"] for _, path in places]
        for (place, path), end in zip(places, ends, strict=True):
            task = bar.add_task(place.local, total=None)
            start: int | None = 0
            looked_at = 0
            while start is not None:
                query = {**_query(which), "before": end, "from": start, "limit": _PAGE}
                if dry_run:
                    page = await admin.own("GET", _with_query(path, query))
                    moved += sum(one["reason"] is not None for one in page["letters"])
                else:
                    page = await admin.own("POST", _with_query(f"{path}/redrive", query))
                    moved, kept = moved + page["moved"], kept + page["kept"]
                looked_at += page["lookedAt"]
                gone = 0 if dry_run else moved
                bar.update(task, total=max(looked_at, page["waiting"] + gone), completed=looked_at)
                start = page["next"]
    return moved, kept


async def _places(admin: AdminClient, which: dict[str, Any]) -> list[tuple[TopicName, str]]:
    """The dead-letter topics of the subscription, each partition by itself; empty if it has had no dead letters.
    NotFoundError if the command names a topic that does not exist."""
    topic = TopicName.parse(which["topic"])
    named = which["place"]
    if named is None:
        path = topic_path(topic, "subscription", which["subscription"], "retry")
        place = TopicName.parse((await admin.get(path))["deadLetterTopic"])
    else:
        place = TopicName.parse(named if "/" in named else f"{topic.namespace}/{named}")
    try:
        count = await partitions_of(admin, place)
    except NotFoundError:
        if named is not None:
            raise
        return []
    return [(part, _path(part)) for part in [place.at(number) for number in range(count)] or [place]]


def _path(topic: TopicName) -> str:
    namespace = topic.namespace
    return join("dead-letters", "persistent", namespace.tenant, namespace.name, topic.local_with_partition)


def _query(which: dict[str, Any]) -> dict[str, Any]:
    now_ms = RealClock().wall_ms()
    said = {
        "topic": str(TopicName.parse(which["topic"])),
        "subscription": which["subscription"],
        "key": which["key"],
        "property": which["prop"],
        "reason": which["reason"],
        "since": None if which["since"] is None else parse_moment_ms(which["since"], now_ms),
        "until": None if which["until"] is None else parse_moment_ms(which["until"], now_ms),
        "filter": which["sql"],
    }
    return {name: value for name, value in said.items() if value is not None}


def _with_query(path: str, query: dict[str, Any]) -> str:
    return f"{path}?{urlencode(query)}"


def _short(topic: str) -> str:
    return topic.rpartition("/")[2]


def _text(encoded: str | None) -> str:
    if encoded is None:
        return ""
    text = b64decode(encoded).decode(errors="replace")
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
