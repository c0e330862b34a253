"""`weir produce`: send messages to a topic, from arguments, lines, JSON or whole files."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from weir.cli.arguments import complete_topic, parse_pairs
from weir.cli.message_format import unescaped
from weir.cli.output import print_json
from weir.cli.remote import Remote, remote_options
from weir.client.access import ProducerSettings
from weir.client.pulsar.client import Producer, PulsarClient
from weir.client.pulsar.messages import Outgoing
from weir.client.pulsar.producer import Receipt
from weir.model.errors import ConfigError
from weir.model.moments import parse_moment_ms, parse_span_ms
from weir.runtime.interfaces import Runtime
from weir.runtime.real import RealClock

_READ_BYTES = 256 * 1024


class InputFormat(Enum):
    """The format of standard input or a file."""

    LINES = "lines"
    JSON = "json"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Reading:
    """The conversion of input to messages. `like`: the properties that all messages share."""

    like: Outgoing
    format: InputFormat = InputFormat.LINES
    delimiter: bytes = b"\n"
    #: The separator of key and message; None: messages have no keys.
    key_separator: bytes | None = None
    #: An empty message has no value: it removes its key.
    empty_is_null: bool = False

    def message(self, data: bytes) -> Outgoing:
        """ConfigError for input that is not a message."""
        if self.format is InputFormat.JSON:
            return self._from_json(data)
        key, payload = self.like.key, data
        if self.key_separator is not None:
            before, found, after = data.partition(self.key_separator)
            if not found:
                raise ConfigError(
                    f"{data[:80]!r} has no key: it does not contain {self.key_separator!r}",
                    hint="check --key-separator",
                )
            key, payload = _key(before), after
        return replace(self.like, payload=payload, key=key, null=self.empty_is_null and not payload)

    def _from_json(self, data: bytes) -> Outgoing:
        """Parse the output of `weir consume --json`."""
        try:
            found: Any = json.loads(data)
            payload = _field(found, "payload")
            if payload is None and "payload" not in found:
                raise ValueError("the payload is missing")
            key = _field(found, "key")
            # `properties` is the name of earlier releases.
            headers = {**(found.get("properties") or {}), **(found.get("headers") or {})}
            properties = {str(name): str(value) for name, value in headers.items()}
            return replace(
                self.like,
                payload=payload or b"",
                key=self.like.key if key is None else _key(key),
                properties={**self.like.properties, **properties},
                event_ms=int(found.get("event_ms") or 0),
                null=payload is None or bool(found.get("null")),
            )
        except (ValueError, AttributeError, TypeError) as wrong:
            raise ConfigError(
                f"{data[:80]!r} is not a message: {wrong}",
                hint='one JSON object per line, as in {"key": "k", "payload": "text", "headers": {}}',
            ) from None


def _field(found: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in found:
        return base64.b64decode(found[f"{name}_base64"], validate=True)
    value = found.get(name)
    if value is None:
        return None
    # A value that is not a string is sent as its JSON text.
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


def _key(key: bytes) -> str | bytes:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


async def repeated(messages: Iterable[str], times: int) -> AsyncIterator[bytes]:
    for message in messages:
        for _ in range(times):
            yield message.encode("utf-8", "surrogateescape")


async def read_all(files: Iterable[str], reading: Reading) -> AsyncIterator[bytes]:
    """Messages of the files (`-` is standard input), split as the format requires."""
    for name in files:
        source = _opened(name)
        try:
            if reading.format is InputFormat.WHOLE:
                yield await asyncio.to_thread(source.read)
            else:
                async for piece in _pieces(source, reading.delimiter):
                    if piece or reading.format is not InputFormat.JSON:
                        yield piece
        finally:
            if source is not sys.stdin.buffer:
                source.close()


def _opened(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except OSError as failure:
        raise ConfigError(f"cannot read {name}: {failure.strerror}", hint="check --file") from None


async def _pieces(source: BinaryIO, delimiter: bytes) -> AsyncIterator[bytes]:
    """Split a source into pieces; a thread reads it, so that the connection stays alive."""
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    rest, lines = b"", delimiter == b"\n"
    while data := await asyncio.to_thread(read, _READ_BYTES):
        *pieces, rest = (rest + data).split(delimiter)
        for piece in pieces:
            yield piece.removesuffix(b"\r") if lines else piece
    if rest:
        yield rest


@click.command(
    epilog="""
\b
Examples:
  weir produce orders hello world                  two messages
  weir produce orders < lines.txt                  one message per line
  weir produce orders -l lines.txt                 the same
  weir produce orders -n 1000 test --key k1        the same message 1000 times
  weir produce orders '{"id": 1}' --key 1 -H source=web -H trace=7f
  weir produce orders -K : < pairs.txt             lines of key:message; -K '\\t' for a tab
  weir consume a --json | weir produce b --input json    copy keys and headers, too
  weir produce pictures -l cat.png --input whole   the file is one message
  weir produce orders --key 1 -Z ''                a message without a value: compaction removes its key
  weir produce orders later --deliver-in 10min
  weir produce orders --url pulsar://127.0.0.1:6650 hello
