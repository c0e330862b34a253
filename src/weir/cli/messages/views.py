"""A message as a line for people, or as JSON or CSV for programs."""

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any

import click
from rich.cells import cell_len

from weir.cli.messages.format import MessageFormat, Printed
from weir.cli.output import Format, Output, csv_line, shown
from weir.cli.values import show_moment

_COLUMNS = ("topic", "partition", "offset", "id", "published", "key", "headers", "payload")
#: Cells of -o wide, but for the payload: messages are printed as they come, so the widths are fixed.
_WIDTHS = (20, 9, 8, 12, 24, 12, 24)


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
            if not self._begun:
                self._begun = True
                click.echo(_wide(tuple(name.upper() for name in _COLUMNS)))
            click.echo(_wide(_row(printed)))
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
        headers=message.properties,
        publish_ms=message.publish_ms,
        event_ms=message.event_ms,
        producer=message.producer,
        redelivered=message.redelivered,
        encrypted=message.encrypted or None,
        null=message.null or None,
        topic=printed.topic,
        partition=printed.partition,
    ) | ({"offset": message.offset} if message.offset >= 0 else {})


def _wide(row: tuple[object, ...]) -> str:
    """Cells of fixed widths; a longer one moves those behind it. Nothing is `-`."""
    *head, payload = ["-" if cell in (None, "", {}) else shown(cell) for cell in row]
    cells = [text + " " * (width - cell_len(text)) for text, width in zip(head, _WIDTHS, strict=True)]
    return "  ".join([*cells, payload])


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
    headers: Mapping[str, str] | None = None,
    publish_ms: int = 0,
    topic: str = "",
    partition: int = -1,
    **more: Any,
) -> dict[str, Any]:
    """`partition`: null of a topic that is not partitioned (-1).

    Bytes that are not UTF-8 go into a field of another name, as base64."""
    found: dict[str, Any] = {"topic": topic, "partition": None if partition < 0 else partition, "id": at}
    found |= _bytes("key", key) if key is not None else {}
    found |= _bytes("payload", payload)
    found["headers"] = dict(headers or {})
    found["published"] = show_moment(publish_ms)
    return found | {name: value for name, value in more.items() if value not in (None, 0, "")}


def _bytes(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
