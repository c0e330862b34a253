"""`weir produce`: messages from the command line or from standard input into a topic."""

import asyncio

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from weir.cli.completing import complete_topic
from weir.cli.messages.format import unescaped
from weir.cli.messages.produce_input import InputFormat, Reading, read_all, repeated
from weir.cli.output import print_json
from weir.cli.remote import Remote, remote_options
from weir.cli.values import parse_moment_ms, parse_pairs, parse_span_ms
from weir.client.messages import Outgoing
from weir.client.producer import Receipt
from weir.client.pulsar import Producer, PulsarClient
from weir.client.settings import ProducerSettings
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime
from weir.runtime.real import RealClock


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
