"""`weir produce`: messages from the command line or from standard input into a topic."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from io import BufferedReader
from typing import cast

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

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

_READ_BYTES = 256 * 1024


@click.command(
    epilog="""
\b
Examples:
  weir produce orders hello world                 two messages
  weir produce orders < lines.txt                 one message per line
  weir produce orders -n 1000 test --key k1       the same message 1000 times
  weir produce orders later --deliver-in 10min
  weir produce orders --property source=web '{"id": 1}'
  weir produce orders --url pulsar://127.0.0.1:6650 hello
"""
)
@click.argument("topic")
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option("--key", help="The key of every message.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("-n", "--times", type=click.IntRange(min=1), default=1, help="Send every MESSAGE so many times.")
@click.option("--deliver-in", metavar="SPAN", help="Not to be seen before so long from now, as in 10s or 2h.")
@click.option("--deliver-at", metavar="MOMENT", help="Not to be seen before, as in 2030-01-31T12:00:00 (UTC).")
@click.option("--name", help="The producer's name, for deduplication.")
@remote_options
def produce(
    *,
    topic: str,
    messages: tuple[str, ...],
    key: str | None,
    properties: tuple[str, ...],
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
    pairs = parse_pairs(properties)
    due = _due(deliver_in, deliver_at)

    def outgoing(payload: bytes) -> Outgoing:
        return Outgoing(payload, key=key, properties=pairs, deliver_at_ms=due)

    async def work(_runtime: Runtime, client: PulsarClient) -> list[str]:
        producer = await client.producer(topic, ProducerSettings(name=name))
        sending = _Sending(producer, keep_ids=as_json)
        with _progress() as progress:
            task = progress.add_task("sent", total=None)
            payloads = _repeated(messages, times) if messages else _lines()
            async for payload in payloads:
                await sending.send(outgoing(payload))
                progress.update(task, completed=sending.count)
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


async def _repeated(messages: Iterable[str], times: int) -> AsyncIterator[bytes]:
    for message in messages:
        for _ in range(times):
            yield message.encode("utf-8", "surrogateescape")


async def _lines() -> AsyncIterator[bytes]:
    """The lines of standard input as they come; read in a thread, so that the connection stays alive meanwhile."""
    source = cast(BufferedReader, sys.stdin.buffer)
    rest = b""
    while data := await asyncio.to_thread(source.read1, _READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
