"""`weir top`: the console's first page in a terminal, computed from two scrapes of `/metrics`."""

import asyncio
import os
import re
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from weir.cli.output import cut_middle, human_bytes, human_number, print_json
from weir.cli.remote import Remote, remote_options
from weir.client.admin import AdminClient

_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_ESCAPED = re.compile(r"\\[\\n\"]")


@dataclass(frozen=True, slots=True)
class Scrape:
    """Values by metric name and labels, and the scrape time (seconds of any clock)."""

    at_s: float
    values: Mapping[str, list[tuple[dict[str, str], float]]]

    def sum(self, name: str) -> float:
        return sum(value for _, value in self.values.get(name, ()))

    def one(self, name: str) -> float | None:
        """The value of a metric without labels; None if the scrape lacks it."""
        found = self.values.get(name)
        return found[0][1] if found else None

    def by(self, label: str, name: str) -> dict[str, float]:
        """Sums per value of one label, over all other labels."""
        found: dict[str, float] = {}
        for labels, value in self.values.get(name, ()):
            if label in labels:
                found[labels[label]] = found.get(labels[label], 0.0) + value
        return found


def read_scrape(text: str, at_s: float) -> Scrape:
    values: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        found = None if line.startswith("#") else _LINE.fullmatch(line)
        if found is not None:
            name, labels, value = found.groups()
            values.setdefault(name, []).append((_labels(labels or ""), float(value)))
    return Scrape(at_s, values)


def _labels(text: str) -> dict[str, str]:
    return {name: _ESCAPED.sub(lambda e: _ESCAPES[e[0]], value) for name, value in _LABEL.findall(text)}


@dataclass(frozen=True, slots=True)
class TopicLine:
    """Rates per second."""

    topic: str
    messages_in: float
    messages_out: float
    bytes_in: float
    backlog: int
    stored_bytes: int
    producers: int
    consumers: int


@dataclass(frozen=True, slots=True)
class Overview:
    """A broker at the later of two scrapes. Rates per second; `None`: the scrape lacks the metric."""

    up_s: float
    messages_in: float
    messages_out: float
    bytes_in: float
    bytes_out: float
    backlog: int
    held: int
    topics: int
    loaded: int
    cpu: float
    memory_bytes: int
    disk_free_bytes: int | None
    read_only: bool
    damaged: int
    connections: dict[str, int] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=dict)
    busiest: tuple[TopicLine, ...] = ()


SORTS = ("in", "out", "backlog", "size", "name")


def overview(before: Scrape, now: Scrape, *, sort: str = "in", most: int = 1_000) -> Overview:
    """The values of the later scrape, with rates since the earlier one."""
    passed = max(now.at_s - before.at_s, 1e-9)

    def rate(name: str) -> float:
        return max(0.0, now.sum(name) - before.sum(name)) / passed

    free = now.one("weir_disk_free_bytes")
    return Overview(
        up_s=now.sum("weir_up_seconds"),
        messages_in=rate("weir_topic_published_messages_total"),
        messages_out=rate("weir_topic_delivered_messages_total"),
        bytes_in=rate("weir_topic_published_bytes_total"),
        bytes_out=rate("weir_topic_delivered_bytes_total"),
        backlog=int(now.sum("weir_subscription_backlog_messages")),
        held=int(now.sum("weir_topic_held_messages")),
        topics=int(now.sum("weir_topics")),
        loaded=int(now.sum("weir_topics_loaded")),
        cpu=rate("process_cpu_seconds_total"),
        memory_bytes=int(now.sum("process_resident_memory_bytes")),
        disk_free_bytes=None if free is None else int(free),
        read_only=bool(now.sum("weir_storage_read_only")),
        damaged=int(now.sum("weir_damaged_entries") + now.sum("weir_skipped_entries")),
        connections=_counts(now, "protocol", "weir_gateway_connections"),
        streams=_counts(now, "stream", "weir_stream_lag_messages"),
        busiest=_lines(before, now, passed, sort)[:most],
    )


