"""`weir peek` and `weir messages`: stored messages, by a subscription's backlog or by their key."""

import base64
import json
from typing import Any
from urllib.parse import quote

import click

from weir.cli.arguments import complete_subscription, complete_topic
from weir.cli.command import examples
from weir.cli.message_format import message_json, readable
from weir.cli.output import Column, Format, Output, done
from weir.cli.remote import Remote, remote_options
from weir.cli.topic_views import partitions_of
from weir.client.admin import AdminClient, join, topic_path
from weir.model.errors import (
    BrokerError,
    ConfigError,
    NotAuthenticatedError,
    NotAuthorisedError,
    SubscriptionNotFoundError,
)
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.topics import NamespaceName, TopicName

#: The most messages per partition in one request.
_MOST = 1000


@click.command(
    epilog="""
\b
Examples:
  weir peek orders billing             the next message for billing
  weir peek orders billing -n 5
  weir peek orders billing -n 5 --json one JSON object per line
  weir peek orders                     of a queue: the next messages by priority

SUBSCRIPTION may be a Kafka consumer group. Messages that are delivered and not acknowledged are included. A
partitioned topic shows the oldest messages of all partitions.
"""
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", default=QUEUE_SUBSCRIPTION, shell_complete=complete_subscription)
@click.option(
    "-n", "--count", type=click.IntRange(1, _MOST), default=1, show_default=True, help="The most to show."
)
@remote_options
def peek(topic: str, subscription: str, count: int, remote: Remote, out: Output) -> None:
    """Show the first messages that SUBSCRIPTION has not acknowledged, without consuming them."""
    name = TopicName.parse(topic)
    found = remote.admin(lambda admin: _waiting(admin, name, subscription, count))
    if out.json:
        for message in found:
            click.echo(json.dumps(shown_json(message), ensure_ascii=False))
        return
    if not found and out.format is not Format.CSV:
        click.echo(f"{subscription} has acknowledged everything on {name.local_with_partition}", err=True)
        return
    partitioned = any(message["topic"].partition is not None for message in found)
    columns = (
        Column("partition", wide=not partitioned),
        "offset",
        Column("id", wide=True),
        "published",
        Column("key", cut="end"),
        Column("headers", wide=True, cut="end"),
        Column("payload", cut="end"),
    )
    out.table(columns, [shown_row(message) for message in found])


async def _waiting(admin: AdminClient, name: TopicName, subscription: str, count: int) -> list[dict[str, Any]]:
    """The first `count` messages of all partitions, the oldest first; of one partition in the server's order."""
    partitions = await partitions_of(admin, name)
    if not partitions:
        return await _of_part(admin, name, subscription, count)
    found: list[dict[str, Any]] = []
    missing = 0
    for part in (TopicName.parse(f"{name}-partition-{at}") for at in range(partitions)):
        try:
            found += await _of_part(admin, part, subscription, count)
        except (NotAuthorisedError, NotAuthenticatedError):
            raise
        except BrokerError as failure:
            missing += 1  # a group may have positions on some partitions only
            if missing == partitions:
                raise SubscriptionNotFoundError(
                    f"{name} has no subscription {subscription!r}", hint="see weir groups list"
                ) from failure
    return sorted(found, key=lambda message: message["publishMs"])[:count]


async def _of_part(admin: AdminClient, part: TopicName, subscription: str, count: int) -> list[dict[str, Any]]:
    space = part.namespace
    path = join("waiting", "persistent", space.tenant, space.name, part.local_with_partition, subscription)
    answer = await admin.own("GET", f"{path}?limit={count}")
    return [{**message, "topic": part} for message in answer["messages"]]


def shown_json(message: dict[str, Any]) -> dict[str, Any]:
    """Headers as text; other bytes are replaced, because JSON has no bytes."""
    shown = message_json(
        at=message["id"],
        payload=_bytes(message["value"]) or b"",
        key=_bytes(message["key"]),
        headers=_headers(message),
        publish_ms=message["publishMs"],
        event_ms=message.get("eventMs"),
        topic=message["topic"].local,
        partition=-1 if message["topic"].partition is None else message["topic"].partition,
    )
    return {**shown, "offset": message["offset"]}


def shown_row(message: dict[str, Any]) -> tuple[object, ...]:
    shown = message_json(at="", payload=b"", publish_ms=message["publishMs"])
    return (
        message["topic"].partition,
        message["offset"],
        message["id"],
        shown["published"],
        readable(_bytes(message["key"]) or b""),
        _headers(message),
        readable(_bytes(message["value"]) or b""),
    )


def _headers(message: dict[str, Any]) -> dict[str, str]:
    return {name: (_bytes(value) or b"").decode(errors="replace") for name, value in message["headers"]}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@click.group(
    epilog="""
\b
Examples:
  weir messages index orders --on        build a key index
  weir messages find orders --key o-17   the latest messages of the key
"""
)
def messages() -> None:
    """Find stored messages by their key."""


@messages.command(
    epilog=examples(
        "weir messages find orders --key o-17",
        "weir messages find orders --key o-17 -n 1 -o json",
    )
)
@click.argument("topic", shell_complete=complete_topic)
@click.option("--key", required=True, help="The key, or a word in the header KEYS.")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="The most to show, the latest first.",
)
@remote_options
def find(topic: str, key: str, count: int, remote: Remote, out: Output) -> None:
    """Show the latest messages of a key, by the topic's key index."""
    name = TopicName.parse(topic)
    found = remote.admin(lambda admin: _find(admin, name, key, count))
    if out.json:
        for message in found:
            click.echo(json.dumps(shown_json(message), ensure_ascii=False))
        return
    columns = (
        Column("partition", wide=all(message["topic"].partition is None for message in found)),
        "offset",
        "id",
        "published",
        Column("key", cut="end"),
        Column("headers", wide=True, cut="end"),
        Column("payload", cut="end"),
    )
    out.table(columns, [shown_row(message) for message in found])


