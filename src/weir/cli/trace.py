"""`weir trace`: the path of a message, as a tree with times."""

import json
from typing import Any
from urllib.parse import quote

import click

from weir.cli.arguments import complete_topic, show_moment
from weir.cli.command import examples
from weir.cli.output import Output, done
from weir.cli.remote import Remote, remote_options
from weir.cli.stored_messages import policy_path
from weir.cli.topic_views import partitions_of
from weir.client.admin import AdminClient, join
from weir.model.errors import ConfigError
from weir.model.topics import NamespaceName, TopicName


@click.group(
    epilog="""
\b
Examples:
  weir trace rate orders 1%                 trace one message of a hundred
  weir trace show orders --key o-17         the latest messages of the key, and their events
  weir trace show orders --id 12:0
  weir trace find 4bf92f3577b34da6a3ce929d0e0e4736
"""
)
def trace() -> None:
    """Show which client produced, delayed, received, acknowledged, retried or dropped a message, and when."""


@trace.command(
    epilog=examples(
        "weir trace rate orders",
        "weir trace rate orders 1%",
        "weir trace rate orders 0",
        "weir trace rate --namespace public/default 0.1%",
    )
)
@click.argument("topic_and_rate", nargs=-1, metavar="[TOPIC] [RATE]", shell_complete=complete_topic)
@click.option("--namespace", help="All topics of a namespace without their own rate.")
@remote_options
def rate(topic_and_rate: tuple[str, ...], namespace: str | None, remote: Remote, as_json: bool) -> None:
    """Show or set the share of messages that a topic traces: 1%, 0.01, or 0."""
    words = list(topic_and_rate)
    topic = words.pop(0) if namespace is None and words else None
    if len(words) > 1:
        raise ConfigError("more than one rate given", hint="weir trace rate TOPIC 1%")
    wanted = _rate(words[0]) if words else None
    path = policy_path(topic, namespace, "traceRate")

    async def work(admin: AdminClient) -> Any:
        if wanted is not None:
            await admin.post(path, wanted)
        return await admin.get(f"{path}?applied=true")

    now = remote.admin(work) or 0
    done(f"{topic or namespace}: {now * 100:g} % of the messages are traced", as_json=as_json)


def _rate(text: str) -> float:
    try:
        found = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise ConfigError(f"{text!r} is not a rate", hint="write 1% or 0.01; 100% for all, 0 for none")
    return found


@trace.command(
    epilog=examples(
        "weir trace show orders --key o-17",
        "weir trace show orders --id 12:0",
        "weir trace show orders --offset 4711 -o json",
    )
)
@click.argument("topic", shell_complete=complete_topic)
@click.option("--id", "message_id", help="A message id, as in 12:0.")
@click.option("--offset", type=click.IntRange(min=0), help="An offset.")
@click.option("--key", help="A key: its latest messages.")
@click.option(
    "-n", "--count", type=click.IntRange(1, 100), default=10, show_default=True, help="The most to show."
)
@remote_options
def show(
    *,
    topic: str,
    message_id: str | None,
    offset: int | None,
    key: str | None,
    count: int,
    remote: Remote,
    out: Output,
) -> None:
    """Show the events of a message of TOPIC, by its id, offset or key."""
    said = {"id": message_id, "offset": offset, "key": key}
    given = {name: value for name, value in said.items() if value is not None}
    if len(given) != 1:
        raise ConfigError("no message named", hint="give one of --id, --offset and --key")
    ((name, value),) = given.items()

    async def work(admin: AdminClient) -> list[dict[str, Any]]:
        whole = TopicName.parse(topic)
        partitions = await partitions_of(admin, whole)
        parts = [TopicName.parse(f"{whole}-partition-{at}") for at in range(partitions)] or [whole]
        found: list[dict[str, Any]] = []
        for part in parts:
            space = part.namespace
            path = join("trace", "persistent", space.tenant, space.name, part.local_with_partition)
            answer = await admin.own("GET", f"{path}?{name}={quote(str(value), safe='')}&limit={count}")
            found += answer["messages"]
        return found[:count]

    _print(remote.admin(work), out)


@trace.command(epilog=examples("weir trace find 4bf92f3577b34da6a3ce929d0e0e4736"))
@click.argument("trace_id")
@click.option("--namespace", default="public/default", show_default=True, help="The namespace to search.")
@click.option(
    "-n", "--count", type=click.IntRange(1, 100), default=10, show_default=True, help="The most to show."
)
@remote_options
def find(*, trace_id: str, namespace: str, count: int, remote: Remote, out: Output) -> None:
    """Show the events of the messages of a trace, by the id in W3C's traceparent."""
    space = NamespaceName.parse(namespace)
    path = join("traces", space.tenant, space.name, trace_id)
    _print(remote.admin(lambda admin: admin.own("GET", f"{path}?limit={count}"))["messages"], out)


def _print(messages: list[dict[str, Any]], out: Output) -> None:
    if out.json:
        for message in messages:
            click.echo(json.dumps(message, ensure_ascii=False))
        return
    if not messages:
        click.echo("no trace of such a message; does its topic trace messages? (weir trace rate TOPIC)", err=True)
        return
    for message in messages:
        for line in tree_lines(message):
            click.echo(line)


def tree_lines(message: dict[str, Any]) -> list[str]:
    """A message and its events: first those of the topic, then those of each subscription."""
    events = message["events"]
    place = f"offset {message['offset']} ({message['id']})" if message["offset"] >= 0 else "not in the log yet"
    about = [f"key {message['key']}"] if message["key"] else []
    about += [f"trace {message['traceId']}"] if message["traceId"] else []
    lines = ["  ".join([f"{message['topic'].rpartition('/')[2]}: {place}", *about])]
    start = events[0]["at"] if events else 0
    own = [_line(event, start) for event in events if not event.get("subscription")]
    groups: dict[str, list[str]] = {}
    for event in events:
        if event.get("subscription"):
            groups.setdefault(event["subscription"], []).append(_line(event, start))
    branches: list[tuple[str, list[str]]] = [(line, []) for line in own] + list(groups.items())
    for at, (head, leaves) in enumerate(branches):
        last = at == len(branches) - 1
        lines.append(f"{'└─' if last else '├─'} {head}")
        for number, leaf in enumerate(leaves):
            stem = "   " if last else "│  "
            lines.append(f"{stem}{'└─' if number == len(leaves) - 1 else '├─'} {leaf}")
    return lines


def _line(event: dict[str, Any], start: int) -> str:
    when = show_moment(event["at"]) if event["at"] == start else f"+{event['at'] - start} ms"
    words = [f"{event['event']:<12}", when]
    who = event.get("producer") or event.get("consumer")
    if who:
        words.append(f"by {who}" if event["event"] != "delivered" else f"to {who}")
    if event.get("address"):
        words.append(f"({event['address']})")
    if event.get("tookMs"):
        what = "after" if event["event"] == "delivered" else "took"
        words.append(f"{what} {event['tookMs']:g} ms")
    if event.get("times"):
        words.append(f"again, attempt {event['times'] + 1}")
    if event.get("dueMs"):
        words.append(f"until {show_moment(event['dueMs'])}" if event["dueMs"] < 1 << 60 else "until it is decided")
    if event.get("reason"):
        words.append(f"[{event['reason']}]")
    return "  ".join([*words, f"on {event['broker']}"])