def _counts(scrape: Scrape, label: str, name: str) -> dict[str, int]:
    return {key: int(value) for key, value in sorted(scrape.by(label, name).items())}


def _lines(before: Scrape, now: Scrape, passed: float, sort: str) -> tuple[TopicLine, ...]:
    def of(name: str) -> dict[str, float]:
        return now.by("topic", name)

    def rates(name: str) -> dict[str, float]:
        was = before.by("topic", name)
        # A topic that the earlier scrape lacks was just loaded: all that it counts happened since.
        return {topic: max(0.0, value - was.get(topic, 0.0)) / passed for topic, value in of(name).items()}

    taken, given = rates("weir_topic_published_messages_total"), rates("weir_topic_delivered_messages_total")
    size_in = rates("weir_topic_published_bytes_total")
    backlog, stored = of("weir_subscription_backlog_messages"), of("weir_topic_storage_bytes")
    producers, consumers = of("weir_topic_producers"), of("weir_subscription_consumers")
    lines = [
        TopicLine(
            topic,
            taken.get(topic, 0.0),
            given.get(topic, 0.0),
            size_in.get(topic, 0.0),
            int(backlog.get(topic, 0)),
            int(stored.get(topic, 0)),
            int(producers.get(topic, 0)),
            int(consumers.get(topic, 0)),
        )
        for topic in of("weir_topic_end_offset")
    ]
    weights: dict[str, Callable[[TopicLine], tuple[float, ...]]] = {
        "in": lambda line: (-line.messages_in, -line.messages_out, -line.backlog),
        "out": lambda line: (-line.messages_out, -line.messages_in, -line.backlog),
        "backlog": lambda line: (-line.backlog, -line.messages_in),
        "size": lambda line: (-line.stored_bytes, -line.messages_in),
        "name": lambda line: (),
    }
    return tuple(sorted(lines, key=lambda line: (*weights[sort](line), line.topic)))


#: Screen lines that are not topics.
_AROUND = 9
_SHORTEST_S = 0.1
_HISTORY = 40
_BARS = " ▁▂▃▄▅▆▇█"


@click.command(
    epilog="""
\b
Examples:
  weir top                          the broker on this machine, every two seconds
  weir top --sort backlog           the largest backlogs first
  weir top --count 1 --json         once, for a program
  weir top --url http://other:8080  another broker; each shows its own topics
"""
)
@remote_options
@click.option(
    "--interval",
    type=click.FloatRange(_SHORTEST_S),
    default=2.0,
    show_default=True,
    help="Seconds between screens.",
)
@click.option("--count", "looks", type=click.IntRange(1), metavar="N", help="End after N screens.")
@click.option(
    "--sort", type=click.Choice(SORTS), default="in", show_default=True, help="The sort order of topics."
)
def top(remote: Remote, as_json: bool, interval: float, looks: int | None, sort: str) -> None:
    """Watch a broker: rates, backlogs, connections, disk, and its busiest topics. Quit with q or Ctrl-C."""

    async def watch(client: AdminClient) -> None:
        if as_json or not sys.stdout.isatty():
            await _print(client, interval, looks or 1, sort, as_json=as_json)
        else:
            await _show(client, remote.url, interval, looks, sort)

    remote.admin(watch)


async def _print(client: AdminClient, interval: float, looks: int, sort: str, *, as_json: bool) -> None:
    before = await _scrape(client)
    plain = Console(soft_wrap=True, highlight=False)
    for _ in range(looks):
        await asyncio.sleep(interval)
        now = await _scrape(client)
        seen = overview(before, now, sort=sort)
        before = now
        if as_json:
            print_json(asdict(seen))
        else:
            plain.print(screen(seen, [], ""))