"""
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option("--key", help="The key of every message.")
@click.option(
    "-H",
    "--header",
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header (a property, as Pulsar calls it) of every message; may be repeated.",
)
@click.option("-K", "--key-separator", metavar="SEP", help="Each message is KEY SEP MESSAGE.")
@click.option("-l", "--file", "files", multiple=True, metavar="FILE", help="A file of messages; - is stdin.")
@click.option(
    "--input",
    "input_format",
    type=click.Choice([one.value for one in InputFormat]),
    default=InputFormat.LINES.value,
    show_default=True,
    help="Input: a message per line, JSON as weir consume prints it, or one whole message.",
)
@click.option("-D", "--delimiter", default="\\n", show_default=True, metavar="SEP", help="Separator of messages.")
@click.option("-Z", "--null", "empty_is_null", is_flag=True, help="Send an empty message without a value.")
@click.option("-n", "--times", type=click.IntRange(min=1), default=1, help="How often to send every MESSAGE.")
@click.option("--deliver-in", metavar="SPAN", help="Delay the delivery by SPAN, as in 10s or 2h.")
@click.option(
    "--deliver-at", metavar="MOMENT", help="Delay the delivery until MOMENT, as in 2030-01-31T12:00:00 (UTC)."
)
@click.option("--name", help="The producer's name, for deduplication.")
@remote_options(changes=True, patient=True)
def produce(
    *,
    topic: str,
    messages: tuple[str, ...],
    key: str | None,
    properties: tuple[str, ...],
    key_separator: str | None,
    files: tuple[str, ...],
    input_format: str,
    delimiter: str,
    empty_is_null: bool,
    times: int,
    deliver_in: str | None,
    deliver_at: str | None,
    name: str | None,
    remote: Remote,
    as_json: bool,
) -> None:
    """Send messages to TOPIC: each MESSAGE, or without any, each line of standard input."""
    if times > 1 and not messages:
        raise ConfigError("-n needs messages to repeat", hint="give MESSAGE arguments")
    if messages and files:
        raise ConfigError("messages and --file exclude each other", hint="give one of them")
    if key is not None and key_separator is not None:
        raise ConfigError("--key and --key-separator exclude each other", hint="give one of them")
    separators = [unescaped(text) for text in (delimiter, key_separator or "\\0")]
    if not all(separators):
        raise ConfigError("a separator has at least one character", hint="write -K : or -D '\\n'")
    like = Outgoing(b"", key=key, properties=parse_pairs(properties), deliver_at_ms=_due(deliver_in, deliver_at))
    reading = Reading(
        like,
        InputFormat(input_format),
        separators[0],
        None if key_separator is None else separators[1],
        empty_is_null,
    )

    async def work(_runtime: Runtime, client: PulsarClient) -> list[str]:
        producer = await client.producer(topic, ProducerSettings(name=name))
        sending = _Sending(producer, keep_ids=as_json)
        with _progress() as progress:
            task = progress.add_task("sent", total=None)
            pieces = repeated(messages, times) if messages else read_all(files or ("-",), reading)
            try:
                async for piece in pieces:
                    await sending.send(reading.message(piece))
                    progress.update(task, completed=sending.count)
            finally:  # messages sent before an invalid one are stored, and counted
                await sending.finish()
        await producer.close()
        return sending.ids if as_json else [str(sending.count)]

    found = remote.broker(topic, work)
    if as_json:
        print_json({"topic": topic, "ids": found})
    else:
        click.echo(f"{found[0]} message{'' if found[0] == '1' else 's'} stored in {topic}")


class _Sending:
    """Keeps many sends in flight, and reports the first failure."""

    def __init__(self, producer: Producer, *, keep_ids: bool) -> None:
        self._producer = producer
        self._keep_ids = keep_ids
        self._under_way: list[Receipt] = []
        self.ids: list[str] = []
        self.count = 0

    async def send(self, message: Outgoing) -> None:
        await self._producer.wait_capacity()
        self._under_way.append(self._producer.send(message))
        self.count += 1
        if len(self._under_way) >= 5000:
            await self.finish()

    async def finish(self) -> None:
        """Wait until all sent messages are stored."""
        ids = await asyncio.gather(*self._under_way)
        self._under_way.clear()
        if self._keep_ids:
            self.ids += map(str, ids)


def _due(deliver_in: str | None, deliver_at: str | None) -> int | None:
    now_ms = RealClock().wall_ms()
    if deliver_in is not None and deliver_at is not None:
        raise ConfigError("--deliver-in and --deliver-at exclude each other", hint="give one of them")
    if deliver_in is not None:
        return now_ms + parse_span_ms(deliver_in)
    return None if deliver_at is None else parse_moment_ms(deliver_at, now_ms)


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