async def _find(admin: AdminClient, name: TopicName, key: str, count: int) -> list[dict[str, Any]]:
    partitions = await partitions_of(admin, name)
    parts = [TopicName.parse(f"{name}-partition-{at}") for at in range(partitions)] or [name]
    found: list[dict[str, Any]] = []
    for part in parts:
        space = part.namespace
        path = join("found", "persistent", space.tenant, space.name, part.local_with_partition)
        answer = await admin.own("GET", f"{path}?key={quote(key, safe='')}&limit={count}")
        found += [{**message, "topic": part} for message in answer["messages"]]
    return sorted(found, key=lambda message: -message["publishMs"])[:count] if partitions else found


@messages.command(
    epilog=examples(
        "weir messages index orders --on",
        "weir messages index orders --off",
        "weir messages index --namespace public/default --on",
    )
)
@click.argument("topic", required=False, shell_complete=complete_topic)
@click.option("--namespace", help="All topics of a namespace without their own setting.")
@click.option(
    "--on/--off", "on", default=None, help="Build or remove the index. Without either: show the setting."
)
@remote_options
def index(*, topic: str | None, namespace: str | None, on: bool | None, remote: Remote, as_json: bool) -> None:
    """Switch a topic's key index on or off; each sealed ledger gets an index."""
    path = policy_path(topic, namespace, "keyIndex")

    async def work(admin: AdminClient) -> Any:
        if on is not None:
            await admin.post(path, on)
        return await admin.get(f"{path}?applied=true")

    said = "on" if remote.admin(work) else "off"
    done(f"index of keys of {topic or namespace}: {said}", as_json=as_json)


def policy_path(topic: str | None, namespace: str | None, word: str) -> str:
    """The path of a policy of a topic or a namespace."""
    if (topic is None) == (namespace is None):
        raise ConfigError("no topic or namespace named", hint="give a topic, or --namespace TENANT/NAMESPACE")
    if topic is not None:
        return topic_path(TopicName.parse(topic), word)
    space = NamespaceName.parse(namespace or "")
    return join("namespaces", space.tenant, space.name, word)
