"""A message as a line for people, or as JSON or CSV for programs."""

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from weir.cli.messages.format import MessageFormat, Printed
from weir.cli.output import Format, Output, csv_line, shown
from weir.cli.values import show_moment

_COLUMNS = ("topic", "partition", "offset", "id", "published", "key", "headers", "payload")


class Printer:
    """Prints messages one by one, as `-o` or a format string says."""

    def __init__(self, out: Output, pattern: MessageFormat | None = None) -> None:
        self._out = out
        self._pattern = pattern
        self._begun = False

    def show(self, printed: Printed) -> None:
        message = printed.message
        if self._pattern is not None:
            sys.stdout.buffer.write(self._pattern.render(printed))
        elif self._out.json:
            click.echo(json.dumps(_json(printed), ensure_ascii=False))
        elif self._out.format is Format.CSV:
            if not self._begun:
                self._begun = True
                click.echo(csv_line(_COLUMNS), nl=False)
            click.echo(csv_line(_row(printed)), nl=False)
        elif self._out.wide:
            *head, payload = _row(printed)
            words = [shown(word) for word in head[1:] if word not in (None, "", {})]
            click.echo("  ".join([*words, str(payload)]))
        else:
            click.echo(readable(message.payload))

    def flush(self) -> None:
        """Whoever reads gets what there is."""
        if self._pattern is not None:
            sys.stdout.buffer.flush()


def _json(printed: Printed) -> dict[str, Any]:
    message = printed.message
    return message_json(
        at=str(message.id),
        payload=message.payload,
        key=message.key,
        properties=message.properties,
        publish_ms=message.publish_ms,
        event_ms=message.event_ms,
        producer=message.producer,
        redelivered=message.redelivered,
        encrypted=message.encrypted or None,
        null=message.null or None,
        partition=None if printed.partition < 0 else printed.partition,
    ) | ({"offset": message.offset} if message.offset >= 0 else {})


def _row(printed: Printed) -> tuple[object, ...]:
    message = printed.message
    return (
        printed.topic,
        None if printed.partition < 0 else printed.partition,
        message.offset,
        str(message.id),
        show_moment(message.publish_ms),
        readable(message.key or b""),
        dict(message.properties),
        readable(message.payload),
    )


def readable(payload: bytes) -> str:
    """As text if it is text, else as Python would show it."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return repr(payload)[2:-1]
    return text if text.isprintable() else repr(text)[1:-1]


def message_json(
    *,
    at: str,
    payload: bytes,
    key: bytes | None = None,
    properties: Mapping[str, str] | None = None,
    publish_ms: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """Bytes that are not UTF-8 go into a field of another name, as base64."""
    found: dict[str, Any] = {"id": at}
    found |= _bytes("key", key) if key is not None else {}
    found |= _bytes("payload", payload)
    found["properties"] = dict(properties or {})
    found["published"] = show_moment(publish_ms)
    partition = more.pop("partition", None)
    found |= {"partition": partition} if partition is not None else {}
    return found | {name: value for name, value in more.items() if value not in (None, 0, "")}


def _bytes(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