async def _show(client: AdminClient, url: str, interval: float, looks: int | None, sort: str) -> None:
    before = await _scrape(client)
    rates: list[float] = []
    quitting = asyncio.Event()
    waiting = Live(Text(f"connecting to {url} ..."), screen=looks is None, auto_refresh=False)
    with _key("q", quitting), waiting as live:
        for look in count(1):
            if await _happens(quitting, interval):
                return
            now = await _scrape(client)
            room = max(3, live.console.height - _AROUND)
            seen = overview(before, now, sort=sort, most=room)
            rates = [*rates, seen.messages_in][-_HISTORY:]
            live.update(screen(seen, rates, url), refresh=True)
            before = now
            if look == looks:
                return


@contextmanager
def _key(key: str, pressed: asyncio.Event) -> Iterator[None]:
    """Set the event on a key press; do nothing if the standard input is not a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        if key in os.read(descriptor, 64).decode(errors="replace").lower():
            pressed.set()

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def _happens(event: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _scrape(client: AdminClient) -> Scrape:
    return read_scrape(await client.metrics(), asyncio.get_running_loop().time())


def screen(seen: Overview, rates: list[float], url: str) -> RenderableType:
    """One screen."""
    head = Table.grid(padding=(0, 3))
    head.add_row(
        f"[bold]weir[/] {escape(url)}",
        f"up {duration(seen.up_s)}",
        *([f"[cyan]{bars(rates)}[/]", "[dim]q quits[/]"] if rates else []),
    )
    facts = Table.grid(padding=(0, 3))
    facts.add_row(
        f"in [bold]{human_number(seen.messages_in)}/s[/] {human_bytes(seen.bytes_in)}/s",
        f"out [bold]{human_number(seen.messages_out)}/s[/] {human_bytes(seen.bytes_out)}/s",
        f"wait [bold]{human_number(seen.backlog)}[/]",
        f"held {human_number(seen.held)}",
        f"topics {human_number(seen.topics)} ({human_number(seen.loaded)} loaded)",
    )
    connections = "  ".join(f"{protocol} {number}" for protocol, number in seen.connections.items())
    machine = Table.grid(padding=(0, 3))
    free = "" if seen.disk_free_bytes is None else f"disk {human_bytes(seen.disk_free_bytes)} free"
    memory = f"memory {human_bytes(seen.memory_bytes)}"
    machine.add_row(f"cpu {seen.cpu:.0%}", memory, free, f"connections: {connections}")
    warnings = [
        *(["[bold red]read-only: the disks are full, writes are rejected[/]"] if seen.read_only else []),
        *([f"[bold red]{seen.damaged} damaged entries: see weir doctor[/]"] if seen.damaged else []),
    ]
    streams = [f"streams that lag: {lagging(seen.streams)}"] if any(seen.streams.values()) else []
    return Group(head, facts, machine, *warnings, *streams, "", _topics(seen))


class _Name:
    """A name, shortened to its column."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(cut_middle(self._name, options.max_width), no_wrap=True)

    def __rich_measure__(self, _console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(len(self._name), options.max_width))


def _topics(seen: Overview) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("TOPIC", ratio=1, no_wrap=True)
    for column in ("IN/S", "OUT/S", "BYTES/S", "WAIT", "SIZE", "PROD", "CONS"):
        table.add_column(column, justify="right", no_wrap=True)
    for line in seen.busiest:
        table.add_row(
            _Name(line.topic.removeprefix("persistent://")),
            human_number(line.messages_in),
            human_number(line.messages_out),
            human_bytes(line.bytes_in),
            human_number(line.backlog),
            human_bytes(line.stored_bytes),
            str(line.producers),
            str(line.consumers),
        )
    return table


def lagging(streams: dict[str, int]) -> str:
    worst = sorted(streams.items(), key=lambda each: -each[1])[:3]
    return ", ".join(f"{escape(name)} {human_number(lag)}" for name, lag in worst if lag)


def bars(values: list[float]) -> str:
    most = max(values, default=0.0) or 1.0
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)


def duration(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds_left = divmod(rest, 60)
    of_day = f"{hours:02}:{minutes:02}:{seconds_left:02}"
    return f"{days}d {of_day}" if days else of_day
