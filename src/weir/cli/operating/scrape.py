"""Two scrapes of `/metrics`, and what happened between them: what `weir top` shows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_ESCAPED = re.compile(r"\\[\\n\"]")


@dataclass(frozen=True, slots=True)
class Scrape:
    """Values by name, each with its labels, and when it was taken (seconds of any clock)."""

    at_s: float
    values: Mapping[str, list[tuple[dict[str, str], float]]]

    def sum(self, name: str) -> float:
        return sum(value for _, value in self.values.get(name, ()))

    def one(self, name: str) -> float | None:
        """Of a name without labels; None if nobody says it."""
        found = self.values.get(name)
        return found[0][1] if found else None

    def by(self, label: str, name: str) -> dict[str, float]:
        """Summed over all other labels."""
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
    """A broker, at the later of two scrapes. Rates per second; `None`: nobody says."""

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
    """What the later one says, with rates since the earlier."""
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
        # One that was not there has just been loaded: all that it counts happened since.
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
