"""`weir peek`: what waits for a subscription, without taking it."""

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import click

from weir.cli.message_views import message_json, readable
from weir.cli.output import print_table
from weir.cli.remote import Remote, remote_options
from weir.client.admin import AdminClient, topic_path
from weir.model.errors import BrokerError, NotAllowedError
from weir.model.topics import TopicName
from weir.runtime.http_client import HttpAnswer
from weir.wire.pulsar.batch import iter_batch
from weir.wire.pulsar.message import message_key

_PROPERTY = "x-pulsar-property-"


@click.command(
    epilog="""
\b
Examples:
  weir peek orders billing             the next message that billing will get
  weir peek orders billing -n 5
  weir peek orders billing -n 5 --json
"""
)
@click.argument("topic")
@click.argument("subscription")
@click.option("-n", "--count", type=click.IntRange(min=1), default=1, show_default=True, help="So many messages.")
@remote_options
def peek(topic: str, subscription: str, count: int, remote: Remote, as_json: bool) -> None:
    """Show the first messages that SUBSCRIPTION has not acknowledged, and leave them there."""
    name = TopicName.parse(topic)

    async def work(admin: AdminClient) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        position = 1
        while len(found) < count:
            path = topic_path(name, "subscription", subscription, "position", position)
            try:
                answer = await admin.call("GET", path)
            except NotAllowedError:
                raise
            except BrokerError:
                if not found:
                    raise
                break  # there are fewer
            found += messages_of(answer)
            position += 1
        return found[:count]

    found = remote.admin(work)
    if as_json:
        for message in found:
            click.echo(json.dumps(message, ensure_ascii=False))
    else:
        rows = [(item["id"], _text(item, "key"), item["published"], _text(item, "payload")) for item in found]
        print_table(("id", "key", "published", "payload"), rows)


def messages_of(answer: HttpAnswer) -> list[dict[str, Any]]:
    """The message that an answer holds, or the messages if it is a batch."""
    headers = answer.headers
    at = headers.get("x-pulsar-message-id", "")
    published = _moment_ms(headers.get("x-pulsar-publish-time", ""))
    count = headers.get("x-pulsar-num-batch-message")
    if count is None:
        return [_shown(at, answer.body, _key(headers), _properties(headers), published)]
    return [
        _shown(
            f"{at}:{index}",
            bytes(single.payload),
            message_key(single.metadata),
            {pair.key: pair.value for pair in single.metadata.properties},
            published,
        )
        for index, single in enumerate(iter_batch(answer.body, int(count)))
    ]


def _properties(headers: Mapping[str, str]) -> dict[str, str]:
    """All in one header as JSON, and by older servers one header each, whose names have lost their case."""
    whole = headers.get("x-pulsar-property")
    if whole is not None:
        with suppress(ValueError):
            return dict(json.loads(whole))
    return {name.removeprefix(_PROPERTY): v for name, v in headers.items() if name.startswith(_PROPERTY)}


def _key(headers: Mapping[str, str]) -> bytes | None:
    key = headers.get("x-pulsar-partition-key")
    if key is not None and headers.get("x-pulsar-partition-key-b64-encoded") == "true":
        with suppress(ValueError):
            return base64.b64decode(key, validate=True)
    return None if key is None else key.encode()


def _shown(
    at: str, payload: bytes, key: bytes | None, properties: dict[str, str], published: int
) -> dict[str, Any]:
    return message_json(at=at, payload=payload, key=key, properties=properties, publish_ms=published)


def _text(message: dict[str, Any], name: str) -> str:
    """A field that may be text, base64 or missing."""
    if f"{name}_base64" in message:
        return readable(base64.b64decode(message[f"{name}_base64"]))
    return readable(message.get(name, "").encode())


def _moment_ms(text: str) -> int:
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return 0
