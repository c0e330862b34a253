"""`weir consume`: print the messages of a topic to standard output.

A session starts at an end of the topic, an offset, a message or a time, on each partition. It survives lost
connections, and fails rather than print an incomplete result as a complete one.
"""

import asyncio
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import click

from weir.cli.arguments import complete_subscription, complete_topic, short_topic
from weir.cli.group_lookup import offsets_path
from weir.cli.message_format import WORDS, MessageFormat, Printed, Printer
from weir.cli.output import Output
from weir.cli.remote import Remote, remote_options
from weir.cli.topic_views import partitions_of, topic_stats
from weir.client.access import parse_url
from weir.client.admin import AdminClient
from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.consumer import Consumer, Subscribing
from weir.client.pulsar.messages import Incoming
from weir.model.errors import (
    BrokerError,
    ConfigError,
    ConsumerClosedError,
    NetworkError,
    StreamError,
    TopicClosedError,
    TopicNotFoundError,
    WeirError,
    WireError,
)
from weir.model.moments import parse_moment_ms, parse_span_ms
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.runtime.real import RealClock
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.ids import EARLIEST, LATEST, MessageId, parse_id

#: Larger numbers are times in milliseconds: no partition has had so many messages.
_MOST_OFFSET = 10**11


@dataclass(frozen=True, slots=True)
class Start:
    """The requested start: `at`, or an offset (from the end if it is negative), or a time."""

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
        """Whether the server must resolve the position to messages."""
        return self.at is None


@dataclass(frozen=True, slots=True)
class Begin:
    """The start on each partition, and the first wanted offset of each where it is known: the first batch may
    contain earlier messages."""

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
    """The error for an offset that is neither stored nor the next one on any partition."""
    first, end = min(first for first, _ in ranges), max(end for _, end in ranges)
    of = topic.local if len(ranges) == 1 else f"any of the {len(ranges)} partitions of {topic.local}"
    held = f"its offsets are {first} to {end - 1}" if end > first else "it has no messages"
    return ConfigError(
        f"offset {offset} is beyond the end of {of}: {held}",
        hint=f"offset {end} is the next message's: --offset {end} --follow waits for it",
    )


log = logging.getLogger(__name__)

#: The longest delay before a batch of acknowledgments.
_ACK_EVERY = 500
_RETRY_PAUSE_S = 0.5
#: How long a consumer waits for messages that are known to exist before it fails.
_SLOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """When a session is complete. `offsets`: the first of each partition; `to_the_end`: up to the current end."""

    count: int | None = None
    patience_s: float | None = None
    ack: bool = False
    follow: bool = False
    offsets: Mapping[int, int] = field(default_factory=dict)
    to_the_end: bool = False


