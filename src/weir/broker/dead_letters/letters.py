"""Dead letters made of what a subscription's log has, and what they were before, made of them."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from pyroaring import BitMap64

from weir.broker.dead_letters.parcels import Destination
from weir.broker.dispatch.feed import Source
from weir.model.batch import BatchFlags
from weir.model.dead_letters import NAMES, Death, death_in
from weir.model.errors import OffsetTrimmedError, WireError
from weir.model.message import Message
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.turns import Turns
from weir.wire.amqp.death import DeadLetter, Reason, dead_letter, due_message, revived, with_fields
from weir.wire.formats import opening

log = logging.getLogger(__name__)

#: Of one parcel, besides the last letter.
_MOST_BYTES = 512 * 1024
#: Letters made without a pause.
_AT_ONCE = 32


class Origin(NamedTuple):
    """Whose letters they are. `queue`: as AMQP's clients call it; `topic`: None of a queue in memory."""

    queue: str
    topic: TopicName | None
    subscription: str


class Letter(NamedTuple):
    """`routed`: by what an exchange routes it, where it goes to one; `back`: where it came from, where it goes
    there."""

    message: Message
    routed: DeadLetter | None = None
    back: TopicName | None = None

    @property
    def persistent(self) -> bool:
        return self.routed is None or self.routed.persistent


class Deaths:
    """Messages that die for one reason, under the same rules. `deliveries`: how often those were delivered that
    were."""

    __slots__ = ("at_ms", "deliveries", "offsets", "reason", "to")

    def __init__(
        self,
        offsets: BitMap64,
        reason: Reason,
        to: Destination,
        at_ms: int,
        deliveries: Mapping[int, int] | None = None,
    ) -> None:
        self.offsets = offsets
        self.reason = reason
        self.to = to
        self.at_ms = at_ms
        self.deliveries = deliveries or {}

    def like(self, other: "Deaths") -> bool:
        """They may go in one parcel. Times are in seconds."""
        return (self.reason, self.to, self.at_ms // 1000) == (other.reason, other.to, other.at_ms // 1000)


class LetterMaker:
    """Of one subscription. The same messages and deaths make the same letters, whenever."""

    def __init__(self, origin: Origin, source: Source, clock: Clock) -> None:
        self._origin = origin
        self._source = source
        self._turns = Turns(clock)
        #: The batch that was opened last: its base, when it was stored, and its messages.
        self._opened: tuple[int, int, list[Message]] | None = None

    async def letters(self, offsets: BitMap64, deaths: Deaths) -> "dict[int, Letter | None]":
        """Letters by the offsets of their messages, as many of the first ones as go into a parcel; None for what
        is no longer there or cannot be read."""
        found: dict[int, Letter | None] = {}
        size = 0
        for offset in offsets:
            stored = await self._message(offset)
            found[offset] = None if stored is None else self.letter(stored[0], deaths, offset, stored[1])
            size += 0 if stored is None else len(stored[0].value or b"")
            if size >= _MOST_BYTES:
                break
            if not len(found) % _AT_ONCE:
                await self._turns.next()
        return found

    def letter(
        self, message: Message, deaths: Deaths, offset: int | None = None, stored_ms: int = 0
    ) -> Letter | None:
        """`offset`: None of what never was in the log."""
        try:
            if deaths.to.is_back:
                return _sent_back(message, deaths.to.back_to)
            if deaths.reason is Reason.DUE:
                due = due_message(message)
                return Letter(due.message, due)
            death = self._death(deaths, offset, stored_ms)
            plain = _without_deaths(message)
            if deaths.to.exchange is None:
                return Letter(with_fields(plain, death))
            made = dead_letter(
                plain,
                deaths.reason,
                queue=self._origin.queue,
                exchange=deaths.to.exchange,
                key=deaths.to.key,
                now_ms=deaths.at_ms,
            )
        except WireError as bad:
            log.error("a message of %s cannot be read, and is dropped: %s", self._origin.queue, bad)
            return None
        # RabbitMQ's words are in what AMQP's consumers get; for others, and for the way back, there are ours.
        return Letter(replace(made.message, headers=[*made.message.headers, *death]), made)

    def _death(self, deaths: Deaths, offset: int | None, stored_ms: int) -> list[tuple[str, bytes | None]]:
        """What is told of it, in headers; nothing of what never was in a topic."""
        topic = self._origin.topic
        if offset is None or topic is None:
            return []
        deliveries, subscription = deaths.deliveries.get(offset, 0), self._origin.subscription
        return Death(
            deaths.reason.value, deliveries, topic, offset, subscription, stored_ms, deaths.at_ms
        ).headers()

    async def _message(self, offset: int) -> tuple[Message, int] | None:
        if self._opened is not None:
            base, stored_ms, messages = self._opened
            if base <= offset < base + len(messages):
                return messages[offset - base], stored_ms
        try:
            batches = await self._source.read(max(offset, self._source.start_offset), 1)
        except OffsetTrimmedError:
            return None
        batch = batches[0] if batches else None
        if batch is None or not batch.base_offset <= offset < batch.end_offset or batch.flags & BatchFlags.NOTHING:
            return None
        messages = await self._turns.through(opening(batch))
        if len(messages) != batch.count:  # one stands for all: it cannot be opened
            return (messages[0], batch.append_ms) if offset == batch.base_offset else None
        self._opened = (batch.base_offset, batch.append_ms, messages)
        return messages[offset - batch.base_offset], batch.append_ms


def _without_deaths(message: Message) -> Message:
    if not any(name in NAMES for name, _ in message.headers):
        return message
    return replace(message, headers=[header for header in message.headers if header[0] not in NAMES])


def _sent_back(letter: Message, to: str | None) -> Letter | None:
    """The message before its death. `to`: instead of the topic that it came from; None if it names no topic."""
    death = death_in(letter.headers)
    if to is None and death is None:
        return None
    back = TopicName.parse(to) if to is not None else death.topic if death is not None else None
    return Letter(revived(letter, *(NAMES if death is None else death.names)), back=back)
