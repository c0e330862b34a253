"""`weir produce`: messages from the command line or from standard input into a topic.

What `weir produce` reads: arguments, lines, JSON or whole files, each as messages to send.
"""

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
    """What standard input, or a file, holds."""

    LINES = "lines"
    JSON = "json"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Reading:
    """How messages are made of what is read. `like`: what all of them have in common."""

    like: Outgoing
    format: InputFormat = InputFormat.LINES
    delimiter: bytes = b"\n"
    #: Between a key and its message; None: there are no keys.
    key_separator: bytes | None = None
    #: An empty message has no value: it removes its key.
    empty_is_null: bool = False

    def message(self, data: bytes) -> Outgoing:
        """ConfigError for what cannot be one."""
        if self.format is InputFormat.JSON:
            return self._from_json(data)
        key, payload = self.like.key, data
        if self.key_separator is not None:
            before, found, after = data.partition(self.key_separator)
            if not found:
                raise ConfigError(
                    f"{data[:80]!r} has no key: {self.key_separator!r} is not in it", hint="check --key-separator"
                )
            key, payload = _key(before), after
        return replace(self.like, payload=payload, key=key, null=self.empty_is_null and not payload)

    def _from_json(self, data: bytes) -> Outgoing:
        """As `weir consume --json` prints them."""
        try:
            found: Any = json.loads(data)
            payload = _field(found, "payload")
            if payload is None and "payload" not in found:
                raise ValueError("there is no payload")
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
                f"{data[:80]!r} is no message: {wrong}",
                hint='one JSON object per line, as in {"key": "k", "payload": "text", "headers": {}}',
            ) from None


def _field(found: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in found:
        return base64.b64decode(found[f"{name}_base64"], validate=True)
    value = found.get(name)
    if value is None:
        return None
    # What is no text is taken as the JSON that it is.
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
    """What the files hold (`-` is standard input), each cut as the format says."""
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
    """As they come; read in a thread, so that the connection stays alive meanwhile."""
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
  weir consume a --json | weir produce b --input json    a copy, with keys and headers
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
@click.option("-l", "--file", "files", multiple=True, metavar="FILE", help="Read messages from it; - is stdin.")
@click.option(
    "--input",
    "input_format",
    type=click.Choice([one.value for one in InputFormat]),
    default=InputFormat.LINES.value,
    show_default=True,
    help="What is read: a message per line, JSON as weir consume prints it, or all as one message.",
)
@click.option("-D", "--delimiter", default="\\n", show_default=True, metavar="SEP", help="Between messages.")
@click.option("-Z", "--null", "empty_is_null", is_flag=True, help="An empty message has no value at all.")
@click.option("-n", "--times", type=click.IntRange(min=1), default=1, help="Send every MESSAGE so many times.")
@click.option("--deliver-in", metavar="SPAN", help="Not to be seen before so long from now, as in 10s or 2h.")
@click.option("--deliver-at", metavar="MOMENT", help="Not to be seen before, as in 2030-01-31T12:00:00 (UTC).")
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
        raise ConfigError("-n repeats messages, and there are none", hint="give MESSAGE arguments")
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
            finally:  # what was sent before one that is wrong is stored, and counted
                await sending.finish()
        await producer.close()
        return sending.ids if as_json else [str(sending.count)]

    found = remote.broker(topic, work)
    if as_json:
        print_json({"topic": topic, "ids": found})
    else:
        click.echo(f"{found[0]} message{'' if found[0] == '1' else 's'} stored in {topic}")


class _Sending:
    """Keeps many messages under way, and notices the first failure."""

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
        """Wait until everything so far is stored."""
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