class Session:
    """Receives until it has the wanted messages; after a lost connection, resumes at its last position."""

    def __init__(
        self, client: PulsarClient, topic: str, asked: Subscribing, wanted: Wanted, printer: Printer
    ) -> None:
        self._client = client
        self._topic = topic
        self._asked = asked
        self._wanted = wanted
        self._printer = printer
        self._unacked: list[Incoming] = []
        self._last: dict[int, MessageId] = {}
        self._names: list[TopicName] = []
        self._waited_s = 0.0
        #: How many it has printed, and the first and last offset of each partition.
        self.count = 0
        self.seen: dict[TopicName, tuple[int, int]] = {}

    async def run(self, runtime: Runtime) -> None:
        if not self._asked.subscription:
            name = f"weir-consume-{runtime.rng.randrange(2**32):08x}"
            self._asked = replace(self._asked, subscription=name)
        waits = False
        while True:
            self._unacked.clear()
            try:
                consumer = await self._client.consumer(self._topic, self._asked)
                self._names = [TopicName.parse(name) for name in consumer.topics]
                try:
                    await self._receive(consumer)
                    break
                finally:
                    await _close(consumer)
            except TopicNotFoundError:
                if not self._wanted.follow or self._patience_ended(_RETRY_PAUSE_S):
                    raise
                if not waits:
                    waits = True
                    click.echo(f"topic {short_topic(self._topic)} does not exist yet; waiting for it", err=True)
                # All messages of a topic that is created later are new.
                self._asked = replace(self._asked, earliest=True, start=None, starts={})
            except (NetworkError, ConsumerClosedError, TopicClosedError) as failure:
                if not self._wanted.follow:
                    raise _after(failure, self.count) from None
                log.warning("%s; reconnecting", failure)
            await runtime.clock.sleep(_RETRY_PAUSE_S)
        missing = (self._wanted.count or 0) - self.count
        if missing > 0 and not self._wanted.follow:
            raise StreamError(
                f"{self.count} of {self._wanted.count} messages arrived",
                hint="give a longer --wait, or a smaller -n",
            )

    def _patience_ended(self, waited_s: float) -> bool:
        self._waited_s += waited_s
        return self._wanted.patience_s is not None and self._waited_s > self._wanted.patience_s

    async def _receive(self, consumer: Consumer) -> None:
        while self._wanted.count is None or self.count < self._wanted.count:
            if not consumer.waiting():
                self._printer.flush()
                await self._acknowledge(consumer)
            try:
                async with asyncio.timeout(self._wanted.patience_s):
                    message = await consumer.receive()
            except TimeoutError:
                if await self._at_end(consumer):
                    break
                continue
            if message is None:
                break
            self._waited_s = 0.0
            if self._is_old(message):
                continue
            self._show(message)
            await self._took(consumer, message)
        self._printer.flush()
        await self._acknowledge(consumer)

    def _is_old(self, message: Incoming) -> bool:
        """Whether the session has printed the message before a reconnect, or it precedes the start position."""
        if 0 <= message.offset < self._wanted.offsets.get(message.part, 0):
            return True
        return message.id <= self._last.get(message.part, EARLIEST) and not self._wanted.ack

    async def _at_end(self, consumer: Consumer) -> bool:
        """Whether silence means the end: a slow broker or damage may delay messages. Only a reader can know,
        because other consumers may receive the messages of a shared subscription."""
        if self._asked.durable or not self._wanted.to_the_end:
            return True
        ends = await consumer.last_ids()
        left = [
            at for at, end in enumerate(ends) if end.entry >= 0 and self._last_of(at) < (end.ledger, end.entry)
        ]
        if not left:
            return True
        self._waited_s += self._wanted.patience_s or 0.0
        if self._waited_s < _SLOW_S:
            return False
        raise StreamError(
            f"{self._names[left[0]]} continues to {ends[left[0]]}, but no message came in {self._waited_s:.0f} s",
            hint="see weir topics stats and the broker's log: the next messages may be damaged",
        )

    def _last_of(self, part: int) -> tuple[int, int]:
        last = self._last.get(part)
        if last is not None:
            return last.ledger, last.entry
        # A partition that starts at its end has no messages to wait for.
        start = self._asked.starts.get(part)
        return (start.ledger, start.entry - 1) if start is not None else (-1, -1)

    async def _took(self, consumer: Consumer, message: Incoming) -> None:
        self._last[message.part] = message.id
        self.count += 1
        name = self._names[message.part]
        self.seen[name] = (self.seen.get(name, (message.offset, 0))[0], message.offset)
        if self._wanted.ack:
            self._unacked.append(message)
            if len(self._unacked) >= _ACK_EVERY:
                self._printer.flush()
                await self._acknowledge(consumer)

    async def _acknowledge(self, consumer: Consumer) -> None:
        if self._unacked:
            await consumer.ack(*self._unacked)
            self._unacked.clear()

    def _show(self, message: Incoming) -> None:
        name = self._names[message.part]
        self._printer.show(Printed(name.local, -1 if name.partition is None else name.partition, message))


async def left_out(admin: AdminClient, topic: TopicName, session: Session) -> None:
    """StreamError if damage left gaps in the printed messages, so that the output does not pass for complete."""
    if not session.seen:
        return
    try:
        stats = await topic_stats(admin, topic)
    except BrokerError:  # a role that may consume may lack permission for stats
        return
    parts = stats.get("partitions") or {str(topic): stats}
    for name, (first, last) in session.seen.items():
        for lost in (parts.get(str(name)) or {}).get("lostEntries") or ():
            if lost["firstOffset"] <= last and lost["endOffset"] > first and lost["firstOffset"] >= 0:
                raise StreamError(
                    f"offsets {lost['firstOffset']} to {lost['endOffset'] - 1} of {name} are damaged: skipped",
                    hint="weir topics stats lists all of them",
                )


def _after(failure: WeirError, count: int) -> WeirError:
    """The same error, with the count of messages printed before it."""
    if not count:
        return failure
    came = "1 message" if count == 1 else f"{count} messages"
    return type(failure)(f"{failure.what}; {came} arrived before", hint=failure.hint)


async def _close(consumer: Consumer) -> None:
    with suppress(NetworkError):  # closed already
        await consumer.close()


_TYPES = {
    "exclusive": api.CommandSubscribe.Exclusive,
    "shared": api.CommandSubscribe.Shared,
    "failover": api.CommandSubscribe.Failover,
    "key-shared": api.CommandSubscribe.Key_Shared,
}
_SILENCE = "2s"


