"""`weir prepared`: prepared messages, which wait for a commit or a rollback."""

import base64
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import click

from weir.cli.arguments import complete_topic, parse_pairs, show_moment
from weir.cli.message_format import readable
from weir.cli.output import Bytes, Column, Output, done
from weir.cli.remote import Remote, remote_options
from weir.cli.topic_views import partitions_of
from weir.client.admin import AdminClient, join
from weir.model.errors import BrokerError, NotAllowedError, NotFoundError
from weir.model.moments import parse_span_ms
from weir.model.topics import TopicName

_PAGE = 1000
_COUNTS = {
    "waiting": "waiting",
    "prepared": "prepared",
    "committed": "committed",
    "rolledBack": "rolled back",
    "givenUp": "given up",
    "checked": "asked",
    "unasked": "no producer to check",
}


@click.group(
    epilog="""
\b
Examples:
  weir prepared prepare orders '{"id": 7}' --group shop     prints its id; consumers do not see it yet
  weir prepared list orders                                 undecided messages, the oldest first
  weir prepared show orders 12:0
  weir prepared commit orders 12:0                          deliver it
  weir prepared rollback orders 12:0                        consumers never receive it

RocketMQ's transaction messages are prepared messages. Weir asks a producer of the group about undecided ones, and
finally rolls them back: see docs/reference/prepared-messages.md.
"""
)
def half() -> None:
    """Prepare messages that stay invisible until a commit, and commit or roll them back."""


@half.command(
    epilog="""
\b
Examples:
  weir prepared prepare orders '{"id": 7}' --group shop
  weir prepared prepare orders hello --group shop --key k --property tenant=acme --recovery 1h
""",
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("payload")
@click.option("--group", required=True, help="The producer group that answers transaction checks.")
@click.option("--key", help="The message's key.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; may be repeated.")
@click.option("--recovery", metavar="SPAN", help="Delay before the first check, as in 10min.")
@remote_options
def prepare(
    *,
    topic: str,
    payload: str,
    group: str,
    key: str | None,
    properties: tuple[str, ...],
    recovery: str | None,
    remote: Remote,
    as_json: bool,
) -> None:
    """Store PAYLOAD in TOPIC as a prepared message, invisible until a commit."""
    name = TopicName.parse(topic)
    body = {
        "group": group,
        "payload": payload,
        "key": key,
        "properties": parse_pairs(properties),
        "recoveryMs": None if recovery is None else parse_span_ms(recovery),
    }

    async def work(admin: AdminClient) -> tuple[TopicName, str]:
        try:
            parts = await _parts(admin, name)
        except NotFoundError:
            try:  # creates the topic, if policies allow
                return name, (await admin.own("POST", _path(name), body))["id"]
            except NotAllowedError:  # the topic is partitioned
                parts = await _parts(admin, name)
        part = parts[_hash(key or payload) % len(parts)]
        return part, (await admin.own("POST", _path(part), body))["id"]

    part, half_id = remote.admin(work)
    done(half_id, as_json=as_json, topic=str(part), id=half_id)


@half.command(
    "list",
    epilog="""
\b
Examples:
  weir prepared list orders
  weir prepared list orders --group shop -o json
""",
)
@click.argument("topic", shell_complete=complete_topic)
@click.option("--group", help="Only messages of this producer group.")
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=1000, show_default=True, help="The most to list."
)
@remote_options
def list_(*, topic: str, group: str | None, count: int, remote: Remote, out: Output) -> None:
    """List the prepared messages of TOPIC, the oldest first."""
    found = remote.admin(lambda admin: _list(admin, TopicName.parse(topic), group, count))
    columns = ("topic", "id", "group", "prepared", "checks", "next check", Column("messages", wide=True), "size")
    rows = [
        (
            one["topic"].rpartition("/")[2],
            one["id"],
            one["group"],
            show_moment(one["prepared"]),
            one["checks"],
            show_moment(one["nextCheck"]),
            one["messages"],
            Bytes(one["bytes"]),
        )
        for one in found
    ]
    out.table(columns, rows, data=found)


@half.command(
    epilog="""
\b
Example:
  weir prepared count orders -o json
""",
)
@click.argument("topic", shell_complete=complete_topic)
@remote_options
def count(*, topic: str, remote: Remote, out: Output) -> None:
    """Count the prepared messages of TOPIC, and the decisions since the topic was loaded."""

    async def work(admin: AdminClient) -> dict[str, int]:
        totals: dict[str, int] = {}
        for part in await _parts(admin, TopicName.parse(topic)):
            for name, number in (await admin.own("GET", _path(part, "count"))).items():
                totals[name] = totals.get(name, 0) + number
        return totals

    totals = remote.admin(work)
    out.fields([(_COUNTS[name], number) for name, number in totals.items()], data=totals)


