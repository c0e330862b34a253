"""Receiving for `weir consume`: until there is enough, through lost connections, never half of it."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import click

from weir.cli.messages.format import Printed
from weir.cli.messages.views import Printer
from weir.cli.topics.stats import topic_stats
from weir.cli.values import short_topic
from weir.client.admin import AdminClient
from weir.client.consumer import Consumer, Subscribing
from weir.client.messages import Incoming
from weir.client.pulsar import PulsarClient
from weir.model.errors import (
    BrokerError,
    ConsumerClosedError,
    NetworkError,
    StreamError,
    TopicClosedError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.wire.pulsar.ids import EARLIEST, MessageId

log = logging.getLogger(__name__)

#: Acknowledged together at the latest.
_ACK_EVERY = 500
_RETRY_PAUSE_S = 0.5
#: So long a silence is waited for what is known to be there before that is an error.
_SLOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """When there is enough. `offsets`: the first of each partition; `to_the_end`: all that is there is wanted."""

    count: int | None = None
    patience_s: float | None = None
    ack: bool = False
    follow: bool = False
    offsets: Mapping[int, int] = field(default_factory=dict)
    to_the_end: bool = False


class Session:
    """Receives until there is enough; after a lost connection, goes on from where it was."""

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
        #: How many were printed, and of each partition the first and the last offset.
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
                    click.echo(f"there is no topic {short_topic(self._topic)} yet; waiting for it", err=True)
                # All messages of a topic that is created from now on are new.
                self._asked = replace(self._asked, earliest=True, start=None, starts={})
            except (NetworkError, ConsumerClosedError, TopicClosedError) as failure:
                if not self._wanted.follow:
                    raise _after(failure, self.count) from None
                log.warning("%s; connecting again", failure)
            await runtime.clock.sleep(_RETRY_PAUSE_S)
        missing = (self._wanted.count or 0) - self.count
        if missing > 0 and not self._wanted.follow:
            raise StreamError(
                f"{self.count} of {self._wanted.count} messages came", hint="give a longer --wait, or a smaller -n"
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
        """Seen before the connection was lost, or before where it shall begin."""
        if 0 <= message.offset < self._wanted.offsets.get(message.part, 0):
            return True
        return message.id <= self._last.get(message.part, EARLIEST) and not self._wanted.ack

    async def _at_end(self, consumer: Consumer) -> bool:
        """Whether silence means that there is nothing more: a broker may be slow, and what is there may be held up
        by damage. Others may have what a subscription shares, so only a reader can know."""
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
            f"{self._names[left[0]]} goes on to {ends[left[0]]}, and nothing came for {self._waited_s:.0f} s",
            hint="see weir topics stats and the broker's log: the next messages may be damaged",
        )

    def _last_of(self, part: int) -> tuple[int, int]:
        last = self._last.get(part)
        if last is not None:
            return last.ledger, last.entry
        # One that begins at its end has nothing that could come.
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
    """StreamError if what was printed has gaps, since messages are damaged: nobody shall take it for all."""
    if not session.seen:
        return
    try:
        stats = await topic_stats(admin, topic)
    except BrokerError:  # who may consume may not always look
        return
    parts = stats.get("partitions") or {str(topic): stats}
    for name, (first, last) in session.seen.items():
        for lost in (parts.get(str(name)) or {}).get("lostEntries") or ():
            if lost["firstOffset"] <= last and lost["endOffset"] > first and lost["firstOffset"] >= 0:
                raise StreamError(
                    f"offsets {lost['firstOffset']} to {lost['endOffset'] - 1} of {name} are damaged: left out",
                    hint="see weir topics stats for all of them",
                )


def _after(failure: WeirError, count: int) -> WeirError:
    """The same, saying how much came before it."""
    if not count:
        return failure
    came = "1 message" if count == 1 else f"{count} messages"
    return type(failure)(f"{failure.what}; {came} came before", hint=failure.hint)


async def _close(consumer: Consumer) -> None:
    with suppress(NetworkError):  # gone already
        await consumer.close()
