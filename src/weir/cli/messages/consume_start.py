"""Where `weir consume` begins: an end of the topic, an offset, a message or a moment, on each partition."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.cli.groups.reset import offsets_path
from weir.cli.topics.stats import partitions_of
from weir.cli.values import parse_moment_ms
from weir.client.admin import AdminClient
from weir.model.errors import ConfigError, WireError
from weir.model.topics import TopicName
from weir.runtime.real import RealClock
from weir.wire.pulsar.ids import EARLIEST, LATEST, MessageId, parse_id

#: Larger numbers are moments in milliseconds: no partition has had so many messages.
_MOST_OFFSET = 10**11


@dataclass(frozen=True, slots=True)
class Start:
    """What was asked for: `at`, or an offset (from the end if it is negative), or a moment."""

    at: MessageId | None = None
    offset: int | None = None
    moment_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Start":
        if text in ("earliest", "latest"):
            return cls(at=EARLIEST if text == "earliest" else LATEST)
        if re.fullmatch(r"-?[0-9]+", text) and int(text) < _MOST_OFFSET:
            return cls(offset=int(text))
        try:
            return cls(at=parse_id(text))
        except WireError:
            pass
        try:
            return cls(moment_ms=parse_moment_ms(text, RealClock().wall_ms()))
        except ConfigError:
            raise ConfigError(
                f"invalid start position {text!r}",
                hint="use earliest, latest, an offset (-5: five before the end), a message id (12:0), a time"
                " (2030-01-31T12:00:00) or a span (-10min)",
            ) from None

    @property
    def asked(self) -> bool:
        """Whether the server must be asked which messages these are."""
        return self.at is None


@dataclass(frozen=True, slots=True)
class Begin:
    """Where each partition begins; and the first offset that is wanted of each, where that is known: the first
    batch may hold messages before it."""

    starts: Mapping[int, MessageId] = field(default_factory=dict)
    offsets: Mapping[int, int] = field(default_factory=dict)


async def find_begin(admin: AdminClient, topic: TopicName, start: Start) -> Begin:
    count = await partitions_of(admin, topic)
    starts: dict[int, MessageId] = {}
    offsets: dict[int, int] = {}
    ranges: list[tuple[int, int]] = []
    for at, part in enumerate([topic.at(number) for number in range(count)] or [topic]):
        path = offsets_path(part)
        if start.moment_ms is not None:
            found = await admin.own("GET", f"{path}?time={max(0, start.moment_ms)}")
        else:
            wanted = start.offset or 0
            if wanted < 0:
                wanted = max(0, (await admin.own("GET", path))["end"] + wanted)
            found = await admin.own("GET", f"{path}?offset={wanted}")
            ranges.append((found["start"], found["end"]))
        offsets[at] = found["offset"]
        starts[at] = LATEST if found["offset"] >= found["end"] else parse_id(found["messageId"])
    if ranges and all((start.offset or 0) > end for _, end in ranges):
        raise _beyond(topic, start.offset or 0, ranges)
    return Begin(starts, offsets)


def _beyond(topic: TopicName, offset: int, ranges: list[tuple[int, int]]) -> ConfigError:
    """No partition has had the offset, nor gives it to the next message."""
    first, end = min(first for first, _ in ranges), max(end for _, end in ranges)
    of = topic.local if len(ranges) == 1 else f"any of the {len(ranges)} partitions of {topic.local}"
    held = f"its offsets are {first} to {end - 1}" if end > first else "it has no messages"
    return ConfigError(
        f"offset {offset} is beyond the end of {of}: {held}",
        hint=f"offset {end} is the next message's: --offset {end} --follow waits for it",
    )