@half.command(
    epilog="""
\b
Example:
  weir prepared show orders 12:0             an id from weir prepared list
""",
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("half_id", metavar="ID")
@remote_options
def show(*, topic: str, half_id: str, remote: Remote, out: Output) -> None:
    """Show a prepared message."""
    part, shown = remote.admin(lambda admin: _on_its_part(admin, TopicName.parse(topic), half_id, "GET"))
    one = shown["half"]
    fields: list[tuple[str, object]] = [
        ("topic", str(part)),
        ("id", one["id"]),
        ("group", one["group"]),
        ("prepared", show_moment(one["prepared"])),
        ("checks", one["checks"]),
        ("next check", show_moment(one["nextCheck"])),
    ]
    for message in shown["content"]:
        fields += [("key", readable(_bytes(message["key"]))), ("payload", readable(_bytes(message["value"])))]
        fields += [(f"property {name}", readable(_bytes(value))) for name, value in message["headers"]]
    out.fields(fields, data={"topic": str(part), **one, "content": shown["content"]})


@half.command(
    epilog="""
\b
Examples:
  weir prepared commit orders 12:0 12:4      ids from weir prepared list; safe to repeat
""",
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@remote_options
def commit(*, topic: str, ids: tuple[str, ...], remote: Remote, out: Output) -> None:
    """Commit prepared messages: consumers receive them."""
    _decide(topic, ids, "commit", remote, out)


@half.command(
    epilog="""
\b
Examples:
  weir prepared rollback orders 12:0 12:4    ids from weir prepared list; safe to repeat
""",
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@remote_options
def rollback(*, topic: str, ids: tuple[str, ...], remote: Remote, out: Output) -> None:
    """Roll prepared messages back: consumers never receive them."""
    _decide(topic, ids, "rollback", remote, out)


def _decide(topic: str, ids: tuple[str, ...], decision: str, remote: Remote, out: Output) -> None:
    name = TopicName.parse(topic)

    async def work(admin: AdminClient) -> list[dict[str, Any]]:
        found = []
        for half_id in ids:
            part, answer = await _on_its_part(admin, name, half_id, "POST", decision)
            found.append({"topic": str(part), "id": half_id, **answer})
        return found

    decided = remote.admin(work)
    rows = [
        (
            one["topic"].rpartition("/")[2],
            one["id"],
            one["decision"],
            None if one["offset"] < 0 else one["offset"],
            one["again"],
        )
        for one in decided
    ]
    out.table(("topic", "id", "decision", "offset", "again"), rows, data=decided)


async def _on_its_part(
    admin: AdminClient, name: TopicName, half_id: str, verb: str, *rest: str
) -> tuple[TopicName, dict[str, Any]]:
    """Try each partition: an id belongs to one of them only."""
    *others, last = await _parts(admin, name)
    for part in others:
        try:
            return part, await admin.own(verb, _path(part, half_id, *rest))
        except BrokerError as failed:
            if not isinstance(failed, NotFoundError):  # any error other than a missing message
                raise
    return last, await admin.own(verb, _path(last, half_id, *rest))


async def _list(admin: AdminClient, name: TopicName, group: str | None, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in await _parts(admin, name):
        query, left = "" if group is None else f"&group={quote(group)}", count
        while left > 0:
            page = await admin.own("GET", f"{_path(part)}?limit={min(_PAGE, left)}{query}")
            found += [{"topic": str(part), **one} for one in page["half"]]
            left -= len(page["half"])
            if not page["next"]:
                break
            query = f"&after={page['next']}" + ("" if group is None else f"&group={quote(group)}")
    return sorted(found, key=lambda one: one["prepared"])[:count]


async def _parts(admin: AdminClient, name: TopicName) -> Sequence[TopicName]:
    count = await partitions_of(admin, name)
    return [TopicName.parse(f"{name}-partition-{at}") for at in range(count)] or [name]


def _path(topic: TopicName, *rest: str) -> str:
    namespace = topic.namespace
    return join("half", "persistent", namespace.tenant, namespace.name, topic.local_with_partition, *rest)


def _hash(text: str) -> int:
    """Choose a partition as Pulsar clients do by default: by Java's string hash."""
    found = 0
    for byte in text.encode():
        found = (31 * found + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
    return found & 0x7FFFFFFF


def _bytes(text: str | None) -> bytes:
    return b"" if text is None else base64.b64decode(text)
