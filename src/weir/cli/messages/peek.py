"""`weir peek`: what a subscription has not acknowledged, without taking it."""

import base64
import json
from typing import Any

import click

from weir.cli.completing import complete_subscription, complete_topic
from weir.cli.messages.views import message_json, readable
from weir.cli.output import Column, Format, Output
from weir.cli.remote import Remote, remote_options
from weir.cli.topics.stats import partitions_of
from weir.client.admin import AdminClient, join
from weir.model.errors import BrokerError, NotAuthenticatedError, NotAuthorisedError, SubscriptionNotFoundError
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.topics import TopicName

#: So many at the most are asked of a partition.
_MOST = 1000


@click.command(
    epilog="""
\b
Examples:
  weir peek orders billing             the next message that billing will get
  weir peek orders billing -n 5
  weir peek orders billing -n 5 --json one JSON object per line
  weir peek orders                     of a queue: what AMQP's consumers will get, the most urgent first

SUBSCRIPTION may be a consumer group of Kafka. What was delivered and not acknowledged is shown as well: it still
waits. Of a partitioned topic, the oldest messages of all partitions are shown.
"""
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", default=QUEUE_SUBSCRIPTION, shell_complete=complete_subscription)
@click.option(
    "-n", "--count", type=click.IntRange(1, _MOST), default=1, show_default=True, help="So many messages."
)
@remote_options
def peek(topic: str, subscription: str, count: int, remote: Remote, out: Output) -> None:
    """Show the first messages that SUBSCRIPTION has not acknowledged, and leave them there."""
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
    """The first so many of all partitions, the oldest first; as the server orders them if there is one only."""
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
            missing += 1  # a group may have come to some of the partitions only
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
    """Headers as text: bytes of others are replaced, since JSON has none."""
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