@click.command(
    epilog=f"""
\b
Examples:
  weir consume orders                            all stored messages; leaves no subscription
  weir consume orders --follow --from latest     new messages only
  weir consume orders --from -10min              the last ten minutes
  weir consume orders --offset 1500 -n 10        ten, from offset 1500 (on each partition)
  weir consume orders --offset -5                the last five (of each partition)
  weir consume orders -s billing                 by a subscription; acknowledges what it prints
  weir consume orders -s billing -n 10 --json    ten messages, one JSON object per line
  weir consume orders -F '%p:%o %k=%s %h%n'      in this format
  weir consume orders -o wide                    with offset, time, key and headers

\b
In a format:
{WORDS}

Exits with 0 after all stored messages, or -n messages, are printed; with 1 if an error prevented that. It never
creates TOPIC: with --follow it waits until TOPIC exists; without, a missing topic is an error.
"""
)
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "-s",
    "--subscription",
    metavar="SUB",
    shell_complete=complete_subscription,
    help="Consume by this subscription, created if needed. Without it: by a reader, which leaves none.",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(_TYPES)),
    default="exclusive",
    show_default=True,
    help="The type of SUB.",
)
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="Start position: earliest (the default), latest, an offset, a message id, a time, or a span (-10min).",
)
@click.option("--offset", type=int, metavar="N", help="Short for --from with an offset; -N: the last N messages.")
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="P", help="Read only this partition.")
@click.option("-n", "--count", type=click.IntRange(min=1), metavar="N", help="Exit after N messages.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages, until interrupted.")
@click.option(
    "--wait",
    metavar="SPAN",
    help=f"Exit if no message arrives for SPAN; default {_SILENCE}, none with -n or --follow.",
)
@click.option("-F", "--format", "pattern", metavar="FORMAT", help="Format of each message: see below.")
@click.option("--no-ack", is_flag=True, help="Acknowledge nothing.")
@click.option("--compacted", is_flag=True, help="Only the last message of each key, as far as compacted.")
@remote_options(patient=True)
def consume(
    *,
    topic: str,
    subscription: str | None,
    kind: str,
    start: str | None,
    offset: int | None,
    partition: int | None,
    count: int | None,
    follow: bool,
    wait: str | None,
    pattern: str | None,
    no_ack: bool,
    compacted: bool,
    remote: Remote,
    out: Output,
) -> None:
    """Print the messages of TOPIC, one per line. Without --follow or -n, exits after the last stored message."""
    name = TopicName.parse(topic)
    if partition is not None:
        name = name.at(partition)
    if start is not None and offset is not None:
        raise ConfigError("--from and --offset exclude each other", hint="give one of them")
    begin_at = Start.parse(start or "earliest") if offset is None else Start(offset=offset)
    remote.changes = subscription is not None
    printer = Printer(out, None if pattern is None else MessageFormat(pattern))
    begin = Begin()
    try:
        begin = _begin(remote, name, begin_at, subscription)
    except TopicNotFoundError:
        if not follow:
            raise
    asked = Subscribing(
        subscription=subscription or "",
        type=_TYPES[kind],
        earliest=begin_at.at != LATEST,
        durable=subscription is not None,
        start=None if subscription is not None else begin_at.at,
        starts=begin.starts,
        create_topic=False,
        read_compacted=compacted,
    )
    silence = wait if wait is not None else None if follow or count is not None else _SILENCE
    wanted = Wanted(
        count=count,
        patience_s=None if silence is None else parse_span_ms(silence) / 1000,
        ack=subscription is not None and not no_ack,
        follow=follow,
        offsets=begin.offsets,
        to_the_end=begin_at.at != LATEST and not compacted,
    )

    async def work(runtime: Runtime, client: PulsarClient) -> Session:
        session = Session(client, str(name), asked, wanted, printer)
        await session.run(runtime)
        return session

    session = remote.broker(topic, work)
    if parse_url(remote.url).http and not follow:
        remote.admin(lambda admin: left_out(admin, name, session))


def _begin(remote: Remote, topic: TopicName, start: Start, subscription: str | None) -> Begin:
    if not start.asked:
        return Begin()
    if subscription is not None:
        raise ConfigError(
            "a subscription resumes at its position; a new one starts at earliest or latest",
            hint=f"move it with weir groups reset {subscription} --topic {topic.local} --to WHERE",
        )
    if not parse_url(remote.url).http:
        raise ConfigError(f"{remote.url} cannot resolve this position", hint="give --url http://host:8080")
    return remote.admin(lambda admin: find_begin(admin, topic, start))
