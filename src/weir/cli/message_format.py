"""Printed messages: a line for people, JSON or CSV for programs, or a format string in kcat's syntax."""

import base64
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from rich.cells import cell_len

from weir.cli.arguments import show_moment
from weir.cli.output import Format, Output, csv_line, shown
from weir.client.pulsar.messages import Incoming
from weir.model.errors import ConfigError

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|[^%\\]+", re.DOTALL)

#: For `--help` and the docs.
WORDS = """\
  %s %v  the payload            %k  the key              %h  headers, name=value,...
  %S     its length (-1: none)  %K  its length           %t  topic   %p  partition   %o  offset
  %T     published, in ms       %d  published, as date   %E  event time, in ms
  %i     message id             %P  producer             %r  redeliveries
  %n \\n  new line   \\t \\r \\0 \\xNN as in C   %%  a percent sign"""


@dataclass(frozen=True, slots=True)
class Printed:
    """A message to print, with its topic or partition."""

    topic: str
    partition: int
    message: Incoming


def _length(value: bytes | None) -> bytes:
    return str(-1 if value is None else len(value)).encode()


def _headers(printed: Printed) -> bytes:
    return ",".join(f"{name}={value}" for name, value in printed.message.properties.items()).encode()


def _payload(printed: Printed) -> bytes | None:
    return None if printed.message.null else printed.message.payload


_WORDS: dict[str, Callable[[Printed], bytes]] = {
    "s": lambda one: one.message.payload,
    "v": lambda one: one.message.payload,
    "S": lambda one: _length(_payload(one)),
    "k": lambda one: one.message.key or b"",
    "K": lambda one: _length(one.message.key),
    "h": _headers,
    "t": lambda one: one.topic.encode(),
    "p": lambda one: str(max(0, one.partition)).encode(),
    "o": lambda one: str(one.message.offset).encode(),
    "T": lambda one: str(one.message.publish_ms).encode(),
    "d": lambda one: show_moment(one.message.publish_ms).encode(),
    "E": lambda one: str(one.message.event_ms).encode(),
    "i": lambda one: str(one.message.id).encode(),
    "P": lambda one: one.message.producer.encode(),
    "r": lambda one: str(one.message.redelivered).encode(),
    "n": lambda _: b"\n",
    "%": lambda _: b"%",
}


class MessageFormat:
    """A compiled format string, reused for every message."""

    def __init__(self, text: str) -> None:
        """ConfigError for an unknown placeholder."""
        self._parts: list[bytes | Callable[[Printed], bytes]] = []
        for found in _TOKEN.finditer(text):
            word, number, escape = found.groups()
            if word is not None:
                if word not in _WORDS:
                    raise ConfigError(
                        f"%{word} is not a format placeholder",
                        hint=f"known are %{' %'.join(_WORDS)}; %% is a percent sign",
                    )
                self._parts.append(_WORDS[word])
            elif number is not None:
                self._parts.append(bytes([int(number, 16)]))
            elif escape is not None:
                self._parts.append(_escaped(escape))
            else:
                self._parts.append(found[0].encode())

    def render(self, printed: Printed) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(printed) for part in self._parts)


def unescaped(text: str) -> bytes:
    """Resolve the escapes of a separator: `\\t`, `\\n`, `\\x1f`."""
    parts: list[bytes] = []
    for found in re.finditer(r"\\x([0-9a-fA-F]{2})|\\(.?)|[^\\]+", text, re.DOTALL):
        number, escape = found.groups()
        if number is not None:
            parts.append(bytes([int(number, 16)]))
        else:
            parts.append(_escaped(escape) if escape is not None else found[0].encode())
    return b"".join(parts)


def _escaped(letter: str) -> bytes:
    if letter not in _ESCAPES:
        raise ConfigError(f"\\{letter} is not a known escape", hint="write \\n, \\t, \\r, \\0, \\xNN or \\\\")
    return _ESCAPES[letter]


_COLUMNS = ("topic", "partition", "offset", "id", "published", "key", "headers", "payload")
#: Column widths of -o wide, except the payload: fixed, because messages are printed as they arrive.
_WIDTHS = (20, 9, 8, 12, 24, 12, 24)


class Printer:
    """Prints messages one by one, in the format of `-o` or of a format string."""

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
        """Pass the buffered output to the reader."""
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
    """Cells of fixed widths; a longer one shifts the later ones. An empty cell is `-`."""
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
    """The payload as text if it is UTF-8, else as a Python literal."""
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
    """`partition`: null for a topic that is not partitioned (-1).

    Bytes that are not UTF-8 are base64 in a field with another name."""
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
